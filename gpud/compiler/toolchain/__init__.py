"""NVIDIA's tools: NVRTC compiles CUDA C++ to PTX, with the CUDA headers; ptxas assembles PTX."""
