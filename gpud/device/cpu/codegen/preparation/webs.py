"""Splits registers into webs: one register for each group of connected definitions and uses.

Problem: the analyses here have one result per register. If a register holds a varying value in one
place and a uniform one in another, it would count as varying everywhere.

Approach: a *web* is a set of definitions of one register that share readers; each web gets a
register of its own.

Algorithm: reaching definitions by forward data flow on bit sets; the definitions that reach one
reader are joined (union-find). A guarded definition keeps the old value where the guard fails, so
it is joined with the definitions that reach it (Muchnick, "Advanced Compiler Design", section
16.3).

Properties: a reader reads a web that all definitions reaching it belong to; a register with one web
keeps its name.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import declared_types
from gpud.device.cpu.codegen.preparation.renaming import rename_operand

__all__ = ["split_webs"]


def split_webs(entry: ptx.Function) -> ptx.Function:
    """Split every register of ``entry`` into its webs; ``entry`` itself is not changed."""
    flow = ControlFlow(entry)
    return _Webs(entry, flow).rewrite()


class _Webs:
    def __init__(self, entry: ptx.Function, flow: ControlFlow) -> None:
        self.entry = entry
        self.flow = flow
        self.definitions: dict[str, list[int]] = {}
        self.number: dict[tuple[int, str], int] = {}
        """Number of a definition, by the instruction's identity and register."""
        count = 0
        for block in flow.blocks:
            for place in block.places:
                for register in written(place.instruction):
                    key = (id(place.instruction), register.name)
                    if key not in self.number:
                        self.number[key] = count
                        self.definitions.setdefault(register.name, []).append(count)
                        count += 1
        self.parent = list(range(count))
        self.several = {
            n: sum(1 << d for d in ds) for n, ds in self.definitions.items() if len(ds) > 1
        }
        self.readers: dict[tuple[int, str], int] = {}
        """The definitions that reach a reader, by the instruction's identity and register."""
        self._reach()

    # -- reaching definitions

    def _reach(self) -> None:
        flow = self.flow
        after = dict.fromkeys(range(len(flow.blocks)), 0)
        changed = True
        while changed:
            changed = False
            for number in flow.order:
                now = self._enter(number, after)
                for place in flow.blocks[number].places:
                    now = self._pass(place.instruction, now)
                if now != after[number]:
                    after[number] = now
                    changed = True
        for number in flow.order:
            now = self._enter(number, after)
            for place in flow.blocks[number].places:
                self._join(place.instruction, now)
                now = self._pass(place.instruction, now)

    def _enter(self, number: int, after: dict[int, int]) -> int:
        now = 0
        for predecessor in self.flow.blocks[number].predecessors:
            now |= after[predecessor]
        return now

    def _pass(self, ins: ptx.Instruction, now: int) -> int:
        for register in written(ins):
            mask = self.several.get(register.name)
            if mask is not None:
                if ins.guard is None:
                    now &= ~mask
                now |= 1 << self.number[id(ins), register.name]
        return now

    def _join(self, ins: ptx.Instruction, now: int) -> None:
        for register in read(ins):
            mask = self.several.get(register.name)
            if mask is not None:
                self.readers[id(ins), register.name] = now & mask
                self._unite(now & mask)
        if ins.guard is not None:
            for register in written(ins):
                mask = self.several.get(register.name)
                if mask is not None:
                    self._unite(now & mask | 1 << self.number[id(ins), register.name])

    def _unite(self, bits: int) -> None:
        first = -1
        while bits:
            low = bits & -bits
            root = self._root(low.bit_length() - 1)
            if first < 0:
                first = root
            else:
                self.parent[root] = first
            bits ^= low

    def _root(self, number: int) -> int:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    # -- renaming

    def rewrite(self) -> ptx.Function:
        types = declared_types(self.entry.body or ())
        names: dict[int, str] = {}
        declared: list[ptx.Statement] = []
        for name in self.several:
            roots = dict.fromkeys(self._root(d) for d in self.definitions[name])
            if len(roots) < 2 or name not in types:
                continue
            for index, root in enumerate(roots):
                names[root] = f"{name}.w{index}"
                declared.append(ptx.RegisterDeclaration(types[name], names[root]))
        if not names:
            return self.entry
        body: list[ptx.Statement] = [*declared]
        for statement in self.entry.body or ():
            if isinstance(statement, ptx.Instruction):
                body.append(self._renamed(statement, names))
            else:
                body.append(statement)
        return replace(self.entry, body=body)

    def _renamed(self, ins: ptx.Instruction, names: dict[int, str]) -> ptx.Instruction:
        def of_reader(name: str) -> str:
            bits = self.readers.get((id(ins), name), 0)
            if not bits:
                return name
            return names.get(self._root((bits & -bits).bit_length() - 1), name)

        def of_target(name: str) -> str:
            number = self.number.get((id(ins), name))
            return name if number is None else names.get(self._root(number), name)

        guard = ins.guard
        if guard is not None:
            guard = ptx.Guard(ptx.Register(of_reader(guard.register.name)), guard.negated)
        operands = list(ins.operands)
        start = 0
        if operands and written(ins):
            operands[0] = rename_operand(operands[0], of_target)
            start = 1
        operands[start:] = [rename_operand(o, of_reader) for o in operands[start:]]
        return ptx.Instruction(ins.opcode, tuple(operands), guard, ins.line)
