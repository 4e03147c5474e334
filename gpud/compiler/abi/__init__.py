"""The interface between rewritten kernels and the host: records in memory, names, fault sites."""
