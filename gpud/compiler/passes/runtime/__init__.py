"""Passes that lower fault reports and ``printf`` to runtime functions, and those functions."""
