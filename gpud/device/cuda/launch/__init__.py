"""Launches: a chain made ready, what each launch holds, gates, release paths, output."""
