"""Analyses of a prepared kernel: regions, divergence, stages, values known from the block shape."""
