"""Code shared by the benchmarks: interleaved timing, machine, memory, tables, workloads, arrays."""
