"""Passes that isolate jobs: traps, fences, control-flow integrity, and kill polls."""
