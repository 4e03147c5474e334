"""Canonical single-precision NaNs, as a GPU produces them, at no cost to arithmetic.

Problem: an ``f32`` operation on a GPU yields the NaN 0x7fffffff in all cases; a CPU keeps an
operand's payload, or yields 0xffc00000. Correcting every result would halve the speed of a matrix
product.

Approach: results are corrected where their bits become visible: when stored, moved to an integer,
passed to a call or another thread. A register that only moves data (loaded, not computed) is not
corrected: its payload must be preserved.

Double precision is left as the CPU gives it: a GPU's NaN bits there have not been measured yet, and
tests compare them as "a NaN" only.

Source: PTX ISA 9.0, sections on single-precision instructions: NaN results are canonical.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx import model as ptx

__all__ = ["computes_with_floats", "noncanonical_registers"]

_PLAIN_OPERATIONS = frozenset(("add", "sub", "mul", "fma", "mad"))
"""Lowered to the plain operation; other float instructions give canonical NaNs already."""
_DATA_MOVES = frozenset(("mov", "selp", "neg", "abs"))
_ARITHMETIC = _PLAIN_OPERATIONS | frozenset(
    (
        "div", "sqrt", "rcp", "rsqrt", "setp", "set", "min", "max", "ex2", "lg2", "sin", "cos",
        "tanh", "testp", "slct",
    )
)  # fmt: skip


def computes_with_floats(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` uses operands as numbers only, so that a NaN's bits do not matter."""
    base = ins.opcode.base
    if base in _DATA_MOVES:
        return not any(isinstance(o, ptx.Vector) for o in ins.operands)
    return base in _ARITHMETIC


def noncanonical_registers(
    body: Iterable[ptx.Statement], storage: dict[str, str]
) -> frozenset[str]:
    """Return the registers stored as ``float`` that may hold a NaN other than the GPU's."""
    registers: set[str] = set()
    passing: list[ptx.Instruction] = []
    for ins in body:
        if not isinstance(ins, ptx.Instruction):
            continue
        if ins.opcode.base in _PLAIN_OPERATIONS and ins.opcode.modifiers[-1:] == ("f32",):
            registers.update(r.name for r in written(ins) if storage.get(r.name) == "float")
        elif ins.opcode.base in _DATA_MOVES:
            passing.append(ins)
    changed = bool(registers)
    while changed:
        changed = False
        for ins in passing:
            if any(r.name in registers for r in read(ins)):
                for register in written(ins):
                    name = register.name
                    if name not in registers and storage.get(name) == "float":
                        registers.add(name)
                        changed = True
    return frozenset(registers)
