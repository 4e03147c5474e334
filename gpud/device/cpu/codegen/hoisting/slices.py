"""Slices: the instructions of a stage that compute the value of a register.

Problem: an address must be computed before the loop over threads in which the program computes it.
Approach: follow the register's definitions back to values known at the stage's start, and run just
these instructions, on slots of their own, for any thread.

Terms: a *step* is one instruction of a slice; the *slice* of a register at a program point is the
steps that compute the value that it has there.

Properties:
* if there is a slice, running it gives the value that the register will have at that point, in
  every thread that reaches it;
* running it reads spilled registers, parameters and registers, and writes only its slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpud.compiler.analysis.effects import (
    MEMORY_READ,
    MEMORY_WRITE,
    flags,
    is_call,
    read,
    state_space,
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.rematerialization import reads_unstable
from gpud.device.cpu.ir.thread import zero

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["SliceStep", "Slices", "UnknownValue"]

_PURE = frozenset(
    (
        "add", "sub", "mul", "mul24", "mad", "mad24", "shl", "shr", "and", "or", "xor", "not",
        "neg", "mov", "cvta", "cvt", "selp", "setp", "min", "max", "bfe", "bfi", "abs", "ld",
        "gpud", "div", "rem", "sad", "lop3", "prmt", "popc", "clz", "brev", "bfind", "shf",
    )
)  # fmt: skip
_MOST_STEPS = 400


class UnknownValue(Exception):
    """The value cannot be computed before the loop."""


@dataclass(eq=False)
class SliceStep:
    """One instruction of a slice; ``sources`` maps each register it reads to its step, or None."""

    ins: ptx.Instruction
    now: int
    """Its index in the stage; -1 for instructions that run before the stage's own."""
    sources: dict[str, SliceStep | None]


