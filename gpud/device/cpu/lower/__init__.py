"""PTX instructions to LLVM IR: every instruction that computes, converts or touches memory.

`LOWERINGS` maps an opcode base to a function that reads the operands of an instruction through a
`Thread`, emits LLVM IR, and writes the results. Control flow, guards, barriers and warp
collectives are the code generator's, beside this package.

What the modules have in common: only scalar code without branches (LLVM then vectorises over
threads), no calls that a CPU without some extension would need a library for, and no modifier
ignored (`registry.Modifiers`).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.codegen.thread import Thread
from gpud.device.cpu.lower import (  # noqa: F401 - importing them fills LOWERINGS
    approx,
    atomics,
    bits,
    compare,
    convert,
    copies,
    division,
    dotproduct,
    floating,
    half,
    integer,
    mbarrier,
    memory,
    moves,
    spaces,
    video,
)
from gpud.device.cpu.lower.refusals import refusal, rejection
from gpud.device.cpu.lower.registry import LOWERINGS, Lowering, reject

__all__ = ["LOWERINGS", "Lowering", "lower", "refusal", "rejection"]


def lower(thread: Thread, instruction: Instruction) -> None:
    """Emit an instruction.

    Raises:
        KernelRejected: the CPU device does not run it, or not with these modifiers or types.
    """
    refused = rejection(instruction)
    if refused is not None:
        raise refused
    function = LOWERINGS.get(instruction.opcode.base)
    if function is None:
        raise reject(instruction, "unknown opcode")
    function(thread, instruction)
