"""Executing one run of a chain: its gang, its launches, tracking them, and its failure."""
