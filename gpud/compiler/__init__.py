"""From CUDA C++ to a kernel that can be resized: NVRTC, the PTX tree, analyses and rewrites."""
