"""Launches: prepared sequences, active launches, gates, release paths, run records and output."""
