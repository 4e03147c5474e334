"""LLVM IR of the CPU device: written as text, seen by one PTX thread."""
