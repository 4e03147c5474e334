"""What code generation returns: LLVM IR and the sizes of the memory that a launch must provide.

Problem: the process that loads compiled code needs these, and nothing else of the code generator.
Importing all of that would take a third of its start-up time where another process compiles.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ENTRY_POINTS", "GeneratedKernel"]

ENTRY_POINTS = ("run_lockstep", "run_region", "begin_diverged", "exchange", "uniform_table")
"""Symbols that the generated code exports; each has a header field of the same name."""


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """Generated code and the memory that a launch must provide.

    Attributes:
        ir: LLVM assembly that defines `ENTRY_POINTS`.
        parameters: offset in bytes by name in the parameter buffer.
        parameter_bytes: size of the parameter buffer.
        block_bytes: size of a resident block's header and arrays.
        local_bytes: size of the local memory of all threads of a block.
        shared_bytes: size of static shared memory.
        dynamic_shared_at: offset of dynamic shared memory in a block's shared memory.
        hidden_shared_bytes: size of gpud's own shared variables after both, see `ModuleLayout`.
        starts_in_lockstep: whether a block's threads begin in lockstep.
        reads_clock: whether what threads do may depend on the time.
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
    reads_clock: bool
