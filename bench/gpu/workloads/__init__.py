"""What is measured: kernels, programs, and the work of the co-location measurement."""
