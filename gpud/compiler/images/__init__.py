"""Images: programs as the CUDA driver takes them, of which gpud runs the PTX."""
