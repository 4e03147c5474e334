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
        emitter = Emitter(self.ir, f"{header} nounwind")
        self.threads = emitter.value(f"load i32, ptr {self.header(emitter, 'threads')}")
        self.padded = emitter.value(f"load i32, ptr {self.header(emitter, 'padded')}")
        return emitter

    # -- small accesses

    def slot(self, emitter: Emitter, name: str, thread: str) -> str:
        """Return a ``ptr`` to the element of thread ``thread`` (i32) in a base array."""
        unit = base_array_offset(name)
        at = emitter.value(f"mul i32 {self.padded}, {unit}")
        at = emitter.value(f"add i32 {at}, {HEADER_SIZE}")
        base = emitter.value(f"getelementptr i8, ptr %b, i32 {at}")
        return emitter.value(f"getelementptr {BASE_ARRAYS[name]}, ptr {base}, i32 {thread}")

    def load(self, emitter: Emitter, name: str, thread: str) -> str:
        """Load the element of thread ``thread`` (i32) of a base array."""
        return emitter.value(f"load {BASE_ARRAYS[name]}, ptr {self.slot(emitter, name, thread)}")

    def store(self, emitter: Emitter, name: str, thread: str, value: str) -> None:
        """Store to the element of thread ``thread`` (i32) of a base array."""
        emitter.do(f"store {BASE_ARRAYS[name]} {value}, ptr {self.slot(emitter, name, thread)}")

    def function(self, emitter: Emitter, name: str) -> str:
        """Load the address of one of the kernel's own functions or tables."""
        return emitter.value(f"load ptr, ptr {self.header(emitter, name)}")

    def status(self, emitter: Emitter, state: str) -> str:
        """Return the `Status` (i32) in a state word."""
        return emitter.value(f"lshr i32 {state}, {STATE_STATUS_SHIFT}")

    def header(self, emitter: Emitter, name: str) -> str:
        """Return a ``ptr`` to a header field."""
        return emitter.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")
