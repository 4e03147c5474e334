"""One PTX thread's registers and addresses, as the instruction lowerings use them.

`Thread` connects two halves of the CPU code generator: the lowerings in `gpud.device.cpu.lower`
(what an instruction computes), and the regions, functions and stages in this package (when it runs,
and where values are stored). A lowering reads operands with `read`, writes results with `write`,
and turns addresses into LLVM pointers with `pointer`.

PTX registers are stack slots that LLVM promotes to values. A slot is a float if the program uses
the register as ``f32``/``f64``, otherwise an integer of the register's width: since CUDA 12.9 NVRTC
declares floating-point registers as ``.b32``, so the declaration alone is not enough.

State spaces: generic, global, const, param and local addresses are host addresses. A shared address
is an offset from the block's shared memory, of 32 bits: of a 64-bit register only the low half
counts, as on a GPU. NVRTC relies on that, for example for ``s[~u]``.

Source: PTX ISA 9.0, chapters 5 and 9.4 (operand sizes exceeding the instruction's).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Protocol

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["LLVM_TYPE", "SHARED_MASK", "Addresses", "Thread", "width", "zero"]

LLVM_TYPE: Mapping[str, str] = {
    "pred": "i1",
    **{f"{kind}{bits}": f"i{bits}" for kind in "bsu" for bits in (8, 16, 32, 64)},
    "b128": "i128",
    "f16": "half",
    "bf16": "bfloat",
    "f32": "float",
    "f64": "double",
    # Packed halves and bytes are handled as bits; lowerings bitcast them to vectors.
    **dict.fromkeys(("f16x2", "bf16x2", "s16x2", "u16x2", "tf32", "e4m3x4", "e5m2x4"), "i32"),
    "e4m3x2": "i16",
    "e5m2x2": "i16",
}
"""LLVM type of a value of a PTX type in lowerings."""

SHARED_MASK = 0xFFFFFFFF
"""The bits of a shared address that count."""

_WIDTH = {"i1": 1, "half": 16, "bfloat": 16, "float": 32, "double": 64, "ptr": 64}


def width(llvm_type: str) -> int:
    """Return the bits of a scalar LLVM type."""
    return _WIDTH.get(llvm_type) or int(llvm_type[1:])


def zero(llvm_type: str) -> str:
    """Return the zero of a scalar LLVM type."""
    return {"i": "0", "p": "null"}.get(llvm_type[0], "0.0")


class Addresses(Protocol):
    """The values of a thread's special registers, and the addresses of symbols and state spaces."""

    def special(self, name: str) -> tuple[str, str]:
        """Return (value, LLVM integer type) of a special register such as ``%tid.x``."""

    def symbol(self, name: str) -> str:
        """Return the i64 address of a variable, parameter or function, in its own state space."""

    def shared_base(self) -> str:
        """Return a ``ptr`` to the block's shared memory."""

    def shared_size(self) -> str:
        """Return the size in bytes (i64) of the block's shared memory, static and dynamic."""

    def local_range(self) -> tuple[str, str]:
        """Return (i64 first address, i64 size in bytes) of all local memory of the block."""

    def const_range(self) -> tuple[str, str]:
        """Return (i64 first address, i64 size in bytes) of the module's constant memory."""

    def param_range(self) -> tuple[str, str]:
        """Return (i64 first address, i64 size in bytes) of the kernel's parameters."""


