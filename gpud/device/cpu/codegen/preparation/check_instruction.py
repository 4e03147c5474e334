"""The pseudo-instruction ``gpud.bounds``: a check before memory accesses.

``gpud.bounds.<space> [register+low], span, align, claim, low, span, align, site, ...`` means: each
*member*, ``span`` bytes at ``register + low``, must lie in memory that the thread may access in
that space, and begin at a multiple of ``align``. If not, the block ends here, and the first illegal
member is reported with its ``site`` and the task block ``claim``. The first operands are the *hull*
of all members. The guard of a bounds check is the guard of its accesses. The space is followed by
the *origins* of bounds checks of the program, see `gpud.device.cpu.codegen.preparation.provenance`.

Bounds checks of global and generic accesses come from the program
(`gpud.compiler.instrumentation.bounds_checks`); those of other spaces are inserted by the CPU
device (`gpud.device.cpu.codegen.preparation.bounds_checks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gpud.compiler.abi import control_words as cw
from gpud.compiler.instrumentation import bounds_checks
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Space
from gpud.device.cpu.codegen.preparation.provenance import allowed, opcode, origins_of

__all__ = [
    "NO_CLAIM",
    "SPACES",
    "CheckOperands",
    "CheckedMember",
    "bounds_check",
    "decode_check",
    "from_program",
    "without_claim",
]

SPACES = {
    "global": Space.GLOBAL,
    "generic": Space.GLOBAL,
    "shared": Space.SHARED,
    "local": Space.LOCAL,
    "const": Space.CONST,
    "param": Space.PARAM,
}


NO_CLAIM = ptx.Immediate(str(cw.NOTHING), cw.NOTHING)
_CLAIM = 3
"""Index of the claim among the operands."""


class CheckedMember(NamedTuple):
    """One access: ``span`` bytes at the register's value + ``low``; ``site`` is -1 if unknown."""

    low: int
    span: int
    align: int
    site: int


class CheckOperands(NamedTuple):
    """The decoded operands of a ``gpud.bounds``.

    ``base`` is a register, a symbol or None.
    """

    space: str
    base: ptx.Register | ptx.Symbol | None
    low: int
    span: int
    align: int
    claim: ptx.Operand
    members: tuple[CheckedMember, ...]
    origins: tuple[str, ...]


def bounds_check(
    space: str,
    base: ptx.Register | ptx.Symbol | None,
    members: Sequence[CheckedMember],
    claim: ptx.Operand,
    guard: ptx.Guard | None = None,
    line: int = 0,
    origins: Sequence[str] = (),
) -> ptx.Instruction:
    """Build the bounds check of accesses through one register."""
    low = min(member.low for member in members)
    span = max(member.low + member.span for member in members) - low
    align = max(member.align for member in members)
    if any((member.low - low) % member.align for member in members):
        # Callers group only accesses whose offsets from the hull's start are aligned.
        raise ValueError("the accesses of one bounds check are not aligned alike")
    numbers = [span, align]
    operands: list[ptx.Operand] = [ptx.Address(base, low), *map(_number, numbers), claim]
    for member in members:
        operands += map(_number, member)
    return ptx.Instruction(opcode(space, origins), tuple(operands), guard, line)


def _number(value: int) -> ptx.Immediate:
    return ptx.Immediate(str(value), value)


def decode_check(ins: ptx.Instruction) -> CheckOperands:
    """Decode the operands of a ``gpud.bounds``."""
    address, long, even, claim, *rest = ins.operands
    assert isinstance(address, ptx.Address)
    numbers = [
        operand.value for operand in (long, even, *rest) if isinstance(operand, ptx.Immediate)
    ]
    members = tuple(CheckedMember(*numbers[at : at + 4]) for at in range(2, len(numbers), 4))
    space = ins.opcode.modifiers[1]
    span, align = numbers[:2]
    origins = origins_of(ins)
    return CheckOperands(space, address.base, address.offset, span, align, claim, members, origins)


def without_claim(ins: ptx.Instruction) -> ptx.Instruction:
    """Return a copy of a ``gpud.bounds`` that reports no task block."""
    operands = (*ins.operands[:_CLAIM], NO_CLAIM, *ins.operands[_CLAIM + 1 :])
    return ptx.Instruction(ins.opcode, operands, ins.guard, ins.line)


def from_program(check: bounds_checks.BoundsCheck, claim: ptx.Operand) -> ptx.Instruction:
    """Build the pseudo-instruction for a bounds check of the program.

    That of a matrix becomes ``gpud.rows site, claim``, for
    `gpud.device.cpu.codegen.preparation.fragment_moves`.
    """
    if check.rows > 1:
        return ptx.Instruction(ptx.opcode("gpud.rows"), (_number(check.site), claim))
    members = [CheckedMember(m.low, m.span, m.align, m.site) for m in check.members]
    origins = allowed(check)
    return bounds_check(check.space, check.register, members, claim, check.guard, origins=origins)
