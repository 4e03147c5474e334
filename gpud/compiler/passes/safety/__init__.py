"""Passes that isolate jobs: traps, bounds checks, control-flow integrity, and kill polls."""
