"""LLVM values with operators that emit the corresponding instructions.

Lowerings are mostly bit arithmetic, which as lines of LLVM text is hard to review. A `Value` is
an SSA value with its type; its operators emit the instruction and return the result, so a lowering
reads like the formula in the ISA: ``((a & b) + c).trunc("i16")``. A Python int or float operand is
a constant of the same type.

Only scalar types occur: the code generator puts the result into loops over threads, and LLVM's
loop vectoriser skips a loop that already holds vector instructions. For the same reason conditions
become `Value.select`, never branches.

Floating-point operations carry no fast-math flags: LLVM must neither contract nor reorder them.

Terms: comparisons are named by predicate (``slt`` signed less than, ``olt`` ordered less than,
``uno`` either is NaN), as in the LLVM language reference.
"""

from __future__ import annotations

import struct

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread, width

__all__ = ["Number", "Value", "call", "constant", "intrinsic", "read", "write"]

Number = int | float

_INT_OF = {"half": "i16", "bfloat": "i16", "float": "i32", "double": "i64"}
_FLOATS = frozenset(_INT_OF)


class Value:
    """One SSA value, or constant, of a scalar LLVM type."""

    __slots__ = ("emitter", "text", "type")

    def __init__(self, emitter: Emitter, type_: str, text: str) -> None:
        self.emitter = emitter
        self.type = type_
        self.text = text

    # -- making values

    @property
    def width(self) -> int:
        """Bits of the type."""
        return width(self.type)

    def constant(self, number: Number) -> Value:
        """Return ``number`` as a constant of this value's type."""
        return constant(self.emitter, self.type, number)

    def _new(self, type_: str, text: str) -> Value:
        return Value(self.emitter, type_, self.emitter.value(text))

    def _text(self, other: Value | Number) -> str:
        if isinstance(other, Value):
            assert other.type == self.type, f"{other.type} beside {self.type}"
            return other.text
        return self.constant(other).text

    def op(self, name: str, other: Value | Number) -> Value:
        """Return the LLVM instruction ``name`` on this value and ``other``."""
        return self._new(self.type, f"{name} {self.type} {self.text}, {self._text(other)}")

    # -- arithmetic: integer or floating point by the type

    def _either(self, integer: str, other: Value | Number) -> Value:
        return self.op("f" + integer if self.type in _FLOATS else integer, other)

    def __add__(self, other: Value | Number) -> Value:
        return self._either("add", other)

    def __sub__(self, other: Value | Number) -> Value:
        return self._either("sub", other)

    def __mul__(self, other: Value | Number) -> Value:
        return self._either("mul", other)

    def __truediv__(self, other: Value | Number) -> Value:
        return self.op("fdiv", other)

    def __neg__(self) -> Value:
        if self.type in _FLOATS:
            return self._new(self.type, f"fneg {self.type} {self.text}")
        return self.constant(0) - self

    def __and__(self, other: Value | Number) -> Value:
        return self.op("and", other)

    def __or__(self, other: Value | Number) -> Value:
        return self.op("or", other)

    def __xor__(self, other: Value | Number) -> Value:
        return self.op("xor", other)

    def __invert__(self) -> Value:
        return self.op("xor", -1)

    def __lshift__(self, other: Value | Number) -> Value:
        return self.op("shl", other)

    def __rshift__(self, other: Value | Number) -> Value:
        """Shift right logically (`sar`: arithmetically). Shifts by the width are poison."""
        return self.op("lshr", other)

    def sar(self, other: Value | Number) -> Value:
        """Shift right arithmetically."""
        return self.op("ashr", other)

    def unary(self, name: str) -> Value:
        """Return the LLVM intrinsic ``llvm.<name>`` of this value."""
        return intrinsic(name, self)

    def fma(self, factor: Value | Number, addend: Value | Number) -> Value:
        """Return ``self * factor + addend``, rounded once."""
        return intrinsic("fma", self, self._value(factor), self._value(addend))

    def _value(self, other: Value | Number) -> Value:
        return other if isinstance(other, Value) else self.constant(other)

    def min_s(self, other: Value | Number) -> Value:
        """Return the smaller, as signed integers."""
        return intrinsic("smin", self, self._value(other))

    def max_s(self, other: Value | Number) -> Value:
        """Return the larger, as signed integers."""
        return intrinsic("smax", self, self._value(other))

    def min_u(self, other: Value | Number) -> Value:
        """Return the smaller, as unsigned integers."""
        return intrinsic("umin", self, self._value(other))

    def max_u(self, other: Value | Number) -> Value:
        """Return the larger, as unsigned integers."""
        return intrinsic("umax", self, self._value(other))

    # -- comparisons, as i1

    def compare(self, predicate: str, other: Value | Number) -> Value:
        """Compare by ``icmp`` or ``fcmp`` with an LLVM predicate."""
        name = "fcmp" if self.type in _FLOATS else "icmp"
        return self._new("i1", f"{name} {predicate} {self.type} {self.text}, {self._text(other)}")

    def eq(self, other: Value | Number) -> Value:
        """Return whether both are equal; for floats ordered and equal."""
        return self.compare("oeq" if self.type in _FLOATS else "eq", other)

    def ne(self, other: Value | Number) -> Value:
        """Return whether both differ; for floats also true when either is NaN."""
        return self.compare("une" if self.type in _FLOATS else "ne", other)

    def is_nan(self) -> Value:
        """Return whether a float is NaN."""
        return self.compare("uno", 0.0)

    def select(self, yes: Value | Number, no: Value | Number) -> Value:
        """Return ``yes`` where this i1 is true, else ``no``; at least one is a `Value`."""
        if not isinstance(yes, Value):
            assert isinstance(no, Value)
            yes = no.constant(yes)
        no = yes._value(no)
        assert yes.type == no.type, f"{yes.type} or {no.type}"
        return self._new(
            yes.type, f"select i1 {self.text}, {yes.type} {yes.text}, {no.type} {no.text}"
        )

    # -- conversions

    def cast(self, name: str, type_: str) -> Value:
        """Return the LLVM conversion ``name`` (``zext``, ``fptrunc``, ...) to ``type_``."""
        if type_ == self.type:
            return self
        return self._new(type_, f"{name} {self.type} {self.text} to {type_}")

    def zext(self, type_: str) -> Value:
        """Zero-extend an integer, unless it has that type."""
        return self.cast("zext", type_)

    def sext(self, type_: str) -> Value:
        """Sign-extend an integer, unless it has that type."""
        return self.cast("sext", type_)

    def trunc(self, type_: str) -> Value:
        """Truncate an integer to its low bits, unless it has that type."""
        return self.cast("trunc", type_)

    def bits(self) -> Value:
        """Return the bits as an integer of the same width."""
        return self.cast("bitcast", _INT_OF.get(self.type, self.type))

    def as_type(self, type_: str) -> Value:
        """Return the same bits as another type of the same width."""
        return self.cast("bitcast", type_)