class Thread:
    """The registers of one thread inside one LLVM function.

    Args:
        storage: PTX register name -> LLVM type of its slot.
        addresses: special registers, symbols and state spaces.
        tags: metadata for every plain access of user memory, with its comma.
        ordered_tags: likewise for volatile and atomic accesses, which must stay in order.
    """

    def __init__(
        self,
        emitter: Emitter,
        storage: Mapping[str, str],
        addresses: Addresses,
        tags: str = "",
        ordered_tags: str = "",
    ) -> None:
        self.emitter = emitter
        self.storage = storage
        self.addresses = addresses
        self.tags = tags
        self.ordered_tags = ordered_tags
        self.parallel = ", !llvm.access.group !4"
        self.opaque_registers: frozenset[str] | set[str] = frozenset()
        """Integer registers whose computation is hidden from LLVM; see `_opaque`."""
        self.noncanonical: frozenset[str] = frozenset()
        """Float registers that may hold a NaN other than the GPU's canonical one."""
        self.exact = True
        """Whether values read now must have the bits that a GPU would produce."""
        self.wraps_shared = False
        """Whether 64-bit shared addresses may have more than 32 bits here. It is false where they
        were tested to lie in the block's shared memory as they are: LLVM vectorises these better.
        """
        self._slots: dict[str, str] = {}

    # -- registers

    def slot(self, name: str) -> str:
        """Return the stack slot of a register, created on first use."""
        slot = self._slots.get(name)
        if slot is None:
            slot = self._slots[name] = f"%R.{name.lstrip('%').replace('%', '_')}"
            self.emitter.named_alloca(slot, self.storage[name])
        return slot

    def redirect(self, name: str, slot: str) -> None:
        """Use another stack slot for a register from here on."""
        self._slots[name] = slot

    def read(self, operand: ptx.Operand, type_: str) -> str:
        """Return the value of an operand as ``LLVM_TYPE[type_]``.

        A register wider than the type is truncated, a narrower one zero-extended.
        """
        match operand:
            case ptx.Register(name):
                stored = self.storage[name]
                value = self.emitter.value(f"load {stored}, ptr {self.slot(name)}")
                if name in self.opaque_registers and stored in ("i16", "i32", "i64"):
                    value = self._opaque(value, stored)
                if self.exact and name in self.noncanonical:
                    value = self._canonical(value)
                return self.convert(value, stored, LLVM_TYPE[type_])
            case ptx.Immediate():
                return self._immediate(operand, type_)
            case ptx.SpecialRegister(name):
                value, given = self.addresses.special(name)
                return self.convert(value, given, LLVM_TYPE[type_])
            case ptx.Not(register):
                return self.emitter.value(f"xor i1 {self.read(register, 'pred')}, true")
            case ptx.Symbol(name):
                return self.convert(self.addresses.symbol(name), "i64", LLVM_TYPE[type_])
            case ptx.SymbolOffset(symbol, offset):
                base = self.addresses.symbol(symbol.name)
                total = self.emitter.value(f"add i64 {base}, {offset}")
                return self.convert(total, "i64", LLVM_TYPE[type_])
        raise TypeError(f"{operand!r} cannot be read as .{type_}")

    def _canonical(self, value: str) -> str:
        """Return ``value``, with any NaN replaced by the GPU's canonical one, 0x7fffffff."""
        nan = self.emitter.value(f"fcmp uno float {value}, {value}")
        one = "bitcast (i32 2147483647 to float)"
        return self.emitter.value(f"select i1 {nan}, float {one}, float {value}")

    def _opaque(self, value: str, type_: str) -> str:
        """Hide from LLVM how ``value`` was computed.

        LLVM 22 models the low bits of a loop's index (``tid & 3``) as a narrow index that wraps. It
        may take an address made of them for one with a constant stride, provided that the narrow
        index does not wrap; in loops marked as parallel it then loses that proviso.
        """
        name = f"@gpud_ones_{type_}"
        self.emitter.module.declare(f"{name} = global {type_} -1")
        ones = self.emitter.value(f"load {type_}, ptr {name}, !invariant.load !0{self.parallel}")
        return self.emitter.value(f"and {type_} {value}, {ones}")

    def write(self, operand: ptx.Operand, type_: str, value: str) -> None:
        """Store ``value`` (of ``LLVM_TYPE[type_]``) in a register; ``_`` discards it.

        A wider register gets the value sign-extended for ``s`` types, else zero-extended.
        """
        if isinstance(operand, ptx.Symbol) and operand.name == "_":
            return
        if not isinstance(operand, ptx.Register):
            raise TypeError(f"{operand!r} cannot be written")
        stored = self.storage[operand.name]
        value = self.convert(value, LLVM_TYPE[type_], stored, signed=type_[0] == "s")
        self.emitter.do(f"store {stored} {value}, ptr {self.slot(operand.name)}")

    def convert(self, value: str, given: str, wanted: str, *, signed: bool = False) -> str:
        """Reinterpret bits: bitcast between equal widths, truncate or extend otherwise."""
        if given == wanted:
            return value
        narrow, wide = width(given), width(wanted)
        if given == "ptr":
            value, given = self.emitter.value(f"ptrtoint ptr {value} to i64"), "i64"
        if wanted == "ptr":
            value = self.convert(value, given, "i64", signed=signed)
            return self.emitter.value(f"inttoptr i64 {value} to ptr")
        if given[0] != "i":
            value = self.emitter.value(f"bitcast {given} {value} to i{narrow}")
        if narrow != wide:
            how = "trunc" if narrow > wide else "sext" if signed else "zext"
            value = self.emitter.value(f"{how} i{narrow} {value} to i{wide}")
        if wanted[0] != "i":
            value = self.emitter.value(f"bitcast i{wide} {value} to {wanted}")
        return value

    def _immediate(self, literal: ptx.Immediate, type_: str) -> str:
        llvm = LLVM_TYPE[type_]
        bits = literal.value
        if literal.kind == "f64" and llvm in ("float", "i32"):
            # A decimal or 0d literal where single precision is wanted is rounded to it.
            number = struct.unpack("<d", struct.pack("<Q", bits))[0]
            bits = struct.unpack("<I", struct.pack("<f", number))[0]
        elif literal.kind == "int" and llvm in ("float", "double"):
            packed = struct.pack("<f" if llvm == "float" else "<d", float(bits))
            bits = int.from_bytes(packed, "little")
        if llvm == "i1":
            return "true" if bits else "false"
        bits &= (1 << width(llvm)) - 1
        if llvm[0] == "i":
            return str(bits)
        return f"bitcast (i{width(llvm)} {bits} to {llvm})"

    # -- memory

    def pointer(self, address: ptx.Operand, space: str) -> str:
        """Return the ``ptr`` for ``[base+offset]`` in a state space ("" is generic)."""
        if not isinstance(address, ptx.Address):
            raise TypeError(f"{address!r} is not an address")
        base, offset = address.base, address.offset
        if isinstance(base, ptx.Register) and self.storage[base.name] == "ptr":
            if not space.startswith("shared"):
                pointer = self.emitter.value(f"load ptr, ptr {self.slot(base.name)}")
                if offset:
                    pointer = self.emitter.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
                return pointer
        number = "0" if base is None else self.read(base, "u64")
        if space.startswith("shared"):
            if self.wraps_shared and self.is_wide(base):
                if offset:
                    number = self.emitter.value(f"add i64 {number}, {offset}")
                number, offset = self.emitter.value(f"and i64 {number}, {SHARED_MASK}"), 0
            pointer = self.emitter.value(
                f"getelementptr i8, ptr {self.addresses.shared_base()}, i64 {number}"
            )
        else:
            pointer = self.emitter.value(f"inttoptr i64 {number} to ptr")
        if offset:
            pointer = self.emitter.value(f"getelementptr i8, ptr {pointer}, i64 {offset}")
        return pointer

    def is_wide(self, base: ptx.Operand | None) -> bool:
        """Return whether ``base`` is a register of 64 bits."""
        return isinstance(base, ptx.Register) and self.storage[base.name] in ("i64", "ptr")

    # -- the carry flag of add.cc, addc, sub.cc, subc, mad.cc, madc

    def read_carry(self) -> str:
        """Return CC.CF as an i1."""
        return self.emitter.value(f"load i1, ptr {self.slot('%CC.CF')}")

    def write_carry(self, value: str) -> None:
        """Set CC.CF from an i1."""
        self.emitter.do(f"store i1 {value}, ptr {self.slot('%CC.CF')}")
