"""Loaded programs of the CPU device: variables, heap, ``printf``, and compiled kernels."""
