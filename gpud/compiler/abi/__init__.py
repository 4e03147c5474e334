"""What rewritten kernels and their host agree on: records in memory, names, numbers of sites."""
