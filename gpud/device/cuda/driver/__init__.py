"""The CUDA driver: checked calls, the context, and threads for calls that may block."""
