"""From a source and arguments to a job: modules, kernels, launches, shares, jobs."""
