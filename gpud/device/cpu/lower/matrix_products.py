"""Reads the matrix products of tensor cores: ``mma`` and ``wmma.mma``, and where elements are.

Terms: a *fragment* is the part of a matrix that one lane holds; a *slot* is the place of an element
in a lane's fragment, packed from the low bits of its first register on.

``mma``: the ISA's tables. With g = lane / 4 and t = lane % 4, a register of A has the elements of
row g (or g + 8) from column t times the elements of a register on; B is the same by columns; the
accumulators are pairs of neighbours in rows g and g + 8. ``wmma``: the ISA leaves it open. Here the
lanes have successive pieces of the lines in which a matrix is stored, and of the rows of an
accumulator; where 32 lanes have more slots than the matrix has elements, these repeat.

Source: PTX ISA 9.0, sections 9.7.14.4 (``wmma``) and 9.7.14.5 (``mma``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpud.compiler.ptx.model import Instruction, Vector
from gpud.device.cpu.lower.registry import Modifiers, rejected

__all__ = ["BITS", "Fragment", "MatrixProduct", "is_product", "matrix_product", "wmma_fragment"]

BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "s32": 32, "s8": 8, "u8": 8,
    "e4m3": 8, "e5m2": 8, "s4": 4, "u4": 4, "b1": 1,
}  # fmt: skip
_LANES = 32
_WORD = 32

_HALVES = ("m16n8k8", "m16n8k16")
_BYTES = ("m8n8k16", "m16n8k16", "m16n8k32")
_NIBBLES = ("m8n8k32", "m16n8k32", "m16n8k64")
_MMA_SHAPES = {
    "f16": _HALVES,
    "bf16": _HALVES,
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    **dict.fromkeys(("s8", "u8"), _BYTES),
    **dict.fromkeys(("e4m3", "e5m2"), ("m16n8k16", "m16n8k32")),
    **dict.fromkeys(("s4", "u4"), _NIBBLES),
    "b1": ("m8n8k128", "m16n8k128", "m16n8k256"),
}
_WMMA_WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")
_WMMA_SHAPES = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _WMMA_WIDE),
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
    **dict.fromkeys(("s4", "u4"), ("m8n8k32",)),
    "b1": ("m8n8k128",),
}
_ACCUMULATORS = {
    "f16": ("f16", "f32"),
    **dict.fromkeys(("e4m3", "e5m2"), ("f16", "f32")),
    **dict.fromkeys(("bf16", "tf32"), ("f32",)),
    "f64": ("f64",),
    **dict.fromkeys(("s8", "u8", "s4", "u4", "b1"), ("s32",)),
}
_SIGNLESS = {"u8": "s8", "u4": "s4", "e5m2": "e4m3"}
"""Types of A and B that go together."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """How the lanes of a warp hold a matrix.

    Attributes:
        slots: Elements in a lane.
        lines: ``row`` or ``col``: how ``wmma`` deals them out; empty: as ``mma`` has it.
        role: ``a``, ``b`` or ``c``.
    """

    rows: int
    columns: int
    type: str
    slots: int
    lines: str
    role: str

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return BITS[self.type]

    @property
    def words(self) -> int:
        """Words of 32 bits in a lane."""
        return self.slots * self.bits // _WORD

    def place(self, lane: int, slot: int) -> tuple[int, int]:
        """Return the row and the column of an element."""
        if self.lines:
            length = self.columns if self.lines == "row" else self.rows
            line, at = divmod((lane * self.slots + slot) % (self.rows * self.columns), length)
            return (line, at) if self.lines == "row" else (at, line)
        group, thread = divmod(lane, 4)
        if self.role == "c":
            return group + 8 * (slot >> 1), 2 * thread + (slot & 1)
        packed = max(1, _WORD // self.bits)
        register, at = divmod(slot, packed)
        if self.role == "b":
            return (4 * register + thread) * packed + at, group
        if self.rows == 8:
            return group, (4 * register + thread) * packed + at
        return group + 8 * (register & 1), (4 * (register >> 1) + thread) * packed + at

    def elements(self) -> Iterator[tuple[int, int]]:
        """Yield for each element, row by row, its bit in a warp's words, and the lane.

        The first number counts from the lane's first word. Of elements that are held several times
        the first place counts.
        """
        places: dict[tuple[int, int], tuple[int, int]] = {}
        for lane in range(_LANES):
            for slot in range(self.slots):
                places.setdefault(self.place(lane, slot), (slot * self.bits, lane))
        for row in range(self.rows):
            for column in range(self.columns):
                yield places[row, column]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """D = A B + C, as one instruction computes it.

    ``operation`` is ``mul``, or ``xor`` or ``and`` of single bits.
    """

    a: Fragment
    b: Fragment
    c: Fragment
    d: Fragment
    operation: str
    saturates: bool

    @property
    def words(self) -> int:
        """Words of all operands in a lane."""
        return self.a.words + self.b.words + self.c.words


def is_product(ins: Instruction) -> bool:
    """Return whether ``ins`` is ``mma`` or ``wmma.mma``."""
    return ins.opcode.base == "mma" or (
        ins.opcode.base == "wmma" and ins.opcode.modifiers[:1] == ("mma",)
    )


def matrix_product(ins: Instruction) -> MatrixProduct:
    """Return the product that an instruction computes.

    Raises:
        KernelRejected: the CPU device does not have it, or the ISA does not.
    """
    modifiers = Modifiers(ins)
    fragments = modifiers.flag("mma")
    operation = modifiers.choice("xor", "and", default="mul")
    if operation != "mul":
        modifiers.require("popc")
    modifiers.require("sync")
    modifiers.require("aligned")
    layouts = modifiers.require("row", "col"), modifiers.require("row", "col")
    saturates = modifiers.flag("satfinite")
    modifiers.flag("rn")
    shape = next((one for one in modifiers.rest if re.fullmatch(r"m\d+n\d+k\d+", one)), "")
    if not shape:
        raise rejected(ins, "it has no shape")
    modifiers.rest.remove(shape)
    types = modifiers.rest
    if fragments and len(types) == 2:  # of halves only the accumulators are named
        types = [types[0], "f16", "f16", types[1]]
    if len(types) != 4:
        raise rejected(ins, "it has no four types that are known here")
    d, a, b, c = types
    shapes = (_WMMA_SHAPES if fragments else _MMA_SHAPES).get(a, ())
    if shape not in shapes:
        raise rejected(ins, f".{shape} is not among the shapes for .{a}: {', '.join(shapes)}")
    accumulators = _ACCUMULATORS[a]
    if _SIGNLESS.get(a, a) != _SIGNLESS.get(b, b) or not {c, d} <= set(accumulators):
        raise rejected(ins, "these types do not go together")
    if (operation != "mul") != (a == "b1"):
        raise rejected(ins, ".xor.popc and .and.popc are for .b1, which has no other")
    if saturates and (c != "s32" or a == "b1"):
        raise rejected(ins, ".satfinite is available for integers")
    if not fragments and layouts != ("row", "col"):
        raise rejected(ins, "A is .row and B is .col")
    m, n, k = map(int, re.findall(r"\d+", shape))
    of = wmma_fragment if fragments else _mma_fragment
    product = MatrixProduct(
        of("a", m, k, a, layouts[0]),
        of("b", k, n, b, layouts[1]),
        of("c", m, n, c, "row"),
        of("c", m, n, d, "row"),
        operation,
        saturates,
    )
    given = [len(o.items) if isinstance(o, Vector) else 1 for o in ins.operands]
    parts = (product.d, product.a, product.b, product.c)
    if given != [part.words * _WORD // max(_WORD, part.bits) for part in parts]:
        raise rejected(ins, f"it has {given} registers")
    return product


def wmma_fragment(role: str, rows: int, columns: int, type_: str, lines: str) -> Fragment:
    """Return how ``wmma`` holds a matrix; halves of A and B have 16 slots by the ISA."""
    slots = rows * columns // _LANES
    if type_ == "f16" and role != "c":
        slots = 16
    return Fragment(rows, columns, type_, slots, lines if role != "c" else "row", role)


def _mma_fragment(role: str, rows: int, columns: int, type_: str, _: str) -> Fragment:
    return Fragment(rows, columns, type_, rows * columns // _LANES, "", role)
