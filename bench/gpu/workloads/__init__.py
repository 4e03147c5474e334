"""Workloads of the measurements: kernels, programs, and the co-location work."""
