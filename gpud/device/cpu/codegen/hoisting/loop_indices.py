"""Indices of loops within a stage: their initial and final values.

For problem, approach and other terms see `gpud.device.cpu.codegen.hoisting.intervals`.

Terms: an *own step* of a register is an instruction that adds something to it, directly or through
copies. A register with exactly one, which all iterations of a loop pass, is the loop's *index* if
the loop's only back edge depends on a comparison of it. Its value *at the head* is its value from
the loop's first block up to its step.

Properties:
* the value of an index at the head of a loop is its initial value, or one that passed the only back
  edge, and so the comparison;
* it only grows, and never wraps, unless a condition for doubt holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.analysis.cfg import Loop
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.register_types import WORD_BITS
from gpud.device.cpu.codegen.hoisting.intervals import Interval
from gpud.device.cpu.codegen.hoisting.slices import UnknownValue
from gpud.device.cpu.codegen.hoisting.thread_box import compared
from gpud.device.cpu.codegen.hoisting.transfer_functions import TransferFunctions, signed

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.hoisting.hoisted_checks import HoistedChecks

__all__ = ["AT_MOST", "LoopIndices", "LoopPlace"]

_STORED = {"i32": 32, "i64": 64, "ptr": 64}
AT_MOST = ("lt", "le", "lo", "ls")
"""Comparisons that bound their left operand from above."""
_MAX_COPIES = 4
"""Maximum number of instructions through which a step is followed."""


class LoopPlace(NamedTuple):
    """A read of a register: the reader, its number in the stage, its block."""

    reader: ptx.Instruction
    number: int
    block: int


class _Advance(NamedTuple):
    """The increment of an own step: a constant and operands; and its instructions."""

    constant: int
    others: tuple[tuple[ptx.Operand, str, LoopPlace], ...]
    places: tuple[LoopPlace, ...]
    """The first one reads the register itself."""


class _Index(NamedTuple):
    """The known intervals of a loop's index: at the loop's head, and anywhere."""

    loop: Loop
    step: LoopPlace
    after: frozenset[int]
    """Blocks reachable from the step without passing the loop's head."""
    head: Interval
    anywhere: Interval


