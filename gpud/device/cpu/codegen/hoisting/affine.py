"""Affine values of a stage: those that grow by the same amount from thread to thread.

Terms: the *strides* of a value are by how much it grows for the next thread in x, y and z, modulo 2
to the power of its width; for slices see `gpud.device.cpu.codegen.hoisting.slices`.

Addresses are computed in 32 bits before they are widened, and could wrap around between the first
and the last thread that runs the instruction. So where an affine value of 32 bits is widened, a
test checks that its lowest and highest value fit 32 bits as integers. Then the widened value is
affine too.

LLVM does not know this: of an index that may wrap it cannot tell that neighbours access
neighbouring memory. So a loop that runs only where no value wraps need not compute such a pointer
as the program does: it is an *affine pointer*, the first thread's plus the thread's number times
the stride.

Properties:
* if none of the conditions `AffineSlices.wraps` holds, values have their strides in all threads
  that compute them;
* an affine pointer then has the value that its instruction would have computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.analysis.effects import written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.hoisting.slices import Slices, SliceStep
from gpud.device.cpu.codegen.hoisting.stride_arithmetic import FLAT, Strides, add
from gpud.device.cpu.codegen.hoisting.thread_box import Box, span_of
from gpud.device.cpu.codegen.hoisting.thread_strides import Widening, strides_of
from gpud.device.cpu.ir.emitter import Emitter

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.stage_writer import StageWriter

__all__ = ["AffinePointer", "AffineSlices"]

_MOST_STRIDE = 1 << 31


class AffinePointer(NamedTuple):
    """The first thread's pointer, in a slot, and its strides."""

    slot: str
    strides: Strides

    def of(self, emitter: Emitter, thread: tuple[str, str, str]) -> str:
        """Return the ``ptr`` of the thread at these coordinates (i32)."""
        pointer = emitter.value(f"load ptr, ptr {self.slot}")
        for number, stride in zip(thread, self.strides, strict=True):
            if stride != 0:
                small = isinstance(stride, int) and abs(stride) < _MOST_STRIDE
                wide = emitter.value(f"zext i32 {number} to i64")
                more = emitter.value(f"mul {'nsw ' if small else ''}i64 {wide}, {stride}")
                pointer = emitter.value(f"getelementptr i8, ptr {pointer}, i64 {more}")
        return pointer


