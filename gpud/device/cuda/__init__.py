"""The CUDA device: rewritten PTX on an NVIDIA GPU, through the driver API.

Nothing here has run on a GPU yet: it was written and tested against a model of the driver.
"""
