"""The CUDA device: runs rewritten PTX on an NVIDIA GPU through the driver API.

Nothing in this package has run on a GPU yet: it was written and tested against a model of the
driver (`tests/driver_model`) and against the driver's manual. Where a module calls something a
guess, a measurement on a GPU has to decide it.
"""
