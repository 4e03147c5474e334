"""NVIDIA's compilers: NVRTC makes PTX of CUDA C++, with the CUDA headers; ptxas assembles PTX."""
