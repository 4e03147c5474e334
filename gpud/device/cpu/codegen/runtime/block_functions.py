"""Access to a block's header and base arrays, shared by the functions of the thread scheduler.

They are compiled once, for blocks of any size: offsets are computed from the size in the header.
"""

from __future__ import annotations

from gpud.device.cpu.abi.layout import (
    BASE_ARRAYS,
    HEADER,
    HEADER_SIZE,
    STATE_STATUS_SHIFT,
    base_array_offset,
)
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["CUT_MASK", "BlockFunctions"]

CUT_MASK = (1 << STATE_STATUS_SHIFT) - 1
"""The bits of a state word that hold the number of the kernel's block."""


class BlockFunctions:
    """Base class of writers of functions on a resident block ``%b``.

    `begin` loads ``threads`` and ``padded`` of that block for each function.
    """

    def __init__(self, ir: IRModule) -> None:
        self.ir = ir
        self.threads = ""
        self.padded = ""

    def begin(self, header: str) -> Emitter:
        """Begin a function whose first parameter is ``ptr %b``."""
        e = Emitter(self.ir, f"{header} nounwind")
        self.threads = e.value(f"load i32, ptr {self.header(e, 'threads')}")
        self.padded = e.value(f"load i32, ptr {self.header(e, 'padded')}")
        return e

    # -- small accesses

    def slot(self, e: Emitter, name: str, thread: str) -> str:
        """``ptr`` to the element of thread ``thread`` (i32) in a base array."""
        unit = base_array_offset(name)
        at = e.value(f"mul i32 {self.padded}, {unit}")
        at = e.value(f"add i32 {at}, {HEADER_SIZE}")
        base = e.value(f"getelementptr i8, ptr %b, i32 {at}")
        return e.value(f"getelementptr {BASE_ARRAYS[name]}, ptr {base}, i32 {thread}")

    def load(self, e: Emitter, name: str, thread: str) -> str:
        """Load the element of thread ``thread`` (i32) of a base array."""
        return e.value(f"load {BASE_ARRAYS[name]}, ptr {self.slot(e, name, thread)}")

    def store(self, e: Emitter, name: str, thread: str, value: str) -> None:
        """Store to the element of thread ``thread`` (i32) of a base array."""
        e.do(f"store {BASE_ARRAYS[name]} {value}, ptr {self.slot(e, name, thread)}")

    def function(self, e: Emitter, name: str) -> str:
        """Load the address of one of the kernel's own functions or tables."""
        return e.value(f"load ptr, ptr {self.header(e, name)}")

    def status(self, e: Emitter, state: str) -> str:
        """The `Status` (i32) in a state word."""
        return e.value(f"lshr i32 {state}, {STATE_STATUS_SHIFT}")

    def header(self, e: Emitter, name: str) -> str:
        """``ptr`` to a header field."""
        return e.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")
