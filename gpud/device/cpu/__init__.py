"""The CPU device: virtual SMs that run rewritten PTX as native code, through LLVM."""
