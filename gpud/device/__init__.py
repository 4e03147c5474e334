"""Devices: the interface that every device implements, its implementations and the device host."""
