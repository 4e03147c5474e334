"""A loaded program: its variables, its heap, and its kernels as machine code."""
