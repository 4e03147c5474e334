"""Passes for isolation: traps, fences, control-flow integrity, and kill polls."""
