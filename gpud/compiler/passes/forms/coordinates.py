"""Block coordinates: computes them from a task block's number, and replaces special registers.

Problem: in a persistent or sliced kernel ``%ctaid`` and ``%nctaid`` must mean the task block and
the user's grid. Computing x, y, z from a number takes integer divisions, which GPUs lack.

Approach: only the coordinates that the code reads are computed, by multiplication and shift with
constants from the job record, and without either for one-dimensional grids.

Terms: the six *coordinates* are ``%ctaid.x`` to ``%nctaid.z``; a *row* is a line of task blocks
along x: with n the number of a task block, row = n // grid_x, x = n - row * grid_x,
z = row // grid_y, y = row - z * grid_y.

Properties:
* no division is emitted;
* a coordinate that is not read costs nothing;
* replaced instructions are new objects, all others are shared with the input.

Source: `gpud.compiler.abi.fast_division` for the arithmetic and its proof.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from gpud.compiler.abi import control_words as words
from gpud.compiler.passes.builder import CodeBuilder
from gpud.compiler.ptx.model import (
    Address,
    Instruction,
    Operand,
    Register,
    SpecialRegister,
    Statement,
    Tuple,
    Vector,
)

__all__ = ["COORDINATES", "compute", "replace_specials", "used_coordinates"]

COORDINATES = ("%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x", "%nctaid.y", "%nctaid.z")
"""The special registers that describe a block's place in its grid, in hidden-parameter order."""


def used_coordinates(specials: Iterable[str]) -> tuple[str, ...]:
    """Return those of ``specials`` that are coordinates, in the order of `COORDINATES`."""
    present = frozenset(specials)
    return tuple(name for name in COORDINATES if name in present)


def replace_specials(body: Iterable[Statement], instead: Mapping[str, Operand]) -> list[Statement]:
    """Return ``body`` with special registers replaced by other operands."""
    if not instead:
        return list(body)
    made: list[Statement] = []
    append = made.append
    for statement in body:
        if type(statement) is Instruction:
            for operand in statement.operands:
                kind = type(operand)
                if kind is Register:  # most are
                    continue
                if kind is SpecialRegister:
                    reads = operand.name in instead  # type: ignore[union-attr]
                elif kind is Vector or kind is Tuple:
                    reads = any(
                        type(item) is SpecialRegister and item.name in instead
                        for item in operand.items  # type: ignore[union-attr]
                    )
                else:
                    continue
                if reads:
                    statement = _replaced(statement, instead)  # noqa: PLW2901
                    break
        append(statement)
    return made


def _replaced(ins: Instruction, instead: Mapping[str, Operand]) -> Instruction:
    operands = tuple(_operand(operand, instead) for operand in ins.operands)
    return Instruction(ins.opcode, operands, ins.guard, ins.line)


def _operand(operand: Operand, instead: Mapping[str, Operand]) -> Operand:
    if isinstance(operand, SpecialRegister):
        return instead.get(operand.name, operand)
    if isinstance(operand, Vector):
        return Vector(tuple(_operand(item, instead) for item in operand.items))
    if isinstance(operand, Tuple):
        return Tuple(tuple(_operand(item, instead) for item in operand.items))
    return operand


def compute(
    code: CodeBuilder, number: Register, job: Register, needed: Collection[str]
) -> dict[str, Operand]:
    """Append the computation of coordinates from the number of a task block.

    Args:
        code: where to append.
        number: a ``.b32`` register with the task block's number; only read.
        job: a ``.b64`` register with the job record's address; only read.
        needed: coordinates, of `COORDINATES`.

    Returns:
        The register of each needed coordinate.
    """
    coordinates: dict[str, Operand] = {}
    for axis, letter in enumerate("xyz"):
        name = f"%nctaid.{letter}"
        if name in needed:
            coordinates[name] = code.register(f"grid_{letter}")
            code("ld.global.nc.u32", coordinates[name], Address(job, words.GRID + 4 * axis))
    wanted = [letter for letter in "xyz" if f"%ctaid.{letter}" in needed]
    if wanted:
        helpers = "z" if "y" in wanted else ""
        place = {letter: code.register(letter) for letter in (*wanted, *helpers)}
        _split(code, number, job, place, wanted)
        coordinates.update({f"%ctaid.{letter}": place[letter] for letter in wanted})
    return coordinates


def _split(
    code: CodeBuilder,
    number: Register,
    job: Register,
    place: Mapping[str, Register],
    wanted: list[str],
) -> None:
    """Split ``number`` into x, y, z; ``place`` has registers for those wanted, and z if y is."""
    flat = code.register("flat", "pred")
    flags, multiplier, shift = (code.register(n) for n in ("flags", "multiplier", "shift"))
    row, size = code.register("row"), code.register("size")
    done = code.label("placed")
    code("ld.global.nc.u32", flags, Address(job, words.FLAGS))
    code("and.b32", flags, flags, words.ONE_DIMENSIONAL)
    code("setp.ne.u32", flat, flags, 0)
    for letter in wanted:
        if letter == "x":
            code("mov.u32", place["x"], number)
        else:
            code("mov.u32", place[letter], 0)
    code("bra", done, when=flat)
    _divide(code, row, number, Address(job, words.X_DIVIDER), multiplier, shift)
    if "x" in wanted:
        code("ld.global.nc.u32", size, Address(job, words.GRID))
        code("mul.lo.u32", size, row, size)
        code("sub.u32", place["x"], number, size)
    if "y" in wanted or "z" in wanted:
        _divide(code, place["z"], row, Address(job, words.Y_DIVIDER), multiplier, shift)
    if "y" in wanted:
        code("ld.global.nc.u32", size, Address(job, words.GRID + 4))
        code("mul.lo.u32", size, place["z"], size)
        code("sub.u32", place["y"], row, size)
    code.place(done)


def _divide(
    code: CodeBuilder,
    quotient: Register,
    number: Register,
    divider: Address,
    multiplier: Register,
    shift: Register,
) -> None:
    """Append ``quotient = number // divisor``, as `gpud.compiler.abi.fast_division.divide` does."""
    code("ld.global.nc.v2.u32", Vector((multiplier, shift)), divider)
    code("add.u32", quotient, number, number)
    code("mul.hi.u32", quotient, quotient, multiplier)
    code("shr.u32", quotient, quotient, shift)