class LoopIndices(TransferFunctions):
    """The indices of the loops of one stage, and the definitions that reach a read.

    Args:
        hoisted: the stage's bounds checks, where code is being written: before the stage's loop.
    """

    def __init__(self, hoisted: HoistedChecks) -> None:
        super().__init__(hoisted.emitter)
        self._hoisted = hoisted
        self._stage_writer = hoisted.stage_writer
        self._flow = hoisted.stage_writer.lockstep.flow
        self._indices: dict[str, _Index | None] = {}
        self._made: dict[object, Interval] = {}

    @contextmanager
    def rollback_if_unknown(self) -> Iterator[None]:
        """Discard, on `UnknownValue`, the intervals computed on the way.

        They depend on doubts that no caller will test.
        """
        before = dict(self._made), dict(self._indices), list(self.doubts)
        try:
            yield
        except UnknownValue:
            self._made, self._indices, self.doubts = before
            raise

    def _union(self, name: str, place: LoopPlace, but: tuple[LoopPlace, ...]) -> Interval:
        """Return the hull of all definitions of a register but some."""
        raise NotImplementedError

    def _operand(self, operand: ptx.Operand, type_: str, place: LoopPlace) -> Interval:
        """Return the interval of an operand of the instruction at ``place``."""
        raise NotImplementedError

    # -- definitions

    def _bits_of(self, name: str) -> int:
        bits = _STORED.get(self._stage_writer.kernel.storage[name])
        if bits is None:
            raise UnknownValue
        return bits

    def _defined(self, name: str) -> list[LoopPlace]:
        return [
            LoopPlace(ins, number, block) for number, block, ins in self._hoisted.definitions(name)
        ]

    def _exact(self, name: str, place: LoopPlace) -> LoopPlace | None:
        """Return the one definition whose latest result is read, if there is one."""
        made = self._defined(name)
        near = [d for d in made if d.block == place.block and d.number < place.number]
        if near:
            return None if near[-1].reader.guard is not None else near[-1]
        if len(made) == 1 and made[0].block != place.block and made[0].reader.guard is None:
            if self._flow.dominates(made[0].block, place.block):
                return made[0]
        return None

    # -- indices of loops

    def _reads_head_value(self, index: _Index, place: LoopPlace) -> bool:
        """Return whether ``place`` reads the value that the index had at the head of its loop."""
        if place.number < 0 or place.block not in index.loop.blocks:
            return False
        if place.block == index.step.block:
            return place.number <= index.step.number
        return place.block not in index.after

    def _index(self, name: str) -> _Index | None:
        if name not in self._indices:
            self._indices[name] = None
            self._indices[name] = self._find_index(name)
        return self._indices[name]

    def _find_index(self, name: str) -> _Index | None:
        made = self._defined(name)
        steps = [(d, self._advance(name, d, _MAX_COPIES)) for d in made]
        own = [(d, advance) for d, advance in steps if advance is not None]
        if len(own) != 1 or own[0][0].reader.guard is not None:
            return None
        step, advance = own[0]
        assert advance is not None
        around = [loop for loop in self._flow.loops if step.block in loop.blocks]
        if not around:
            return None
        loop = min(around, key=lambda one: len(one.blocks))
        if any(d.block in loop.blocks for d in made if d != step):
            return None
        header = self._flow.blocks[loop.header]
        latches = [p for p in header.predecessors if p in loop.blocks]
        if len(latches) != 1 or not self._flow.dominates(step.block, latches[0]):
            return None
        after = self._blocks_after_step(name, loop, latches[0], step)
        if after is None:
            return None
        none = self.one(0, 0)
        index = _Index(loop, step, after, none, none)
        if not self._reads_head_value(index, advance.places[0]):
            return None
        if any(place.block not in loop.blocks for place in advance.places):
            return None
        first = header.places[0].instruction if header.places else None
        if first is None or id(first) not in self._stage_writer.ordinal:
            return None
        entry = LoopPlace(first, self._stage_writer.ordinal[id(first)], loop.header)
        start = self._union(name, entry, (step,))
        return self._bounded(name, index, latches[0], advance, start)

    def _blocks_after_step(
        self, name: str, loop: Loop, latch: int, step: LoopPlace
    ) -> frozenset[int] | None:
        """Return the blocks that the result of a step can reach before the loop continues.

        None if it can reach the loop's head by an edge other than from its latch.
        """
        inside = {n for segment in self._stage_writer.stage.segments for n in segment.blocks}
        ends = {d.block for d in self._defined(name) if d != step and d.reader.guard is None}
        reached: set[int] = set()
        work = [step.block]
        while work:
            number = work.pop()
            for successor in self._flow.blocks[number].successors:
                if (number, successor) == (latch, loop.header):
                    continue
                if successor in (loop.header, step.block):
                    return None
                if successor in inside and successor not in reached | ends:
                    reached.add(successor)
                    work.append(successor)
        return frozenset(reached)

    def _bounded(
        self,
        name: str,
        index: _Index,
        latch: int,
        advance: _Advance,
        start: Interval,
    ) -> _Index | None:
        """Return the index's intervals from the comparison that continues the loop."""
        last = self._flow.blocks[latch].last
        if last is None or last.guard is None or last.opcode.base != "bra":
            return None
        successors = self._flow.blocks[latch].successors
        if len(set(successors)) != 2 or id(last) not in self._stage_writer.ordinal:
            return None
        negated = last.guard.negated != (successors[0] != index.loop.header)
        test = self._exact(
            last.guard.register.name, LoopPlace(last, self._stage_writer.ordinal[id(last)], latch)
        )
        if test is None or test.block != latch or test.reader.opcode.base != "setp":
            return None
        if test.reader.operands[0] != last.guard.register:
            return None
        ins, modifiers = test.reader, test.reader.opcode.modifiers
        bits = self._bits_of(name)
        if len(modifiers) != 2 or WORD_BITS.get(modifiers[1]) != bits or len(ins.operands) != 3:
            return None
        by = self._advanced_by(advance)
        for mirrored in (False, True):
            mine, other = ins.operands[1:] if not mirrored else ins.operands[:0:-1]
            ahead = self._tested(name, mine, test, index)
            how = compared(modifiers[0], negated=negated, mirrored=mirrored)
            if ahead is None or how not in AT_MOST:
                continue
            kind = "u" if modifiers[1][0] == "u" or how in ("lo", "ls") else "s"
            type_ = f"{kind}{bits}"
            border = self.fits(self._operand(other, type_, test), type_).high
            last_round = border if how in ("le", "ls") else self.minus(border, 1)
            if not ahead:
                last_round = self.plus(last_round, by.high)
            self.doubt("slt", by.low, 1)
            most = max(start.most, (1 << 32) + 1 + by.most if bits == 32 else 1 << 63)
            stride = min(start.step, by.low & -by.low) if isinstance(by.low, int) else 1
            base = start.base if stride > 1 else 0
            head = Interval(start.low, self.greatest(start.high, last_round), stride, base, most)
            head = self.small(head)
            anywhere = replace(head, high=self.plus(head.high, by.high), most=head.most + by.most)
            self.fits(anywhere, type_)  # it does not wrap
            return index._replace(head=head, anywhere=anywhere)
        return None

    def _advanced_by(self, advance: _Advance) -> Interval:
        by = self.one(advance.constant, abs(advance.constant))
        for operand, type_, place in advance.others:
            by = self.add(by, self._operand(operand, type_, place))
        return self.small(by, 1 << 32)

    def _tested(
        self, name: str, operand: ptx.Operand, test: LoopPlace, index: _Index
    ) -> bool | None:
        """Return whether the index is compared after its step, not before; None if neither."""
        if not isinstance(operand, ptx.Register):
            return None
        step = index.step
        if operand.name == name:
            return test.block != step.block or test.number > step.number or None
        made = self._exact(operand.name, test)
        if made is None or made.reader.guard is not None or made.reader.opcode.base != "mov":
            return None
        copies = made.reader.operands[1] == ptx.Register(name)
        return False if copies and self._reads_head_value(index, made) else None

    def _advance(self, name: str, made: LoopPlace, depth: int) -> _Advance | None:
        """Return the increment from ``name`` to an instruction's result, None if it is unknown."""
        ins = made.reader
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        if not depth or not modifiers or not all(m in WORD_BITS for m in modifiers):
            return None
        if self._bits_of(name) == 64 and any(WORD_BITS[m] == 32 for m in modifiers):
            return None
        if base == "mov" or (base == "cvt" and len(modifiers) == 2):
            return self._advance_of(name, ins.operands[1], made, depth)
        if base != "add" or len(modifiers) != 1:
            return None
        for source, other in (ins.operands[1:], ins.operands[:0:-1]):
            advance = self._advance_of(name, source, made, depth)
            if advance is None:
                continue
            if isinstance(other, ptx.Immediate):
                more = signed(other.value, WORD_BITS[modifiers[-1]])
                return advance._replace(constant=advance.constant + more)
            return advance._replace(others=(*advance.others, (other, modifiers[-1], made)))
        return None

    def _advance_of(
        self, name: str, source: ptx.Operand, made: LoopPlace, depth: int
    ) -> _Advance | None:
        if not isinstance(source, ptx.Register):
            return None
        defining = self._exact(source.name, made)
        if source.name == name:
            return _Advance(0, (), (made,)) if defining is None else None
        if defining is None or defining.reader.guard is not None:
            return None
        advance = self._advance(name, defining, depth - 1)
        return None if advance is None else advance._replace(places=(*advance.places, made))
