"""Analyses of PTX functions, which change nothing. Pure: no I/O, clock or device."""
