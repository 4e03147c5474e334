"""Measurements on an NVIDIA GPU: ``make gpu-bench``, one command for each.

None of this has run on a GPU yet: the parts that need none (kernels, statistics, plans, figures)
are tested by ``tests/gpu``.
"""
