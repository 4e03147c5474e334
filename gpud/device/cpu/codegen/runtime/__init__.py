"""Scheduling of the threads of a resident block: collectives, barriers, reconvergence."""
