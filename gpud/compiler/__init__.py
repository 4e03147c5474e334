"""Compiles CUDA C++ or PTX into kernels that can be resized: NVRTC, parser, analyses, passes."""
