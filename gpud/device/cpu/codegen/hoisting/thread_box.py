"""Boxes of thread numbers: which threads of a block reach an inner block.

Problem: in ``if (tid < 64) s[tid] += s[tid + 64]`` the addresses of the inactive threads are beyond
the array. A test for all threads would always fail.

Approach: a condition that compares a value which grows by one from thread to thread along one axis
with a uniform value holds for a range of that axis. `Box` is the part of the block for which the
conditions on the path to an access hold; its ends may be known only at run time.

Properties: every thread that meets the conditions is in the box.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from gpud.device.cpu.codegen.hoisting.stride_arithmetic import Stride, Strides, add, multiply
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["AlignedRanges", "Box", "compared", "narrowed", "span_of"]

Ends = tuple[Stride, Stride]
"""The first of a range and the one after its last: numbers, or LLVM i64."""
_NEGATIVE = -(1 << 63)

_FLIPPED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "lo": "hs", "ls": "hi", "hi": "ls",
            "hs": "lo", "eq": "ne", "ne": "eq"}  # fmt: skip
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "lo": "hi", "ls": "hs", "hi": "lo",
             "hs": "ls", "eq": "eq", "ne": "ne"}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """Ranges of x, y and z; ``some`` is an i1: whether the box is not empty; "" if it never is."""

    ends: tuple[Ends, Ends, Ends]
    some: str = ""


class AlignedRanges:
    """Tests whether any of several offsets is too large or misaligned, without branches.

    An offset is legal if it is not negative, less than its limit, and a multiple of its alignment:
    ``limit - 1 - offset`` is not negative either. So only some bits of two numbers matter of each
    offset, and those of all offsets are combined before the test.
    """

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self._joined: dict[str, dict[int, dict[str, None]]] = {}
        """Numbers by the condition (i1) under which they matter, and by the bits of them that do.
        """

    @property
    def any(self) -> bool:
        """Whether there are offsets."""
        return bool(self._joined)

    def add(self, first: str, end: str, align: int, limit: str, some: str = "") -> None:
        """Test the offsets from ``first`` to ``end`` (i64), if the i1 ``some`` holds.

        ``first`` must be a multiple of ``align``, and ``end``, which is less than 2**62 above it,
        less than ``limit`` (i64, unsigned), which is less than 2**63.
        """
        masks = self._joined.setdefault(some, {})
        masks.setdefault(_NEGATIVE + align - 1, {})[first] = None
        if end != first:
            masks.setdefault(_NEGATIVE, {})[end] = None
        last = str(int(limit) - 1) if limit.isdigit() else self.emitter.value(f"sub i64 {limit}, 1")
        masks.setdefault(_NEGATIVE, {})[self.emitter.value(f"sub i64 {last}, {end}")] = None

    def missed(self) -> str:
        """Return an i1: whether some offset does not pass."""
        emitter, bad = self.emitter, ""
        for some, masks in self._joined.items():
            part = ""
            for mask, numbers in masks.items():
                bits = emitter.value(f"and i64 {self._either(numbers)}, {mask}")
                part = emitter.value(f"or i64 {part}, {bits}") if part else bits
            if some:
                part = emitter.value(f"select i1 {some}, i64 {part}, i64 0")
            bad = emitter.value(f"or i64 {bad}, {part}") if bad else part
        return emitter.value(f"icmp ne i64 {bad}, 0")

    def _either(self, numbers: Iterable[str]) -> str:
        result = ""
        for number in numbers:
            result = self.emitter.value(f"or i64 {result}, {number}") if result else number
        return result


def compared(how: str, *, negated: bool, mirrored: bool) -> str | None:
    """Return the comparison that holds, None if it does not define a range.

    Args:
        how: as ``setp`` names it.
        negated: whether ``how`` does not hold.
        mirrored: whether the varying operand is on the right.
    """
    if negated:
        how = _FLIPPED.get(how, "")
    return _MIRRORED.get(how) if mirrored else (how if how in _MIRRORED else None)


def narrowed(emitter: Emitter, box: Box, axis: int, extent: int, how: str, border: str) -> Box:
    """Return ``box`` with only the threads whose number compares with a border.

    Args:
        emitter: where the code goes.
        box: the threads so far.
        axis: along which threads are numbered.
        extent: threads along it.
        how: the comparison of the number (left) with the border, as ``setp`` names it.
        border: i64.
    """
    for name in ("smin", "smax"):
        emitter.module.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
    first, stop = box.ends[axis]
    if how in ("lt", "lo", "le", "ls", "eq"):
        after = border if how in ("lt", "lo") else emitter.value(f"add i64 {border}, 1")
        stop = emitter.value(f"call i64 @llvm.smin.i64(i64 {stop}, i64 {after})")
    if how in ("gt", "hi", "ge", "hs", "eq"):
        begin = border if how in ("ge", "hs", "eq") else emitter.value(f"add i64 {border}, 1")
        first = emitter.value(f"call i64 @llvm.smax.i64(i64 {first}, i64 {begin})")
    if how == "ne":
        is_first = emitter.value(
            f"zext i1 {emitter.value(f'icmp eq i64 {first}, {border}')} to i64"
        )
        first = emitter.value(f"add i64 {first}, {is_first}")
        before = add(emitter, stop, -1)
        is_last = emitter.value(f"icmp eq i64 {before}, {border}")
        stop = emitter.value(f"select i1 {is_last}, i64 {before}, i64 {stop}")
    some = emitter.value(f"icmp slt i64 {first}, {stop}")
    if box.some:
        some = emitter.value(f"and i1 {box.some}, {some}")
    ends = list(box.ends)
    ends[axis] = (first, stop)
    return replace(box, ends=(ends[0], ends[1], ends[2]), some=some)


def span_of(emitter: Emitter, strides: Strides, box: Box) -> tuple[Stride, Stride]:
    """Return by how much the lowest and highest value in a box differ from the first thread's."""
    lowest: Stride = 0
    highest: Stride = 0
    for stride, (first, stop) in zip(strides, box.ends, strict=True):
        if stride == 0:
            continue
        low = multiply(emitter, stride, first)
        high = multiply(emitter, stride, add(emitter, stop, -1))
        if isinstance(stride, int):
            if stride < 0:
                low, high = high, low
        else:
            for name in ("smin", "smax"):
                emitter.module.declare(f"declare i64 @llvm.{name}.i64(i64, i64)")
            low, high = (
                emitter.value(f"call i64 @llvm.{name}.i64(i64 {low}, i64 {high})")
                for name in ("smin", "smax")
            )
        lowest, highest = add(emitter, lowest, low), add(emitter, highest, high)
    return lowest, highest
