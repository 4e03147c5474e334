"""From a program's text to the machine code of one kernel, with nothing of a device around it.

Problem: LLVM can take very long over a program, or crash on it, and cannot be interrupted.
Approach: what makes machine code needs no more than what can be sent to another process, and gives
what can be sent back; where it runs is decided by whoever opens the device (`KernelCompiler`).

Properties: what is made depends on `CompileRequest` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpud.device.cpu.codegen.artifact import GeneratedKernel

__all__ = ["CompileRequest", "CompileResult", "KernelCompiler"]

_Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A kernel for one block shape.

    Attributes:
        text: the program, PTX.
        entry: the kernel's name.
        block: threads in x, y and z.
        arena: address and size of the memory that accesses are checked against, if they are.
        heap: address and size of what ``malloc`` gives, if accesses are checked.
    """

    text: str
    entry: str
    block: tuple[int, int, int]
    arena: _Range | None = None
    heap: _Range | None = None


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What a launch needs to know of a kernel, and an object file with its code."""

    generated: GeneratedKernel
    code: bytes


class KernelCompiler(Protocol):
    """Makes machine code, here or elsewhere."""

    def __call__(self, wanted: CompileRequest) -> CompileResult:
        """Make it, or raise `KernelRejected` or another error of gpud's tree; blocks."""

    def warm_up(self) -> None:
        """Get ready, without waiting: a program is loaded, and its kernels will be asked for."""
