"""Compilation of clients' programs: a pool of workers, a fair queue, programs and modules."""
