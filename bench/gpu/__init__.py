"""Measurements on an NVIDIA GPU: ``make gpu-bench``, one command for each.

None of this has run on a GPU yet: what needs none (kernels, statistics, plans, figures) is tested
by ``tests/gpu``.
"""
