"""The memory behind arrays: arenas, their memory files, and copies in device memory."""
