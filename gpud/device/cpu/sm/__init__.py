"""A virtual SM: its OS thread, and the native loop that it runs."""
