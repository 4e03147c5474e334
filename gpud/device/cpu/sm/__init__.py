"""A virtual SM: its OS thread, the native loop that it runs, and their records in memory."""
