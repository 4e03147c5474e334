"""Pointers and indices that all threads advance alike, split into a start and a common step.

A compiler turns ``a[i]`` in a loop into a pointer that is advanced: each thread has its own, and
nothing tells that they advance together. Here such a register p becomes ``p.start``, written where
p was set, and ``p.moved``, a uniform register that counts how far p has come; every reader of p
computes the sum. The start can then be recomputed (`gpud.device.cpu.codegen.recompute`), so nothing
is kept for each thread, and LLVM sees the stride between threads.

Properties: the sums wrap as the original additions do, so every reader sees the same value.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.storage import declared_types
from gpud.device.cpu.codegen.substitute import rename

__all__ = ["split_inductions"]

_TYPES = {"s32": 32, "u32": 32, "s64": 64, "u64": 64, "b32": 32, "b64": 64}


def split_inductions(
    entry: ptx.Function, flow: ControlFlow, varying: set[str], inner: set[int]
) -> ptx.Function | None:
    """``entry`` with inductions split, or None if it has none."""
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
        if name in starts and name not in spoiled and types.get(name) in _TYPES
    }
    return _rewrite(entry, chosen, types, steps) if chosen else None


def _is_step(ins: ptx.Instruction, register: ptx.Register, varying: set[str]) -> bool:
    """Whether ``ins`` is ``add p, p, uniform``."""
    if ins.opcode.base not in ("add", "sub") or ins.guard is not None:
        return False
    if len(ins.opcode.modifiers) != 1 or ins.opcode.modifiers[0] not in _TYPES:
        return False
    first, second = ins.operands[1:]
    if first != register:
        if ins.opcode.base == "sub" or second != register:
            return False
        second = first
    if isinstance(second, ptx.Immediate):
        return True
    return isinstance(second, ptx.Register) and second.name not in varying


def _rewrite(
    entry: ptx.Function,
    chosen: set[str],
    types: dict[str, str],
    steps: dict[str, list[ptx.Instruction]],
) -> ptx.Function:
    step_ids = {id(ins) for name in chosen for ins in steps[name]}
    body: list[ptx.Statement] = []
    for name in sorted(chosen):
        for suffix in ("start", "moved"):
            body.append(ptx.RegisterDeclaration(types[name], f"{name}.{suffix}"))
    for statement in entry.body or ():
        if not isinstance(statement, ptx.Instruction):
            body.append(statement)
            continue
        if id(statement) in step_ids:
            target = written(statement)[0].name
            body.append(_renamed(statement, target, f"{target}.moved"))
            continue
        for name in dict.fromkeys(r.name for r in read(statement) if r.name in chosen):
            body.append(_sum(name, types[name], statement.line))
        targets = [r.name for r in written(statement) if r.name in chosen]
        if not targets:
            body.append(statement)
            continue
        name = targets[0]
        first = ptx.Register(f"{name}.start")
        body.append(
            ptx.Instruction(
                statement.opcode, (first, *statement.operands[1:]), None, statement.line
            )
        )
        body.append(_clear(name, types[name], statement.line))
    return replace(entry, body=body)


def _renamed(ins: ptx.Instruction, old: str, new: str) -> ptx.Statement:
    return rename(ins, lambda name: new if name == old else name)


def _sum(name: str, type_: str, line: int) -> ptx.Instruction:
    wide = "s64" if type_.endswith("64") else "s32"
    operands = (ptx.Register(name), ptx.Register(f"{name}.start"), ptx.Register(f"{name}.moved"))
    return ptx.Instruction(ptx.opcode(f"add.{wide}"), operands, None, line)


def _clear(name: str, type_: str, line: int) -> ptx.Instruction:
    wide = "u64" if type_.endswith("64") else "u32"
    operands = (ptx.Register(f"{name}.moved"), ptx.Immediate("0", 0))
    return ptx.Instruction(ptx.opcode(f"mov.{wide}"), operands, None, line)
