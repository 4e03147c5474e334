"""Devices: what runs kernels, behind one interface."""
