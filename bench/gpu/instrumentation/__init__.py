"""Instrumentation for measurements on a GPU: plain driver calls, timestamping kernels, clocks."""
