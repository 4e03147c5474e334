"""Lowers PTX instructions to LLVM IR: those that compute, convert or access memory.

`LOWERINGS` maps an opcode base to a function that reads the operands of an instruction through a
`Thread`, emits LLVM IR, and writes the results. The code generator (`gpud.device.cpu.codegen`)
handles control flow, guards, barriers and warp collectives.

Rules for all modules: scalar code without branches only (LLVM then vectorises over threads), no
operations for which a CPU without some extension would need a library call, and no modifier ignored
(`registry.Modifiers`).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.lower import compare  # noqa: F401
from gpud.device.cpu.lower.data_movement import (
    async_copy,  # noqa: F401
    atomics,  # noqa: F401
    load_store,  # noqa: F401
    mbarrier,  # noqa: F401
    moves,  # noqa: F401
    state_spaces,  # noqa: F401
)
from gpud.device.cpu.lower.floats import (
    approximations,  # noqa: F401
    convert,  # noqa: F401
    float_arithmetic,  # noqa: F401
    half_arithmetic,  # noqa: F401
)
from gpud.device.cpu.lower.integers import (
    bits,  # noqa: F401
    division,  # noqa: F401
    dot_product,  # noqa: F401
    integer_arithmetic,  # noqa: F401
    video,  # noqa: F401
)
from gpud.device.cpu.lower.registry import LOWERINGS, Lowering, rejected
from gpud.device.cpu.lower.unsupported import unsupported_error

__all__ = ["LOWERINGS", "Lowering", "lower", "unsupported_error"]


def lower(thread: Thread, instruction: Instruction) -> None:
    """Emit an instruction.

    Raises:
        KernelRejected: the CPU device does not support it, or not with these modifiers or types.
    """
    error = unsupported_error(instruction)
    if error is not None:
        raise error
    function = LOWERINGS.get(instruction.opcode.base)
    if function is None:
        raise rejected(instruction, "unknown opcode")
    function(thread, instruction)
