"""Places a program's variables in one block of memory, which lies in its session's arena.

Problem: a program that exists asks for the address of a module variable, copies to and from it and
passes it to kernels, as if it were an array. So it must lie where arrays lie: in the session's
arena, where bounds checks let kernels of other modules reach it, too.

Approach: the variables of a program get places in a block. The front allocates it for each module,
as an array, and writes the initial values there; `gpud.compiler.passes.runtime.arena_variables`
has the code use the block. So it is the same on every device.

Terms: the *block* is the memory; a *piece* is (offset, bytes) of initial values; a *relocation* is
an address in an initial value, which is known only with the block's.

Algorithm: all variables of ``.global`` and ``.const`` at the module's level are placed, but those
that cannot be: whose initial value has an address of a function, or of a variable that is not
placed; or which such a variable's value names. Constants are placed all, or none: a load from
constant memory does not say which variable it reads.

Properties:
    apart: no two variables overlap, and each lies at its alignment;
    closed: a placed variable's initial value names placed variables only, and no other's names one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpud.compiler.abi.reserved_names import OWN_VARIABLES
from gpud.compiler.analysis.data_layout import size_and_align, type_bytes
from gpud.compiler.analysis.initial_values import leaves, literal_bytes, masked, named
from gpud.compiler.ptx.model import (
    Function,
    Immediate,
    Instruction,
    Module,
    RawOperand,
    Statement,
    Variable,
)

__all__ = ["NO_BLOCK", "Relocation", "VariableBlock", "place_variables"]

_SPACES = ("global", "const")
_LEAST_ALIGN = 16
_WORD = re.compile(r"[$A-Za-z_][$\w]*", re.ASCII)

Relocation = tuple[int, int, int, int | None]
"""(offset in the block, bytes, offset in the block that it is the address of, mask or None)."""


@dataclass(frozen=True, slots=True)
class VariableBlock:
    """The block of a program's variables.

    Attributes:
        size: in bytes; 0 if nothing is placed.
        offsets: where each variable lies, by name.
        pieces: initial values; everything else is zero.
        relocations: the addresses among them.
    """

    size: int = 0
    offsets: dict[str, int] = field(default_factory=dict)
    pieces: tuple[tuple[int, bytes], ...] = ()
    relocations: tuple[Relocation, ...] = ()

    def written(self, base: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) to write to a new block of zeroes at address ``base``."""
        yield from self.pieces
        for at, size, target, mask in self.relocations:
            value = masked(base + target, mask) & ((1 << (8 * size)) - 1)
            yield at, value.to_bytes(size, "little")

    def check(self) -> None:
        """Check that all lies within the block.

        Raises:
            ValueError: it does not.
        """
        ends = [at + len(data) for at, data in self.pieces if at >= 0]
        ends += [at + size for at, size, _, _ in self.relocations if at >= 0]
        if len(ends) < len(self.pieces) + len(self.relocations) or max(ends, default=0) > self.size:
            raise ValueError("an initial value lies outside of the variables' block")


NO_BLOCK = VariableBlock()


def place_variables(module: Module) -> VariableBlock:
    """Place the variables of a flat module."""
    placed = _placeable(module)
    end = 0
    offsets: dict[str, int] = {}
    for one in placed:
        size, align = size_and_align(one)
        align = max(align, _LEAST_ALIGN)
        offsets[one.name] = -(-end // align) * align
        end = offsets[one.name] + size
    pieces: list[tuple[int, bytes]] = []
    relocations: list[Relocation] = []
    for one in placed:
        begin, size = offsets[one.name], type_bytes(one.type)
        data = bytearray()
        for at, leaf in leaves(one):
            if isinstance(leaf, Immediate):
                data += bytes(at - len(data)) + literal_bytes(leaf, one.type)
            else:
                target = offsets[leaf.name] + leaf.offset
                relocations.append((begin + at, size, target, leaf.mask))
        if any(data):
            pieces.append((begin, bytes(data)))
    return VariableBlock(end, offsets, tuple(pieces), tuple(relocations))


def _placeable(module: Module) -> list[Variable]:
    """Return the variables that can be placed, in the module's order."""
    defined: dict[str, Variable] = {}
    for item in module.items:
        if isinstance(item, Variable) and item.space in _SPACES and item.linkage != "extern":
            if item.name not in OWN_VARIABLES and size_and_align(item)[0]:
                defined[item.name] = item
    staying = _used_as_text(module)  # those that cannot be placed
    others = [one for one in _variables(module) if defined.get(one.name) is not one]
    for one in others:  # of functions, and what is extern
        staying.update(dict.fromkeys(named(one.init)))
    constants_stay = any(one.space == "const" for one in others)
    while True:
        kept = {
            name: one
            for name, one in defined.items()
            if name not in staying and not (constants_stay and one.space == "const")
        }
        stuck = [one for one in kept.values() if any(name not in kept for name in named(one.init))]
        left = [one for name, one in defined.items() if name not in kept] + stuck
        more = {name for one in left for name in (one.name, *named(one.init)) if name in kept}
        if not more:
            return list(kept.values())
        staying.update(dict.fromkeys(name for name in kept if name in more))
        constants_stay = constants_stay or any(kept[name].space == "const" for name in sorted(more))


def _variables(module: Module) -> Iterator[Variable]:
    """Yield all variables in global and constant memory, also those of functions."""
    for item in module.items:
        if isinstance(item, Variable):
            own: list[Statement] | list[Variable] = [item]
        else:
            own = (item.body or []) if isinstance(item, Function) else []
        yield from (one for one in own if isinstance(one, Variable) and one.space in _SPACES)


def _used_as_text(module: Module) -> dict[str, None]:
    """Return the words of operands that are kept as text: nobody knows what they mean."""
    found: dict[str, None] = {}
    for function in module.functions():
        for statement in function.body or ():
            if isinstance(statement, Instruction):
                for operand in statement.operands:
                    if isinstance(operand, RawOperand):
                        found.update(dict.fromkeys(_WORD.findall(operand.text)))
    return found
