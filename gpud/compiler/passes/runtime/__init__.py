"""Passes that lower fault reports and printf to device functions, and those functions."""
