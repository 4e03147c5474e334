"""Launches: prepared chains, active launches, gates, release paths, run records and output."""
