"""Programs on the GPU: PTX passes at load time, linking, kernels and their occupancy."""
