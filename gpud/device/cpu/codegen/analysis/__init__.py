"""Analyses of a prepared kernel: regions, divergence, stages, values known from its shape."""
