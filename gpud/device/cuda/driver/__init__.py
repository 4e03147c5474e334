"""The CUDA driver: checked calls, the context, linking, and threads for calls that may block."""
