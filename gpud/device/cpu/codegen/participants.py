"""Which threads of a block a stage does something for.

Problem: ``if (threadIdx.x == 0) atomicAdd(...)`` in a loop over all threads asks every one of
them. The leader's part of the persistent loop is such code, and runs for each task block.

Approach: the block's shape is known when code is generated, so what a register made from thread
numbers and constants holds is known for each thread. A stage is followed once with these values. An
instruction *matters* for a thread if it may touch memory that others see, end the block, or change
a register that is kept for the next stage. A stage needs to run only for the threads for which
something matters.

Algorithm: abstract interpretation over the stage's blocks; a value is a number or unknown, for each
thread. What a guard leaves alone keeps its old value, so ``previous = -1; @leader ld previous`` is
known for all but the leader.

Properties: for a thread outside of `Participants.range`, running the stage would change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import (
    ATOMIC,
    MEMORY_WRITE,
    TERMINATOR,
    TRAP,
    VOLATILE,
    flags,
    is_call,
    written,
)
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.places import Shape
from gpud.device.cpu.codegen.pseudo import is_check
from gpud.device.cpu.codegen.regions import waits

__all__ = ["Participants", "participants"]

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.stages import StageWriter

_Mask = npt.NDArray[np.bool_]
_Words = npt.NDArray[np.uint64]
_Value = tuple[_Words, _Mask]
"""The number of each thread, and whether it is known."""
_Read = Callable[[str], _Value | None]

_BITS = {f"{kind}{bits}": bits for kind in "sub" for bits in (16, 32, 64)} | {"pred": 1}
_HOW: Mapping[str, Callable[..., Any]] = {
    "mov": lambda value: value,
    "cvt": lambda value: value,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "mad": lambda first, second, third: first * second + third,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""Integers without a sign, modulo 2**64; for what is narrower the rest is cut off."""
_PLAIN = frozenset(("lo",))
"""Modifiers beside the type that change nothing of this."""
_COMPARISONS: Mapping[str, Callable[..., Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lo": np.less,
    "ls": np.less_equal,
    "hi": np.greater,
    "hs": np.greater_equal,
}


class Participants:
    """The threads for which the instructions seen so far matter.

    Args:
        shape: of the block.
        kept: registers that each thread keeps at the stage's end.
        makers: all instructions of the kernel that write a register. One that a single instruction
            writes holds the same in every stage.
    """

    def __init__(
        self,
        shape: Shape,
        kept: Collection[str],
        makers: Callable[[str], Sequence[tuple[int, ptx.Instruction]]],
    ) -> None:
        self._kept = kept
        self._makers = makers
        self._constants: dict[str, _Value | None] = {}
        self._values: dict[str, _Value] = {}
        self._taking_part: _Mask = np.zeros(shape.threads, np.bool_)
        thread = np.arange(shape.threads, dtype=np.uint64)
        row, plane = np.uint64(shape.x), np.uint64(shape.y)
        self._special = {
            "%tid.x": thread % row,
            "%tid.y": thread // row % plane,
            "%tid.z": thread // row // plane,
            "%laneid": thread % np.uint64(32),
            "%warpid": thread // np.uint64(32),
        } | {
            f"%ntid.{axis}": np.full_like(thread, size)
            for axis, size in zip("xyz", (shape.x, shape.y, shape.z), strict=True)
        }

    @property
    def range(self) -> tuple[int, int]:
        """The first of the threads, and the one after the last; equal if there is none."""
        found = np.flatnonzero(self._taking_part)
        return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)

    def run(self, ins: ptx.Instruction) -> None:
        """``ins`` runs for all threads but those that its guard holds back."""
        held = self._held(ins)
        targets = [register.name for register in written(ins)]
        if _is_seen(ins) or any(name in self._kept for name in targets):
            self._taking_part |= held
        result = self._result(ins, self._now)
        for name in targets:
            self._write(name, result, held, guarded=ins.guard is not None)

    def run_once(self, ins: ptx.Instruction) -> None:
        """``ins`` runs once for all threads, whoever takes part in the rest."""
        held, result = self._held(ins), self._result(ins, self._now)
        for register in written(ins):
            self._write(register.name, result, held, guarded=ins.guard is not None)

    def branch(self, block: Block, inner: Sequence[Block]) -> None:
        """At the end of ``block`` some threads go through ``inner`` blocks, and join again."""
        last = block.last
        assert last is not None, "a branch leads to inner blocks"
        asked = None if last.guard is None else self._guard(last.guard)
        for side in dict.fromkeys(block.successors):
            matters = any(self._matters(one) for one in _reached(side, inner))
            if not matters:
                continue
            if asked is None or last.opcode.base != "bra":
                self._taking_part[:] = True
            else:
                wanted, known = asked
                self._taking_part |= ~known | ((wanted != 0) == (side == block.successors[0]))
        for one in inner:
            for place in one.places:
                for register in written(place.instruction):
                    self._values.pop(register.name, None)

    def _matters(self, block: Block) -> bool:
        return any(
            _is_seen(place.instruction)
            or any(register.name in self._kept for register in written(place.instruction))
            for place in block.places
        )

    # -- values

    def _held(self, ins: ptx.Instruction) -> _Mask:
        """The threads that may run ``ins``."""
        asked = None if ins.guard is None else self._guard(ins.guard)
        if asked is None:
            return np.ones_like(self._taking_part)
        value, known = asked
        held: _Mask = ~known | (value != 0)
        return held

    def _guard(self, guard: ptx.Guard) -> _Value | None:
        found = self._now(guard.register.name)
        if found is None or not guard.negated:
            return found
        return found[0] ^ np.uint64(1), found[1]

    def _write(self, name: str, result: _Value | None, held: _Mask, *, guarded: bool) -> None:
        if guarded:
            # Who may have run it may hold the one value or the other.
            old = self._now(name)
            result = None if old is None else (old[0], old[1] & ~held)
        if result is None:
            self._values.pop(name, None)
        else:
            self._values[name] = result

    def _now(self, name: str) -> _Value | None:
        """What a register holds at this point of the stage."""
        return self._values[name] if name in self._values else self._constant(name)

    def _constant(self, name: str) -> _Value | None:
        """What a register always holds, since one instruction writes it, and always the same."""
        if name not in self._constants:
            self._constants[name] = None  # while it is being found out: it may be made of itself
            makers = self._makers(name)
            if len(makers) == 1 and makers[0][1].guard is None:
                self._constants[name] = self._result(makers[0][1], self._constant)
        return self._constants[name]

    def _result(self, ins: ptx.Instruction, read: _Read) -> _Value | None:
        base, modifiers = ins.opcode.base, ins.opcode.modifiers
        type_ = modifiers[-1] if modifiers else ""
        if type_ not in _BITS or not isinstance(ins.operands[0], ptx.Register):
            return None
        if base == "setp":
            return self._compared(ins, type_, read)
        how = _HOW.get(base)
        plain = _widens(modifiers) if base == "cvt" else _PLAIN.issuperset(modifiers[:-1])
        if how is None or not plain:
            return None
        given = [self._operand(operand, type_, read) for operand in ins.operands[1:]]
        found = [one for one in given if one is not None]
        if len(found) != len(given):
            return None
        value = how(*(one[0] for one in found)) & np.uint64((1 << _BITS[type_]) - 1)
        return value, np.logical_and.reduce([one[1] for one in found])

    def _compared(self, ins: ptx.Instruction, type_: str, read: _Read) -> _Value | None:
        compare = _COMPARISONS.get(ins.opcode.modifiers[0])
        if compare is None or len(ins.operands) != 3 or len(ins.opcode.modifiers) != 2:
            return None
        first, second = (self._operand(operand, type_, read) for operand in ins.operands[1:])
        if first is None or second is None:
            return None
        held = compare(_signed(first[0], type_), _signed(second[0], type_))
        return held.astype(np.uint64), first[1] & second[1]

    def _operand(self, operand: ptx.Operand, type_: str, read: _Read) -> _Value | None:
        threads = len(self._taking_part)
        if isinstance(operand, ptx.Register):
            return read(operand.name)
        if isinstance(operand, ptx.SpecialRegister) and operand.name in self._special:
            return self._special[operand.name], np.ones(threads, np.bool_)
        if isinstance(operand, ptx.Immediate) and operand.kind == "int":
            value = operand.value & ((1 << _BITS[type_]) - 1)
            return np.full(threads, value, np.uint64), np.ones(threads, np.bool_)
        return None


