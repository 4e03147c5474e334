"""Executing a sequence: the run, its launches, tracking them, and its failure."""
