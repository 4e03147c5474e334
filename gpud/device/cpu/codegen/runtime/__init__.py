"""Run-time scheduling of a resident block's threads: collectives, barriers, reconvergence."""
