"""What the benchmarks share: timing in turns, the machine, tables, workloads and their arrays."""
