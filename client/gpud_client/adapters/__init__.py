"""Adapters: programs that exist take turns with a GPU's memory, without a change in them.

`gpud_client.adapters.pytorch`, `gpud_client.adapters.cupy` and `gpud_client.adapters.numba` replace
what their library allocates with; each needs its library only when it is installed.
`gpud_client.adapters.recording` reads what PyTorch has recorded of its allocations.
"""
