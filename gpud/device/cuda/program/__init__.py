"""Programs on the GPU: PTX passes when one is loaded, linking, kernels and their occupancy."""
