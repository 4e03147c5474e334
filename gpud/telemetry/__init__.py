"""Telemetry: the daemon's bounded histories of events, allocations and jobs; NVML readings."""
