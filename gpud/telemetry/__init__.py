"""Telemetry: the daemon's bounded history of events and allocations, and NVML readings."""
