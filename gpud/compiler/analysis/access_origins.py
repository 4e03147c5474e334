"""Finds the pointer from which the address of a memory access was computed.

Problem: an index that is far too large may lead from one array into another, where nothing is wrong
with the address itself.

Approach: an address is followed back through the arithmetic that computes pointers, to the loads of
parameters and of pointers in memory that it can come from. If that is a single one, its register is
the origin.

Properties:
* an origin that is returned is defined on every path to the access, or is never an address at all;
* an origin that was loaded from memory is returned only if each register between it and the address
  has one definition: then it still has the value from which the address was computed;
* it may be an index after all, where it is the only candidate: users must look whether it is an
  address.
"""

from __future__ import annotations

from gpud.compiler.analysis.effects import written
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Operand,
    Register,
    Symbol,
    SymbolOffset,
)

__all__ = ["AccessOrigins"]

_MOST = 64
"""Registers that are followed for one access."""

_OTHER = "?"
"""Stands for an origin that is no register, such as a variable."""


class AccessOrigins:
    """The origins of the addresses in a flat ``function``."""

    def __init__(self, function: Function) -> None:
        self._made: dict[str, list[Instruction]] = {}
        for statement in function.body or ():
            if isinstance(statement, Instruction):
                for register in written(statement):
                    self._made.setdefault(register.name, []).append(statement)
        self._pointers = self._converted()

    def of(self, address: Address) -> Register | None:
        """Return the register with the origin of an address; None if it is not known."""
        base = address.base
        if not isinstance(base, Register):
            return None
        found: dict[str, bool] = {}
        if not self._follow(base.name, found):
            return None
        candidates = [name for name in found if name in self._pointers] or list(found)
        if len(candidates) != 1 or candidates[0] == _OTHER:
            return None
        name = candidates[0]
        is_parameter, is_single = self._is_parameter(name), found[name]
        if len(self._made[name]) != 1 or not (is_parameter or is_single):
            return None
        return Register(name)

    def _converted(self) -> set[str]:
        """Return the origins of what ``cvta`` converts: those are pointers."""
        pointers: set[str] = set()
        for made in self._made.values():
            for ins in made:
                source = ins.operands[1] if len(ins.operands) > 1 else None
                if ins.opcode.base == "cvta" and isinstance(source, Register):
                    found: dict[str, bool] = {}
                    if self._follow(source.name, found) and len(found) == 1:
                        pointers.update(found)
        return pointers

    def _is_parameter(self, name: str) -> bool:
        return all(
            ins.opcode.base == "ld" and ins.opcode.modifiers[0].startswith("param")
            for ins in self._made[name]
        )

    def _follow(self, name: str, found: dict[str, bool]) -> bool:
        """Collect origins, each with whether all definitions on the way are single; or give up."""
        work: list[tuple[str, bool]] = [(name, True)]
        seen: dict[str, bool] = {}
        while work:
            if len(seen) > _MOST:
                return False
            current, single = work.pop()
            if current in seen and (seen[current] is False or single):
                continue
            seen[current] = single
            made = self._made.get(current, ())
            single = single and len(made) == 1
            for ins in made:
                if ins.opcode.base in ("ld", "ldu") and ins.opcode.modifiers[-1][1:] == "64":
                    found[current] = found.get(current, True) and single
                    continue
                for source in _sources(ins):
                    if isinstance(source, Register):
                        work.append((source.name, single))
                    elif isinstance(source, Symbol | SymbolOffset):
                        found[_OTHER] = False
        return True


def _sources(ins: Instruction) -> tuple[Operand, ...]:
    """Return the operands from which a pointer can come to the result."""
    base, operands = ins.opcode.base, ins.operands[1:]
    if not ins.opcode.modifiers or ins.opcode.modifiers[-1][1:] not in ("64", "32"):
        return ()
    if base in ("mov", "cvta", "sub") or (base == "gpud" and ins.opcode.has("move")):
        return operands[:1]
    if base in ("add", "selp"):
        return operands[:2] if ins.opcode.modifiers[-1][1:] == "64" else ()
    if base == "mad":
        return operands[2:3]
    return ()
