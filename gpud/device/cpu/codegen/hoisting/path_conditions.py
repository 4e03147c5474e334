"""Which threads of a stage reach a bounds check, from the conditions on its path.

For problem and approach see `gpud.device.cpu.codegen.hoisting.thread_box`. A uniform condition,
such as whether a pointer is null, determines whether any thread reaches it.

Properties: every thread that reaches the bounds check is in its box, if none of
`AffineSlices.wraps` holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.hoisting.affine import AffineSlices
from gpud.device.cpu.codegen.hoisting.slices import SliceStep, UnknownValue
from gpud.device.cpu.codegen.hoisting.stride_arithmetic import FLAT
from gpud.device.cpu.codegen.hoisting.thread_box import Box, compared, narrowed
from gpud.device.cpu.codegen.hoisting.thread_strides import Widening

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["Condition", "PathConditions"]


class Condition(NamedTuple):
    """A condition for reaching a program point: a predicate, or its negation.

    ``reader`` is the instruction that tests it, ``number`` its index in the stage.
    """

    predicate: str
    negated: bool
    reader: ptx.Instruction
    number: int
    block: int


class PathConditions(AffineSlices):
    """The boxes of one stage's bounds checks."""

    def __init__(self, stage: StageWriter, varying: list[tuple[ptx.Instruction, int]]) -> None:
        super().__init__(stage, varying)
        self._comers: dict[int, Box] = {}

    def reaching_threads(self, step: SliceStep) -> Box:
        """Return the threads that the conditions on the path to a step's block let through."""
        _, block = self.where.get(id(step.ins), (-1, -1))
        if step.now < 0 or block not in self.stage_writer.convergence.inner:
            return super().reaching_threads(step)
        if block not in self._comers:
            shape = self.stage_writer.kernel.shape
            self._comers[block] = self.box(step.ins, (shape.x, shape.y, shape.z))
        return self._comers[block]

    def box(self, ins: ptx.Instruction, extents: tuple[int, int, int]) -> Box:
        """Return a box of threads that contains all that reach a bounds check."""
        x, y, z = extents
        box = Box(((0, x), (0, y), (0, z)))
        for condition in self._before(ins):
            if condition.predicate not in self.stage_writer.lockstep.varying:
                with self.stage_writer.earlier.as_of(condition.reader, condition.number):
                    value = self.code.read(ptx.Register(condition.predicate), "pred")
                box = self._if(box, value, negated=condition.negated)
                continue
            try:
                step = self.reaching(condition.predicate, condition.number, condition.block)
            except UnknownValue:
                continue
            if step is not None:
                box = self._where(box, step, extents, negated=condition.negated)
        return box

    def _before(self, ins: ptx.Instruction) -> Iterator[Condition]:
        """Return the conditions on the path to ``ins``, its guard first."""
        number, block = self.where[id(ins)]
        if ins.guard is not None:
            yield Condition(ins.guard.register.name, ins.guard.negated, ins, number, block)
        yield from self.conditions(block)

    def conditions(self, block: int) -> Iterator[Condition]:
        """Return the conditions on the path to ``block``."""
        flow = self.stage_writer.lockstep.flow
        while block in self.stage_writer.convergence.inner:
            above = flow.dominators[block]
            if above is None:
                return
            last = flow.blocks[above].last
            if last is not None and last.guard is not None and last.opcode.base == "bra":
                if id(last) in self.where and len(flow.blocks[above].successors) == 2:
                    taken, falls = flow.blocks[above].successors
                    for target, negated in ((taken, False), (falls, True)):
                        only = flow.blocks[target].predecessors == [above]
                        if only and flow.dominates(target, block):
                            name, not_ = last.guard.register.name, last.guard.negated != negated
                            yield Condition(name, not_, last, *self.where[id(last)])
            block = above

    def _if(self, box: Box, value: str, *, negated: bool) -> Box:
        """Return ``box`` if an i1 is true (false if ``negated``), otherwise an empty box."""
        some = self.emitter.value(f"xor i1 {value}, true") if negated else value
        if box.some:
            some = self.emitter.value(f"and i1 {box.some}, {some}")
        return replace(box, some=some)

    def _where(
        self, box: Box, step: SliceStep, extents: tuple[int, int, int], *, negated: bool
    ) -> Box:
        """Return ``box`` without the threads for which a predicate has another value."""
        ins = step.ins
        if ins.opcode.base == ("or" if negated else "and"):
            for operand in ins.operands[1:]:
                source = step.sources.get(getattr(operand, "name", ""))
                if source is not None:
                    box = self._where(box, source, extents, negated=negated)
            return box
        if self.strides_of(step) == FLAT:
            value = self.emitter.value(f"load i1, ptr {self._values[id(step)]}")
            return self._if(box, value, negated=negated)
        return self._narrowed(box, step, extents, negated=negated)

    def _narrowed(
        self, box: Box, step: SliceStep, extents: tuple[int, int, int], *, negated: bool
    ) -> Box:
        """Return ``box`` without the threads for which a ``setp`` gives another result."""
        ins, emitter = step.ins, self.emitter
        modifiers = ins.opcode.modifiers
        if ins.opcode.base != "setp" or len(modifiers) != 2 or len(ins.operands) != 3:
            return box
        type_ = modifiers[1]
        if type_ not in ("s32", "u32", "b32"):
            return box
        sides = [self.strides_at(step, operand) for operand in ins.operands[1:]]
        if sides[0] is None or sides[1] is None or sides.count(FLAT) != 1:
            return box
        mirrored = sides[0] == FLAT
        strides = sides[1] if mirrored else sides[0]
        how = compared(modifiers[0], negated=negated, mirrored=mirrored)
        if how is None or strides not in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
            return box
        axis = strides.index(1)
        varying, common = ins.operands[1:] if not mirrored else ins.operands[:0:-1]
        signed = type_ == "s32"
        widening = Widening(varying, signed, strides)
        self.wraps.append(self.may_wrap(step, widening))
        with self.reading(step, self._values):
            how_wide = "sext" if signed else "zext"
            start, end = (
                emitter.value(f"{how_wide} i32 {self.code.read(o, 'u32')} to i64")
                for o in (varying, common)
            )
        border = emitter.value(f"sub i64 {end}, {start}")
        return narrowed(emitter, box, axis, extents[axis], how, border)
