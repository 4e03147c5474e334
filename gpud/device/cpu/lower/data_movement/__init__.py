"""Lowerings of moves, loads, stores, atomics and copies, and of state spaces."""