def constant(emitter: Emitter, type_: str, number: Number) -> Value:
    """Return ``number`` as a constant, rounded to the nearest value of its type."""
    if type_ == "i1":
        return Value(emitter, type_, "true" if number else "false")
    if type_ in _FLOATS:
        if type_ == "float":
            # LLVM writes floats as the equal double.
            (number,) = struct.unpack("f", struct.pack("f", number))
        return Value(emitter, type_, f"0x{struct.pack('>d', number).hex().upper()}")
    assert isinstance(number, int)
    return Value(emitter, type_, str(number & ((1 << width(type_)) - 1)))


def call(emitter: Emitter, function: str, returns: str, *arguments: Value) -> Value:
    """Call a function of the module that is declared or defined already."""
    given = ", ".join(f"{a.type} {a.text}" for a in arguments)
    return Value(emitter, returns, emitter.value(f"call {returns} @{function}({given})"))


_MANGLED = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}
_IMMEDIATE_ARGUMENT = {"ctlz": "i1 false", "cttz": "i1 false", "abs": "i1 false"}


def intrinsic(name: str, *arguments: Value) -> Value:
    """Call ``llvm.<name>``, overloaded on the type of its first argument.

    ``ctlz`` and ``cttz`` of zero give the width, ``abs`` of the least integer gives itself.
    """
    first = arguments[0]
    result = first.type
    suffix = _MANGLED.get(result, result)
    types = [a.type for a in arguments]
    given = [f"{a.type} {a.text}" for a in arguments]
    if name in _IMMEDIATE_ARGUMENT:
        types.append("i1")
        given.append(_IMMEDIATE_ARGUMENT[name])
    full = f"llvm.{name}.{suffix}"
    first.emitter.module.declare(f"declare {result} @{full}({', '.join(types)})")
    return Value(
        first.emitter, result, first.emitter.value(f"call {result} @{full}({', '.join(given)})")
    )


def read(thread: Thread, operand: ptx.Operand, type_: str) -> Value:
    """Return the value of a PTX operand as a PTX type."""
    return Value(thread.emitter, LLVM_TYPE[type_], thread.read(operand, type_))


def write(thread: Thread, operand: ptx.Operand, type_: str, value: Value) -> None:
    """Write ``value`` to a PTX register as a PTX type."""
    assert value.type == LLVM_TYPE[type_], f"{value.type} for .{type_}"
    thread.write(operand, type_, value.text)
