"""Lanes on the CUDA device: rings that a thread of the device host reads."""
