"""Workloads: programs that run in iterations and take turns with a device's temporary memory."""