def participants(stage: StageWriter, uniform: Collection[int]) -> tuple[int, int]:
    """The first of the threads that a stage does something for, and the one after the last.

    All of them where nothing better can be said, or where a loop over the others is none over the
    threads of a row.

    Args:
        stage: the stage that is being written.
        uniform: identities of its instructions that run once for all threads.
    """
    shape, flow, convergence = stage.kernel.shape, stage.w.flow, stage.convergence
    everybody = 0, shape.threads
    last = flow.blocks[stage.stage.last].last
    asks = last is not None and waits(last) and stage.does_something(last, last)
    if asks or stage.to_keep or stage.stage.last in convergence.voted:
        return everybody
    exits = [target for target in stage.w.plan.exits(stage.stage) if target != flow.exit]
    kept = {name for target in exits for name in stage.kernel.regions.kept_at(target)}
    found = Participants(shape, kept & stage.w.varying, convergence.makers)
    for segment in stage.stage.segments:
        block, *inner = (flow.blocks[number] for number in segment.blocks)
        if block.index in convergence.inner:
            return everybody
        for place in block.places:
            ins = place.instruction
            if id(ins) in uniform:
                found.run_once(ins)
            elif ins is not block.last or segment.join is None:
                found.run(ins)
        if segment.join is not None:
            found.branch(block, inner)
    first, stop = found.range
    if stop - first <= 1:
        return first, first + 1
    return (first, stop) if shape.x == shape.threads else everybody


# -- helpers -----------------------------------------------------------------------------------


def _is_seen(ins: ptx.Instruction) -> bool:
    """Whether it can be seen that a thread runs ``ins``, but in registers.

    In memory, or because the block ends. What all wait for, and where control goes, is the stage's.
    """
    bits = flags(ins.opcode)
    if bits & (MEMORY_WRITE | ATOMIC | VOLATILE | TRAP) or is_call(ins) or is_check(ins):
        return True
    if bits & TERMINATOR or waits(ins) or ins.opcode.text.startswith("gpud.resume"):
        return False
    return ins.opcode.base == "mbarrier" or not written(ins)


def _reached(start: int, inside: Sequence[Block]) -> Iterator[Block]:
    """The blocks of ``inside`` to which control can come from ``start``."""
    blocks = {block.index: block for block in inside}
    work = [start]
    while work:
        block = blocks.pop(work.pop(), None)
        if block is not None:
            yield block
            work += block.successors


def _widens(modifiers: tuple[str, ...]) -> bool:
    """Whether a conversion keeps the value of an unsigned number."""
    if len(modifiers) != len(("to", "of")) or modifiers[1][0] not in "ub":
        return False
    to, of = (_BITS.get(name, 0) for name in modifiers)
    return 0 < of <= to


def _signed(value: _Words, type_: str) -> npt.NDArray[Any]:
    if type_[0] != "s":
        return value
    shift = np.uint64(64 - _BITS[type_])
    return (value << shift).astype(np.int64)
