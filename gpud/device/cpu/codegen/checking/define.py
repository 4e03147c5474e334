"""Defines what a checked kernel calls, in its own module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.compiler.abi.check_calls import CHECK_PREFIX
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.checking.accesses import define_accesses
from gpud.device.cpu.codegen.checking.ordering import define_ordering
from gpud.device.cpu.codegen.checking.reports import define_report
from gpud.device.cpu.codegen.checking.shuffles import define_shuffles
from gpud.device.cpu.codegen.checking.state import MOST_SHARED_BYTES, block_state

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.kernel_context import KernelContext

__all__ = ["define_checking", "is_checked"]


def is_checked(bodies: list[list[ptx.Statement]]) -> bool:
    """Return whether these are of a program that was compiled for the checking mode."""
    for body in bodies:
        for statement in body:
            if isinstance(statement, ptx.Instruction) and is_call(statement):
                called = callee(statement)
                if isinstance(called, ptx.Symbol) and called.name.startswith(CHECK_PREFIX):
                    return True
    return False


def define_checking(kernel: KernelContext, body: list[ptx.Statement]) -> None:
    """Define the functions for a kernel with an arena, whose prepared body is ``body``."""
    assert kernel.arena is not None
    dynamic = bool(kernel.module.dynamic_names)
    shared_bytes = MOST_SHARED_BYTES if dynamic else kernel.module.shared.size
    state = block_state(kernel.layout, shared_bytes)
    claims = any(
        isinstance(s, ptx.Instruction) and s.opcode.text.startswith("gpud.claim") for s in body
    )
    define_report(kernel.ir, state)
    define_ordering(kernel.ir, state, claims=claims)
    define_accesses(kernel, state)
    define_shuffles(kernel.ir)
