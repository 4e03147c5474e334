"""Arithmetic on 64-bit values in the checking mode's code: terser than an emitter's text."""

from __future__ import annotations

from gpud.device.cpu.abi.layout import HEADER
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["Words"]


class Words:
    """An emitter whose values are i64, and whose addresses are numbers.

    Args:
        emitter: of a function whose first argument is ``ptr %b``, the block.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter

    # -- arithmetic

    def op(self, name: str, left: object, right: object) -> str:
        """Return ``left name right``."""
        return self.emitter.value(f"{name} i64 {left}, {right}")

    def add(self, left: object, right: object) -> str:
        """Return the sum."""
        return self.op("add", left, right)

    def sub(self, left: object, right: object) -> str:
        """Return the difference."""
        return self.op("sub", left, right)

    def mul(self, left: object, right: object) -> str:
        """Return the product."""
        return self.op("mul", left, right)

    def bits(self, value: object, shift: int, mask: int) -> str:
        """Return ``value >> shift & mask``."""
        shifted = self.op("lshr", value, shift) if shift else value
        return self.op("and", shifted, mask)

    def test(self, comparison: str, left: object, right: object) -> str:
        """Return an i1: the result of ``icmp``."""
        return self.emitter.value(f"icmp {comparison} i64 {left}, {right}")

    def both(self, *conditions: str) -> str:
        """Return an i1: whether all hold."""
        return self._joined("and", conditions)

    def either(self, *conditions: str) -> str:
        """Return an i1: whether one holds."""
        return self._joined("or", conditions)

    def negated(self, condition: str) -> str:
        """Return the i1's opposite."""
        return self.emitter.value(f"xor i1 {condition}, true")

    def _joined(self, name: str, conditions: tuple[str, ...]) -> str:
        result = conditions[0]
        for condition in conditions[1:]:
            result = self.emitter.value(f"{name} i1 {result}, {condition}")
        return result

    def choose(self, condition: str, yes: object, no: object) -> str:
        """Return one of two values."""
        return self.emitter.value(f"select i1 {condition}, i64 {yes}, i64 {no}")

    def widened(self, value: str) -> str:
        """Return an i32 as a value, without sign."""
        return self.emitter.value(f"zext i32 {value} to i64")

    # -- memory

    def pointer(self, address: object) -> str:
        """Return an address as a ``ptr``."""
        return self.emitter.value(f"inttoptr i64 {address} to ptr")

    def load(self, address: object, type_: str = "i64") -> str:
        """Return what is at an address, widened."""
        pointer = self.pointer(address)
        order = "monotonic, align " + {"i8": "1", "i32": "4", "i64": "8"}[type_]
        value = self.emitter.value(f"load atomic {type_}, ptr {pointer} {order}")
        return value if type_ == "i64" else self.emitter.value(f"zext {type_} {value} to i64")

    def store(self, value: object, address: object, type_: str = "i64") -> None:
        """Write the low bits of a value to an address."""
        pointer = self.pointer(address)
        if type_ != "i64":
            value = self.emitter.value(f"trunc i64 {value} to {type_}")
        align = {"i8": 1, "i32": 4, "i64": 8}[type_]
        self.emitter.do(f"store atomic {type_} {value}, ptr {pointer} monotonic, align {align}")

    def counted(self, address: object) -> str:
        """Add 1 to a word; return what it was."""
        pointer = self.pointer(address)
        return self.emitter.value(f"atomicrmw add ptr {pointer}, i64 1 acq_rel")

    # -- the block

    def block(self, offset: int) -> str:
        """Return the address of a byte of the block."""
        return self.add(self.emitter.value("ptrtoint ptr %b to i64"), offset)

    def header(self, name: str) -> str:
        """Return a field of the block's header."""
        offset, type_ = HEADER[name]
        pointer = self.emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
        value = self.emitter.value(f"load {type_}, ptr {pointer}")
        if type_ == "ptr":
            return self.emitter.value(f"ptrtoint ptr {value} to i64")
        return value if type_ == "i64" else self.widened(value)
