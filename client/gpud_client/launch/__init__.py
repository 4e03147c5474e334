"""From a source and arguments to a job: modules, kernels, calls, shares, jobs."""
