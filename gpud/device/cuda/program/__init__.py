"""Programs on the GPU: PTX passes at load time, kernels and their occupancy."""
