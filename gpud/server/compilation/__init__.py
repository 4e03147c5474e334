"""Compiling for clients: a pool of workers, a fair queue, and the modules that come of it."""
