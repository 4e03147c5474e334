"""What the functions of the scheduler share: access to a block's header and base arrays.

They are compiled once, for blocks of any size: offsets follow from the size in the header.
"""

from __future__ import annotations

from gpud.device.cpu.codegen.emit.emitter import Emitter, IRModule
from gpud.device.cpu.codegen.layout import (
    BASE_ARRAYS,
    HEADER,
    HEADER_SIZE,
    STATE_STATUS_SHIFT,
    base_array_offset,
)

__all__ = ["CUT_MASK", "BlockFunctions"]

CUT_MASK = (1 << STATE_STATUS_SHIFT) - 1
"""The part of a state word that names a block of the kernel."""


class BlockFunctions:
    """Writes functions on a resident block ``%b``.

    In each, ``threads`` and ``padded`` are values of the block at hand, loaded by `begin`.
    """

    def __init__(self, ir: IRModule) -> None:
        self.ir = ir
        self.threads = ""
        self.padded = ""

    def begin(self, header: str) -> Emitter:
        """A new function with a first argument ``ptr %b``."""
        e = Emitter(self.ir, f"{header} nounwind")
        self.threads = e.value(f"load i32, ptr {self.header(e, 'threads')}")
        self.padded = e.value(f"load i32, ptr {self.header(e, 'padded')}")
        return e

    # -- small accesses

    def slot(self, e: Emitter, name: str, thread: str) -> str:
        """``ptr`` to the element of a base array for a thread (i32)."""
        unit = base_array_offset(name)
        at = e.value(f"mul i32 {self.padded}, {unit}")
        at = e.value(f"add i32 {at}, {HEADER_SIZE}")
        base = e.value(f"getelementptr i8, ptr %b, i32 {at}")
        return e.value(f"getelementptr {BASE_ARRAYS[name]}, ptr {base}, i32 {thread}")

    def load(self, e: Emitter, name: str, thread: str) -> str:
        """The element of a base array for a thread (i32)."""
        return e.value(f"load {BASE_ARRAYS[name]}, ptr {self.slot(e, name, thread)}")

    def store(self, e: Emitter, name: str, thread: str, value: str) -> None:
        """Set the element of a base array for a thread (i32)."""
        e.do(f"store {BASE_ARRAYS[name]} {value}, ptr {self.slot(e, name, thread)}")

    def function(self, e: Emitter, name: str) -> str:
        """One of the kernel's own functions."""
        return e.value(f"load ptr, ptr {self.header(e, name)}")

    def status(self, e: Emitter, state: str) -> str:
        """What the thread with this state word is doing: a `Status` as i32."""
        return e.value(f"lshr i32 {state}, {STATE_STATUS_SHIFT}")

    def header(self, e: Emitter, name: str) -> str:
        """``ptr`` to a header field."""
        return e.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")
