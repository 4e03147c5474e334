"""What measurements on a GPU are made with: the bare driver, kernels that note times, the clock."""
