"""What generated code gives to whoever loads it, and where it has its module's data.

Problem: a device needs both for every program. Where another process makes the machine code, it
needs nothing else of the code generator, and loading that would take a third of its start.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENTRY_POINTS", "GeneratedKernel"]

ENTRY_POINTS = ("run_lockstep", "run_region", "exchange", "uniform_table")
"""What generated code exports, each with a header field of that name."""


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """Generated code and what a launch must provide.

    Attributes:
        ir: LLVM assembly that defines `ENTRY_POINTS`.
        parameters: offset in bytes by name in the parameter buffer.
        parameter_bytes: size of the parameter buffer.
        block_bytes: size of a resident block's header and arrays.
        local_bytes: local memory of all its threads.
        shared_bytes: static shared memory.
        dynamic_shared_at: where dynamic shared memory begins in a block's.
        hidden_shared_bytes: what gpud itself needs behind both, see `ModuleLayout`.
        starts_in_lockstep: whether a block's threads begin as one.
    """

    ir: str
    parameters: dict[str, int]
    parameter_bytes: int
    block_bytes: int
    local_bytes: int
    shared_bytes: int
    dynamic_shared_at: int
    hidden_shared_bytes: int
    starts_in_lockstep: bool
