"""Replaces the draft code of kernels by their final code, while blocks run in it.

Problem: LLVM takes a second or more for a large kernel, and its first launch waits for that. Most
of the time goes into making the code fast; code that is only right is there in a tenth of the time,
and runs several times slower.

Approach: a kernel for which LLVM would take long is first compiled as a *draft*
(`gpud.device.cpu.program.compile_request`). Blocks begin in it at once. A thread has the final code
made, and then replaces the addresses of the draft's functions: in what later launches copy their
blocks' headers from, and in the headers of blocks that are resident. A block reads its functions'
addresses in its header each time that it gets its turn, which is at a barrier, and so at a task
block's end, once in 0.4 ms at the latest if it gets there.

Why a block may change in the middle of a task block: both codes are made from the same LLVM IR, in
which all that a block keeps from one turn to the next is in memory, in the same places; no address
of code is among it. Functions of the draft and the final ones may be mixed, too.

Why a header is changed by compare-and-swap: its SM's thread may be writing those of another kernel
there. Who is too late to be changed runs in the draft until its next launch.

Properties:
* ``right``: results do not depend on when code is replaced, or whether;
* ``alive``: a draft lives as long as its kernel: blocks may be in it;
* ``one at a time``: final code is made in the order of first launches, by one thread;
* a kernel whose final code cannot be made keeps its draft.
"""

from __future__ import annotations

import ctypes
import logging
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from gpud.device import jit
from gpud.errors import GpudError

if TYPE_CHECKING:
    from gpud.device.cpu.program.compile_request import CompileResult, KernelCompiler

__all__ = ["Draft", "Finisher", "replace_words"]

_LOG = logging.getLogger(__name__)

_IR = """
define void @gpud_replace(ptr %words, i64 %old, i64 %new) {
  %done = cmpxchg ptr %words, i64 %old, i64 %new seq_cst monotonic
  ret void
}
"""


class Draft(Protocol):
    """A kernel that has a draft; see `gpud.device.cpu.program.module.CPUKernel`."""

    name: str

    def final_code(self, block: tuple[int, int, int]) -> CompileResult:
        """Have the final code for a block shape made; blocks."""

    def finish(
        self, block: tuple[int, int, int], native: CompileResult, headers: Sequence[int]
    ) -> None:
        """Replace the draft for a block shape, also in what runs."""


@cache
def _replace() -> tuple[Any, jit.NativeCode]:
    code = jit.assemble(_IR, ("gpud_replace",))
    kind = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    return code.function("gpud_replace", kind), code


def replace_words(addresses: Iterable[int], changes: Iterable[tuple[int, int]]) -> None:
    """Replace 64-bit words atomically.

    Args:
        addresses: of the words, multiples of 8.
        changes: for each word its old value and its new one; another value stays.
    """
    replace, _ = _replace()
    for address, (old, new) in zip(addresses, changes, strict=True):
        replace(address, old, new)


class Finisher:
    """Has the final code of kernels made that run in drafts, on a thread of its own.

    Args:
        compiler: makes final code.
        headers: returns the addresses of the headers of all blocks, which stay valid as long as
            what it returns with them is kept.
    """

    def __init__(
        self, compiler: KernelCompiler, headers: Callable[[], tuple[list[int], object]]
    ) -> None:
        self.compiler = compiler
        self._headers = headers
        self._wanted: queue.SimpleQueue[tuple[weakref.ref[Draft], tuple[int, int, int]] | None]
        self._wanted = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, kernel: Draft, block: tuple[int, int, int]) -> None:
        """Have the final code of a kernel for a block shape made; returns at once."""
        if self._closed:
            return
        self._wanted.put((weakref.ref(kernel), block))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="finish code", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Replace no more code; does not wait for what is being made."""
        self._closed = True
        self._wanted.put(None)

    def _run(self) -> None:
        while (wanted := self._wanted.get()) is not None and not self._closed:
            kernel = wanted[0]()
            if kernel is None:
                continue
            try:
                native = kernel.final_code(wanted[1])
            except GpudError as error:
                _LOG.warning("%s keeps its draft code: %s", kernel.name, error)
                continue
            if not self._closed:
                addresses, kept = self._headers()
                kernel.finish(wanted[1], native, addresses)
                del kept
