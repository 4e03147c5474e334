"""gpud shares one machine's GPUs by resizing kernels while they run. This import loads nothing."""

__version__ = "0.1.0"
