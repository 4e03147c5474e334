"""LLVM IR of a kernel: threads, regions, lockstep stages, functions, and their checks."""
