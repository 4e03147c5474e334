"""A virtual SM: its OS thread, the native loop that it runs, and the records of both."""
