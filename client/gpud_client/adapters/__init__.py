"""Adapters: programs that exist take turns with a GPU's memory, without a change in them.

`gpud_client.adapters.recording` reads what PyTorch has recorded of its allocations.
"""