class Slices:
    """The slices of one stage.

    Args:
        varying: its varying instructions, each with its block.
    """

    def __init__(self, stage: StageWriter, varying: list[tuple[ptx.Instruction, int]]) -> None:
        self.stage_writer = stage
        self.varying = varying
        self.emitter = stage.emitter
        self.code = stage.code
        self._definitions: dict[str, list[tuple[int, int, ptx.Instruction]]] = {}
        self.where: dict[int, tuple[int, int]] = {}
        """Index in the stage and block of each instruction, by identity."""
        for ins, block in varying:
            number = stage.ordinal[id(ins)]
            self.where[id(ins)] = (number, block)
            for register in written(ins):
                if register.name in stage.lockstep.varying:
                    self._definitions.setdefault(register.name, []).append((number, block, ins))
        self.recipe: dict[str, ptx.Instruction] = {}
        """The instruction that recomputes a register at the stage's start, by name."""
        self._steps: dict[tuple[int, bool], SliceStep] = {}

    def definitions(self, name: str) -> list[tuple[int, int, ptx.Instruction]]:
        """Return the stage's definitions of a varying register: (index, block, instruction)."""
        return self._definitions.get(name, [])

    def reaching(self, name: str, now: int, block: int) -> SliceStep | None:
        """Return the step that defines ``name`` at a point; None: it has its value at the start."""
        if name not in self.stage_writer.lockstep.varying:
            return None
        before = [d for d in self._definitions.get(name, ()) if d[0] < now]
        after = [d for d in self._definitions.get(name, ()) if d[0] >= now]
        if before:
            number, where, ins = before[-1]
            same = where == block
            only = (
                len(before) == 1
                and not after
                and self.stage_writer.lockstep.flow.dominates(where, block)
            )
            if ins.guard is not None or not (same or only):
                raise UnknownValue
            return self._step(ins, number, where)
        if any(self._in_one_loop(block, where) for _, where, _ in after):
            raise UnknownValue
        recipe = self.recipe.get(name)
        return None if recipe is None else self._step(recipe, -1, -1)

    def _in_one_loop(self, first: int, second: int) -> bool:
        """Return whether both blocks are in one loop within the stage."""
        inner = self.stage_writer.convergence.inner
        return any(
            loop.header in inner and first in loop.blocks and second in loop.blocks
            for loop in self.stage_writer.lockstep.flow.loops
        )

    def _step(self, ins: ptx.Instruction, number: int, block: int) -> SliceStep:
        # An instruction can be both in the recipe and in the stage, with different sources.
        key = id(ins), number < 0
        known = self._steps.get(key)
        if known is not None:
            return known
        if not self._is_pure(ins) or len(self._steps) > _MOST_STEPS:
            raise UnknownValue
        sources: dict[str, SliceStep | None] = {}
        for register in read(ins):
            if number < 0:
                recipe = self.recipe.get(register.name)
                sources[register.name] = None if recipe is None else self._step(recipe, -1, -1)
            else:
                sources[register.name] = self.reaching(register.name, number, block)
        step = self._steps[key] = SliceStep(ins, number, sources)
        return step

    def _is_pure(self, ins: ptx.Instruction) -> bool:
        base = ins.opcode.base
        if ins.guard is not None or base not in _PURE or ins.opcode.has("cc") or is_call(ins):
            return False
        if not isinstance(ins.operands[0], ptx.Register):
            return False
        if base == "gpud" and ins.opcode.modifiers[0] != "move":
            return False
        bits = flags(ins.opcode)
        if bits & MEMORY_WRITE or (bits & MEMORY_READ and state_space(ins.opcode) != "param"):
            return False
        if base == "ld":
            # Not the result of a call: that is in the thread's memory.
            symbol = getattr(getattr(ins.operands[1], "base", None), "name", "")
            if symbol not in self.code.places.parameters:
                return False
        return not reads_unstable(ins)

    # -- running a slice

    def run(self, steps: list[SliceStep], values: dict[object, str]) -> None:
        """Emit the slice for the current thread; ``values`` are the slots of known values."""
        for step in steps:
            if id(step) in values:
                continue
            target = written(step.ins)[0].name
            slot = self.emitter.alloca(self.stage_writer.kernel.storage[target], "early")
            with self.reading(step, values):
                if target in step.sources:
                    # It also reads its target: the old value must be in the new slot.
                    type_ = self.stage_writer.kernel.storage[target]
                    old = self.emitter.value(f"load {type_}, ptr {self.code.slot(target)}")
                    self.emitter.do(f"store {type_} {old}, ptr {slot}")
                self.code.redirect(target, slot)
                self.code.run(step.ins)
            values[id(step)] = slot

    @contextmanager
    def reading(self, step: SliceStep, values: dict[object, str]) -> Iterator[None]:
        """Give the operands of ``step`` the values that they have in the program."""
        names = {register.name for register in (*read(step.ins), *written(step.ins))}
        slots = {name: self.code.slot(name) for name in names}
        with self.stage_writer.earlier.as_of(step.ins, step.now):
            for name, source in step.sources.items():
                if name in self.stage_writer.lockstep.varying:
                    self.code.redirect(name, self.slot(name, source, values))
            yield
        for name, slot in slots.items():
            self.code.redirect(name, slot)

    def slot(self, name: str, source: SliceStep | None, values: dict[object, str]) -> str:
        """Return the slot of a varying register that a step defines, or that the thread spilled."""
        if source is not None:
            return values[id(source)]
        slot = values.get(name)
        if slot is None:
            type_ = self.stage_writer.kernel.storage[name]
            slot = values[name] = self.emitter.alloca(type_, "kept")
            value = zero(type_)
            if name in self.stage_writer.live_in:
                tags = self.stage_writer.kernel.spill_tags
                value = self.emitter.value(
                    f"load {type_}, ptr {self.stage_writer.spill_slot(name)}{tags}"
                )
            self.emitter.do(f"store {type_} {value}, ptr {slot}")
        return slot

    def ordered(self, step: SliceStep) -> list[SliceStep]:
        """Return the transitive sources of ``step``, in order of evaluation."""
        ordered: dict[int, SliceStep] = {}

        def visit(one: SliceStep) -> None:
            for source in one.sources.values():
                if source is not None and id(source) not in ordered:
                    visit(source)
                    ordered[id(source)] = source

        visit(step)
        return list(ordered.values())
