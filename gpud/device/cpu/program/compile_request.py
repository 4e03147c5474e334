"""The request to compile a kernel to machine code, and its result; both can be sent to a process.

Problem: LLVM can take very long over a program, or crash on it, and cannot be interrupted.
Approach: compiling needs nothing that cannot be sent to another process, and neither does its
result contain such; the code that opens the device decides where it runs (`KernelCompiler`).

Properties: the result depends on `CompileRequest` alone, in which no address is, so that it can be
used by other sessions and other daemons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.artifact import GeneratedKernel

__all__ = ["CompileRequest", "CompileResult", "KernelCompiler"]


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """A kernel for one block shape.

    Attributes:
        block: threads in x, y and z.
        arena: the memory that bounds checks allow; None: nothing is checked.
        heap: the heap of ``malloc``; None: the program has none of its own.
    """

    text: str
    entry: str
    block: tuple[int, int, int]
    arena: LinkedMemory | None = None
    heap: LinkedMemory | None = None


@dataclass(frozen=True, slots=True)
class CompileResult:
    """The generated kernel's description, and an object file with its code."""

    generated: GeneratedKernel
    code: bytes


class KernelCompiler(Protocol):
    """Compiles kernels to machine code, in this process or another."""

    def __call__(self, wanted: CompileRequest) -> CompileResult:
        """Compile a kernel; blocks. Raises `KernelRejected` or another `GpudError`."""

    def warm_up(self) -> None:
        """Prepare for requests, without waiting: a program is being loaded."""