class AffineSlices(Slices):
    """The slices of one stage, run for the first thread, with their strides.

    Attributes:
        wraps: conditions (i1), any of which means that some widened value wraps.
        affine_pointers: by identity of the instruction and whether it runs before the stage's own.
    """

    def __init__(self, stage: StageWriter, varying: list[tuple[ptx.Instruction, int]]) -> None:
        super().__init__(stage, varying)
        self.wraps: list[str] = []
        self.affine_pointers: dict[tuple[int, bool], AffinePointer] = {}
        self._values: dict[object, str] = {}
        self._strides: dict[int, Strides | None] = {}
        self._widened: set[int] = set()
        """Identities of steps that depend on a widened value, but not through an affine pointer."""

    def strides_of(self, step: SliceStep) -> Strides | None:
        """Return the strides of a step's result, None if unknown; run the step and its sources."""
        for one in (*self.ordered(step), step):
            if not self._knows_strides(one):
                return None
        return self._strides[id(step)]

    def strides_at(self, step: SliceStep, operand: ptx.Operand) -> Strides | None:
        """Return the strides of an operand of ``step``."""
        if isinstance(operand, ptx.Immediate):
            return FLAT
        if isinstance(operand, ptx.SpecialRegister) and operand.name.startswith("%tid."):
            axis = "xyz".find(operand.name[-1])
            return (int(axis == 0), int(axis == 1), int(axis == 2))
        if not isinstance(operand, ptx.Register):
            return None
        if operand.name not in self.stage_writer.lockstep.varying:
            return FLAT
        source = step.sources.get(operand.name)
        return None if source is None else self.strides_of(source)

    def linear_strides(self, size: int) -> Strides:
        """Return the strides of thread number times ``size``."""
        shape = self.stage_writer.kernel.shape
        return (size, size * shape.x, size * shape.x * shape.y)

    def _knows_strides(self, step: SliceStep) -> bool:
        """Run the step for the first thread and compute its strides; return whether it has any."""
        if id(step) in self._strides:
            return self._strides[id(step)] is not None
        self._strides[id(step)] = None
        sources: dict[str, Strides] = {}
        for name, source in step.sources.items():
            if name not in self.stage_writer.lockstep.varying:
                sources[name] = FLAT
                continue
            known = None if source is None else self._strides.get(id(source))
            if known is None:
                return False
            sources[name] = known
        self.run([step], self._values)
        with self.reading(step, self._values):
            result = strides_of(
                self.code, step.ins, sources, self.linear_strides(1), self.stage_writer.kernel
            )
        if result is None:
            return False
        strides, widening = result
        if widening is not None and any(strides):
            self._widen(step, widening)
            self._widened.add(id(step))
        elif any(id(source) in self._widened for source in step.sources.values()):
            self._widened.add(id(step))
        self._strides[id(step)] = strides
        self._make_affine_pointer(step, strides)
        return True

    def _make_affine_pointer(self, step: SliceStep, strides: Strides) -> None:
        name = written(step.ins)[0].name
        if not all(isinstance(stride, int) for stride in strides):
            return  # the stride is no constant for LLVM: a product for each thread, no gain
        if id(step) in self._widened and self.stage_writer.kernel.storage[name] == "ptr":
            self.affine_pointers[id(step.ins), step.now < 0] = AffinePointer(
                self._values[id(step)], strides
            )
            self._widened.discard(id(step))

    def _whole(self) -> Box:
        shape = self.stage_writer.kernel.shape
        return Box(((0, shape.x), (0, shape.y), (0, shape.z)))

    def reaching_threads(self, step: SliceStep) -> Box:
        """Return the threads that may reach a step."""
        return self._whole()

    def _widen(self, step: SliceStep, widening: Widening) -> None:
        """Add the condition that a widened value does not fit 32 bits in a thread at ``step``.

        If the first thread of the block does not reach ``step``, its value is set to the one from
        which those of the others continue: in ``if (i > 0) a[i - 1]`` it would have wrapped.
        """
        emitter, box = self.emitter, self.reaching_threads(step)
        among = all(
            stride == 0 or first == 0
            for stride, (first, _) in zip(widening.strides, box.ends, strict=True)
        )
        if among:
            wraps = self.may_wrap(step, widening, box)
        else:
            wide = self._wide(step, widening)
            lowest, highest = span_of(emitter, widening.strides, box)
            low = self._narrow(add(emitter, wide, lowest), widening)
            start = emitter.value(f"sub i64 {low}, {lowest}")
            last = add(emitter, start, highest)
            wraps = emitter.value(f"icmp ne i64 {last}, {self._narrow(last, widening)}")
            more = emitter.value(f"sub i64 {start}, {wide}")
            self._advance(step, emitter.value(f"mul i64 {more}, {widening.factor}"))
        self.wraps.append(emitter.value(f"and i1 {box.some}, {wraps}") if box.some else wraps)

    def _advance(self, step: SliceStep, more: str) -> None:
        """Add an i64 to the first thread's result of a step."""
        emitter, slot = self.emitter, self._values[id(step)]
        if self.stage_writer.kernel.storage[written(step.ins)[0].name] == "ptr":
            made = emitter.value(f"load ptr, ptr {slot}")
            moved = emitter.value(f"getelementptr i8, ptr {made}, i64 {more}")
            emitter.do(f"store ptr {moved}, ptr {slot}")
        else:
            made = emitter.value(f"load i64, ptr {slot}")
            emitter.do(f"store i64 {emitter.value(f'add i64 {made}, {more}')}, ptr {slot}")

    def _wide(self, step: SliceStep, widening: Widening) -> str:
        """Return the widened operand (i64) in the first thread of the block."""
        with self.reading(step, self._values):
            start = self.code.read(widening.operand, "u32")
        return self.emitter.value(f"{'sext' if widening.signed else 'zext'} i32 {start} to i64")

    def _narrow(self, value: str, widening: Widening) -> str:
        """Truncate an i64 to 32 bits and widen it again."""
        low = self.emitter.value(f"trunc i64 {value} to i32")
        return self.emitter.value(f"{'sext' if widening.signed else 'zext'} i32 {low} to i64")

    def may_wrap(self, step: SliceStep, widening: Widening, box: Box | None = None) -> str:
        """Return an i1: whether a widened value exceeds 32 bits in some thread of box or block."""
        emitter, wide = self.emitter, self._wide(step, widening)
        result = "false"
        for end in span_of(emitter, widening.strides, self._whole() if box is None else box):
            if end == 0:
                continue
            value = add(emitter, wide, end)
            differs = emitter.value(f"icmp ne i64 {value}, {self._narrow(value, widening)}")
            result = differs if result == "false" else emitter.value(f"or i1 {result}, {differs}")
        return result
