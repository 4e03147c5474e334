"""Moves, arithmetic and comparisons of integers, for what interprets PTX in tests."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from gpud.compiler.ptx.model import Instruction


def _same(value: int) -> int:
    return value


_COMPUTED: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("mov", "cvt", "cvta"), _same),
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "min": min,
    "mad": lambda a, b, c: a * b + c,
    "rem": operator.mod,
    "not": operator.invert,
    "shl": operator.lshift,
    "shr": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "selp": lambda a, b, p: a if p else b,
}


def is_computed(ins: Instruction) -> bool:
    """Whether `compute` knows it."""
    return ins.opcode.base in _COMPUTED or ins.opcode.base == "setp"


def compute(ins: Instruction, values: Sequence[int]) -> int:
    """The result of one of the instructions `is_computed` with these source operands."""
    opcode, typed, bits = ins.opcode, list(values), width(ins.opcode.modifiers[-1])
    sources = 2 if opcode.base in ("setp", "selp") or opcode.has("wide") else len(typed)
    for n, value in enumerate(typed[:sources]):
        typed[n] = value & (1 << bits) - 1
        if opcode.modifiers[-1][0] == "s" and typed[n] >> (bits - 1):
            typed[n] -= 1 << bits
    if opcode.base == "setp":
        holds = bool(getattr(operator, opcode.modifiers[0])(*typed[:2]))
        also = bool(typed[2]) if len(typed) > 2 else holds
        return int(holds or also) if opcode.has("or") else int(holds and also)
    result = _COMPUTED[opcode.base](*typed)
    if opcode.modifiers[-1] == "pred":
        return result & 1
    if opcode.has("hi"):
        result >>= bits
    if opcode.base == "cvt":
        bits = width(opcode.modifiers[0])
    return result & (1 << bits * (2 if opcode.has("wide") else 1)) - 1


def width(kind: str) -> int:
    """The bits of a type; predicates are as good as 32 of them."""
    return 32 if kind == "pred" else int(kind.lstrip("busf"))
