"""LLVM IR emission: threads, regions, lockstep stages, device functions, and their checks."""
