"""Rematerialization: registers that are cheaper to recompute than to spill for every thread.

Problem: between stages varying registers go through arrays in memory. Most of them are indices and
addresses computed from thread numbers and parameters; if they are loaded from an array, LLVM no
longer sees that neighbouring threads access neighbouring memory.

Approach: find, for every block of the kernel, which registers can be recomputed there: those with
one definition, by a cheap instruction, from parameters, special registers, uniform registers and
other such registers, none of which has changed since. They are never spilled; their leaves are.

Terms: a *leaf* is a uniform register that a recomputable register is computed from; the *recipe* of
a register is the instructions that compute it from leaves, in order.

Algorithm: available expressions: a forward data-flow problem on sets, the meet being intersection,
in which a definition makes its register available if its operands are, and kills every register
whose recipe mentions the defined one (Aho, Lam, Sethi and Ullman, "Compilers", section 9.5).

Properties:
* wherever a register is available, running its recipe gives the value that it holds;
* recipes read no memory but the kernel's own parameters, and are at most `_MAX_RECIPE` instructions
  long.
"""

from __future__ import annotations

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    MEMORY_READ,
    flags,
    read,
    special_registers,
    state_space,
    written,
)
from gpud.compiler.ptx import model as ptx

__all__ = ["Rematerializable"]

_CHEAP = frozenset(
    (
        "add", "sub", "mul", "mul24", "mad", "shl", "shr", "and", "or", "xor", "not", "neg",
        "mov", "cvta", "cvt", "selp", "min", "max", "bfe", "abs", "ld", "setp",
    )
)  # fmt: skip
_MAX_RECIPE = 24
_UNSTABLE = ("%clock", "%globaltimer", "%smid", "%pm")


def reads_unstable(ins: ptx.Instruction) -> bool:
    """Return whether ``ins`` reads a special register that may change between two reads."""
    return any(name.startswith(_UNSTABLE) for name in special_registers(ins))


class Rematerializable:
    """The registers that can be recomputed at each block.

    Args:
        inner: its inner blocks; registers defined there are not recomputed.
    """

    def __init__(self, flow: ControlFlow, varying: set[str], inner: set[int]) -> None:
        self._flow = flow
        self._varying = varying
        self._recipes: dict[str, tuple[ptx.Instruction, ...]] = {}
        self._mentions: dict[str, frozenset[str]] = {}
        """Every register that a recipe reads or writes, by its result."""
        self._made_by = self._candidates(inner)
        for name in self._made_by:
            self._recipe(name, ())
        self._users: dict[str, set[str]] = {}
        for name, mentioned in self._mentions.items():
            for other in mentioned:
                self._users.setdefault(other, set()).add(name)
        self.available = self._solve()
        """Registers that can be recomputed at the start of each block."""

    def recipe(self, name: str) -> tuple[ptx.Instruction, ...]:
        """Return the instructions that recompute ``name``."""
        return self._recipes[name]

    def leaves(self, name: str) -> list[str]:
        """Return the uniform registers that the recipe of ``name`` reads, in order."""
        registers: dict[str, None] = {}
        for ins in self._recipes[name]:
            for register in read(ins):
                if register.name not in self._varying:
                    registers[register.name] = None
        return list(registers)

    # -- recipes

    def _candidates(self, inner: set[int]) -> dict[str, ptx.Instruction]:
        made_by: dict[str, ptx.Instruction | None] = {}
        for number in self._flow.order:
            for place in self._flow.blocks[number].places:
                ins = place.instruction
                for register in written(ins):
                    name = register.name
                    good = name not in made_by and number not in inner and self._is_cheap(ins)
                    made_by[name] = ins if good else None
        return {
            name: ins for name, ins in made_by.items() if ins is not None and name in self._varying
        }

    def _is_cheap(self, ins: ptx.Instruction) -> bool:
        if ins.guard is not None or ins.opcode.base not in _CHEAP or ins.opcode.has("cc"):
            return False
        if not isinstance(ins.operands[0], ptx.Register):
            return False
        if flags(ins.opcode) & MEMORY_READ and not self._reads_parameter(ins):
            return False
        if any(m in ("f16", "bf16", "f32", "f64", "f16x2", "bf16x2") for m in ins.opcode.modifiers):
            return ins.opcode.base == "ld"
        return not reads_unstable(ins)

    def _reads_parameter(self, ins: ptx.Instruction) -> bool:
        """Return whether ``ins`` reads a parameter of the kernel by its name.

        Any other ``ld.param`` may read a struct of a call, or memory that a register points to: a
        value that can change between a bounds check and the access it guards must never be read
        twice.
        """
        address = ins.operands[1]
        return (
            state_space(ins.opcode) == "param"
            and isinstance(address, ptx.Address)
            and isinstance(address.base, ptx.Symbol)
            and any(p.name == address.base.name for p in self._flow.function.parameters)
        )

    def _recipe(self, name: str, path: tuple[str, ...]) -> bool:
        """Build the recipe of ``name``; return whether it has one."""
        if name in self._recipes:
            return True
        ins = self._made_by.get(name)
        if ins is None or name in path:
            return False
        steps: dict[int, ptx.Instruction] = {}
        mentions = {name}
        for register in read(ins):
            mentions.add(register.name)
            if register.name in self._varying:
                if not self._recipe(register.name, (*path, name)):
                    return False
                steps.update((id(step), step) for step in self._recipes[register.name])
                mentions |= self._mentions[register.name]
        steps[id(ins)] = ins
        if len(steps) > _MAX_RECIPE:
            return False
        self._recipes[name] = tuple(steps.values())
        self._mentions[name] = frozenset(mentions)
        return True

    # -- availability

    def _solve(self) -> dict[int, frozenset[str]]:
        flow = self._flow
        everything = frozenset(self._recipes)
        before: dict[int, frozenset[str]] = dict.fromkeys(flow.order, everything)
        after: dict[int, frozenset[str]] = dict.fromkeys(flow.order, everything)
        before[flow.order[0]] = frozenset()
        changed = True
        while changed:
            changed = False
            for number in flow.order:
                block = flow.blocks[number]
                if number != flow.order[0]:
                    sets = [after[p] for p in block.predecessors if p in after]
                    before[number] = frozenset.intersection(*sets) if sets else frozenset()
                now = self._through(number, set(before[number]))
                if now != after[number]:
                    after[number] = now
                    changed = True
        return before

    def _through(self, number: int, available: set[str]) -> frozenset[str]:
        for place in self._flow.blocks[number].places:
            ins = place.instruction
            for register in written(ins):
                name = register.name
                available -= self._users.get(name, set())
                if name in self._recipes and all(
                    r.name in available for r in read(ins) if r.name in self._varying
                ):
                    available.add(name)
        return frozenset(available)
