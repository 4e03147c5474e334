"""Splits induction variables that all threads advance alike into a start and a uniform offset.

Problem: a compiler turns ``a[i]`` in a loop into a pointer that is advanced. Each thread has its
own pointer, and nothing shows that they all advance by the same amount.

Approach: such a register p becomes ``p.start``, written where p was set, and ``p.moved``, a uniform
register with the sum of all steps since. Readers of p read the sum of both, or only the start where
no step can have run yet. The start can then be recomputed
(`gpud.device.cpu.codegen.analysis.rematerialization`), so nothing is kept per thread, and LLVM sees
the stride between threads. Each sum has a register of its own, ``p.at0`` and so on, shared by
consecutive readers, so that what is computed from it can be recomputed too.

Properties:
* the sums wrap as the original additions do, so every reader sees the same value;
* a sum and its readers are in one basic block.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import WORD_BITS, declared_types
from gpud.device.cpu.codegen.preparation.renaming import rename

__all__ = ["split_inductions"]


def split_inductions(
    entry: ptx.Function, flow: ControlFlow, varying: set[str], inner: set[int]
) -> ptx.Function | None:
    """Split the inductions of ``entry``; None if it has none."""
    types = declared_types(entry.body or ())
    steps: dict[str, list[ptx.Instruction]] = {}
    starts: dict[str, list[ptx.Instruction]] = {}
    spoiled: set[str] = set()
    for number in flow.order:
        for place in flow.blocks[number].places:
            ins = place.instruction
            for register in written(ins):
                if register.name not in varying:
                    continue
                if _is_step(ins, register, varying) and number not in inner:
                    steps.setdefault(register.name, []).append(ins)
                elif ins.guard is None and isinstance(ins.operands[0], ptx.Register):
                    starts.setdefault(register.name, []).append(ins)
                    if number in inner or register in read(ins):
                        spoiled.add(register.name)
                else:
                    spoiled.add(register.name)
    chosen = {
        name
        for name in steps
        if name in starts and name not in spoiled and types.get(name) in WORD_BITS
    }
    if not chosen:
        return None
    return _Rewriter(entry, flow, {name: types[name] for name in chosen}, steps).rewrite()


def _is_step(ins: ptx.Instruction, register: ptx.Register, varying: set[str]) -> bool:
    """Return whether ``ins`` is ``add p, p, uniform``."""
    if ins.opcode.base not in ("add", "sub") or ins.guard is not None:
        return False
    if len(ins.opcode.modifiers) != 1 or ins.opcode.modifiers[0] not in WORD_BITS:
        return False
    first, second = ins.operands[1:]
    if first != register:
        if ins.opcode.base == "sub" or second != register:
            return False
        second = first
    if isinstance(second, ptx.Immediate):
        return True
    return isinstance(second, ptx.Register) and second.name not in varying


class _Rewriter:
    """Splits the registers ``types``, by name, which the instructions ``steps`` advance."""

    def __init__(
        self,
        entry: ptx.Function,
        flow: ControlFlow,
        types: dict[str, str],
        steps: dict[str, list[ptx.Instruction]],
    ) -> None:
        self._entry = entry
        self._flow = flow
        self._types = types
        self._steps = {id(ins): name for name in types for ins in steps[name]}
        self._before = self._unmoved()
        self._sums: dict[str, str] = {}
        """Registers with the sums that the next instruction may read, by original register."""
        self._count: dict[str, int] = dict.fromkeys(types, 0)
        self._body: list[ptx.Statement] = []

    def _unmoved(self) -> dict[int, set[str]]:
        """Return the registers, by block, that no step can have advanced since they were set."""
        flow, everything = self._flow, set(self._types)
        before = {number: set(everything) for number in flow.order}
        after = {number: set(everything) for number in flow.order}
        changed = True
        while changed:
            changed = False
            for number in flow.order:
                block = flow.blocks[number]
                for predecessor in block.predecessors:
                    before[number] &= after.get(predecessor, everything)
                now = set(before[number])
                for place in block.places:
                    self._pass(place.instruction, now)
                if now != after[number]:
                    after[number], changed = now, True
        return before

    def _pass(self, ins: ptx.Instruction, unmoved: set[str]) -> None:
        """Update ``unmoved`` for one instruction."""
        if id(ins) in self._steps:
            unmoved.discard(self._steps[id(ins)])
        else:
            unmoved.update(r.name for r in written(ins) if r.name in self._types)

    def rewrite(self) -> ptx.Function:
        starts = {
            id(block.places[0].instruction): number
            for number, block in enumerate(self._flow.blocks)
            if block.places and number in self._before
        }
        unmoved: set[str] = set()
        for statement in self._entry.body or ():
            if not isinstance(statement, ptx.Instruction):
                self._body.append(statement)
                continue
            if id(statement) in starts:
                unmoved = set(self._before[starts[id(statement)]])
                self._sums = {}
            self._instruction(statement, unmoved)
            self._pass(statement, unmoved)
        declared = [
            ptx.RegisterDeclaration(type_, f"{name}.{suffix}")
            for name, type_ in sorted(self._types.items())
            for suffix in ("start", "moved", *(f"at{n}" for n in range(self._count[name])))
        ]
        return replace(self._entry, body=[*declared, *self._body])

    def _instruction(self, ins: ptx.Instruction, unmoved: set[str]) -> None:
        stepped = self._steps.get(id(ins))
        if stepped is not None:
            self._sums.pop(stepped, None)
            self._body.append(_renamed(ins, {stepped: f"{stepped}.moved"}))
            return
        names = {
            name: f"{name}.start" if name in unmoved else self._sum(name, ins.line)
            for name in dict.fromkeys(r.name for r in read(ins) if r.name in self._types)
        }
        targets = [r.name for r in written(ins) if r.name in self._types]
        for name in targets:
            self._sums.pop(name, None)
            names[name] = f"{name}.start"
        self._body.append(_renamed(ins, names))
        self._body.extend(_clear(name, self._types[name], ins.line) for name in targets)

    def _sum(self, name: str, line: int) -> str:
        """Return the name of a register that holds the current value of ``name``."""
        if name not in self._sums:
            self._sums[name] = f"{name}.at{self._count[name]}"
            self._count[name] += 1
            wide = "s64" if self._types[name].endswith("64") else "s32"
            made = (ptx.Register(n) for n in (self._sums[name], f"{name}.start", f"{name}.moved"))
            self._body.append(ptx.Instruction(ptx.opcode(f"add.{wide}"), tuple(made), None, line))
        return self._sums[name]


def _renamed(ins: ptx.Instruction, names: dict[str, str]) -> ptx.Statement:
    return rename(ins, lambda name: names.get(name, name))


def _clear(name: str, type_: str, line: int) -> ptx.Instruction:
    wide = "u64" if type_.endswith("64") else "u32"
    operands = (ptx.Register(f"{name}.moved"), ptx.Immediate("0", 0))
    return ptx.Instruction(ptx.opcode(f"mov.{wide}"), operands, None, line)
