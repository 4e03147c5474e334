"""Addresses that grow evenly from thread to thread, and wrap around on the way.

Problem: a device may check such accesses of all threads at once by the lowest and the highest
address. That is wrong where the sum wraps: the first and the last thread can be inside, and those
between them anywhere. Approach: kernels whose threads load from ``base + index * scale``, where
index is a sum of multiples of the thread's and the task block's coordinates, in 64 or 32 bits; and
launches whose factors make it wrap, by whole turns where they can.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import gpud_client as gc
from campaigns.out_of_bounds.campaign import Tally
from campaigns.out_of_bounds.cases import Layout
from campaigns.out_of_bounds.check import Outcome, array_problems, differences, reset
from campaigns.out_of_bounds.kernels import HEADER
from campaigns.out_of_bounds.world import PAGE, TIMEOUT_S, World

WORD: Final = (1 << 64) - 1
GRID: Final = 2


@dataclass(frozen=True)
class Affine:
    """A kernel: ``kind`` is u64, u32 or s32, the type of the index; ``form`` how it is computed.

    ``factors``: of x, y, z and the task block, if they are constants of the code.
    """

    name: str
    kind: str
    scale: int
    form: str
    block: tuple[int, int, int]
    factors: tuple[int, int, int, int] | None = None

    @property
    def bits(self) -> int:
        """Of the index."""
        return int(self.kind[1:])

    def text(self) -> str:
        """Its PTX."""
        bits, words = self.bits, ("start", "fx", "fy", "fz", "fb")
        wrapped = f"u{bits}" if bits == 64 else "u32"
        parameters = ["base", *words, "out"]
        lines = [
            f".visible .entry {self.name}(",
            ",\n".join(f"  .param .u64 {self.name}_{word}" for word in parameters),
            ")\n{",
            "  .reg .b32 %n<9>; .reg .b64 %w<9>; .reg .b32 %v; .reg .pred %p;",
            f"  .reg .b{bits} %i, %x, %y, %z, %b, {', '.join('%' + word for word in words)};",
        ]
        for word in words:
            lines.append(f"  ld.param.u64 %w0, [{self.name}_{word}];")
            constant = None
            if self.factors is not None and word != "start":
                constant = self.factors[words.index(word) - 1] % (1 << bits)
            if constant is not None:
                lines.append(f"  mov.b{bits} %{word}, {constant};")
            else:
                cut = "mov.b64" if bits == 64 else "cvt.u32.u64"
                lines.append(f"  {cut} %{word}, %w0;")
        for name, special in zip("xyzb", ("%tid.x", "%tid.y", "%tid.z", "%ctaid.x"), strict=True):
            lines.append(f"  mov.u32 %n0, {special};")
            widen = "cvt.u64.u32" if bits == 64 else "mov.u32"
            lines.append(f"  {widen} %{name}, %n0;")
        lines.append(f"  mov.b{bits} %i, %start;")
        for name in "xyzb":
            if self.form == "mad":
                lines.append(f"  mad.lo.{wrapped} %i, %{name}, %f{name}, %i;")
            else:
                lines.append(f"  mul.lo.{wrapped} %{name}, %{name}, %f{name};")
                lines.append(f"  add.{wrapped} %i, %i, %{name};")
        lines += [f"  ld.param.u64 %w1, [{self.name}_base]; ld.param.u64 %w2, [{self.name}_out];"]
        if bits == 64:
            lines.append(f"  mad.lo.u64 %w3, %i, {self.scale}, %w1;")
        elif self.form == "mad":
            lines.append(f"  mad.wide.{self.kind} %w3, %i, {self.scale}, %w1;")
        else:
            lines.append(f"  cvt.{'s64' if self.kind == 's32' else 'u64'}.{self.kind} %w3, %i;")
            lines.append(f"  mad.lo.u64 %w3, %w3, {self.scale}, %w1;")
        lines += [
            "  ld.global.u32 %v, [%w3];",
            "  mov.u32 %n1, %ntid.x; mov.u32 %n2, %ntid.y; mov.u32 %n3, %ntid.z;",
            "  mov.u32 %n4, %ctaid.x; mov.u32 %n5, %tid.z; mov.u32 %n6, %tid.y;",
            "  mov.u32 %n7, %tid.x; mad.lo.u32 %n5, %n4, %n3, %n5;",
            "  mad.lo.u32 %n6, %n5, %n2, %n6; mad.lo.u32 %n7, %n6, %n1, %n7;",
            "  mul.wide.u32 %w4, %n7, 4; add.s64 %w4, %w2, %w4;",
            "  st.global.u32 [%w4], %v;",
            "  ret;\n}",
        ]
        return "\n".join(lines) + "\n"

    def addresses(
        self, base: int, start: int, factors: tuple[int, int, int, int]
    ) -> Iterator[tuple[int, int, int]]:
        """(task block, linear thread, address)."""
        nx, ny, nz = self.block
        top = 1 << self.bits
        for number in range(GRID * nx * ny * nz):
            block, thread = divmod(number, nx * ny * nz)
            x, y, z = thread % nx, thread // nx % ny, thread // nx // ny
            index = start
            for factor, coordinate in zip(factors, (x, y, z, block), strict=True):
                index += factor * coordinate
            index %= top
            if self.kind == "s32" and index >= top >> 1:
                index -= top
            yield block, thread, (base + index * self.scale) & WORD


def _kernels(rng: random.Random) -> list[Affine]:
    blocks = ((9, 1, 1), (33, 1, 1), (5, 3, 2), (3, 3, 3), (17, 4, 1), (2, 9, 1), (3, 1, 9))
    found: list[Affine] = []
    for kind in ("u64", "u32", "s32"):
        for scale in (1, 4, 16):
            for form in ("mad", "mul"):
                name = f"a{len(found)}"
                found.append(Affine(name, kind, scale, form, rng.choice(blocks)))
        for _ in range(3):
            block = rng.choice(blocks)
            factors = _factors(rng, int(kind[1:]), block)
            name = f"a{len(found)}"
            found.append(Affine(name, kind, 4, "mad", block, factors))
    return found


def _factors(
    rng: random.Random, bits: int, block: tuple[int, int, int]
) -> tuple[int, int, int, int]:
    """Some small ones, and some that make the whole way a multiple of a turn."""

    def one(count: int) -> int:
        turn = 1 << bits
        around = [turn // (count - 1), -(turn // (count - 1))] if count > 1 else [0]
        choices = [0, 1, 4, -4, 64, -64, turn >> 1, turn >> 2, turn >> 3, turn >> 5, 1 << 20]
        return rng.choice((*choices, *around, *around, *around))

    x, y, z = (one(count) for count in block)
    small = rng.choice((0, 1, 4, 1 << (bits - 1)))
    if rng.randrange(2):  # one direction that wraps is enough
        y, z = rng.choice(((0, 0), (4, 0), (4, 16)))
    return x, y, z, small


def affine(world: World, tally: Tally, seed: int, each: int) -> None:
    """Run ``each`` launches of every kernel."""
    rng = random.Random(seed)
    kernels = _kernels(rng)
    module = world.gpu.module(HEADER + "".join(one.text() for one in kernels))
    for one in kernels:
        kernel = module.kernel(one.name)
        for number in range(each):
            layout = world.layout
            factors = one.factors or _factors(rng, one.bits, one.block)
            base, start = _start(rng, one, layout)
            args = (base, start, *(factor & WORD for factor in factors), layout.out)
            what = f"seed {seed}: {one} #{number}: {base:#x} {start:#x} {factors}"
            found = list(one.addresses(base, start, factors))
            outcome = _run(world, one, kernel, args, found)
            ends = outcome.kind
            tally.add("affine", "wrapping" if ends != "ran" else "legal: wrapping", what, outcome)
        tally.fail(f"seed {seed}: {one}", world.neighbour_faults())


def _start(rng: random.Random, one: Affine, layout: Layout) -> tuple[int, int]:
    """A base and a first index, so that the first thread of the first task block is inside."""
    first = rng.choice((layout.base, layout.end - 4, layout.good, layout.good + 4 * 64))
    turn = 1 << one.bits
    start = rng.choice((0, 0, 16, turn - 16, (turn >> 1) - 16, (turn >> 1) + 16))
    index = start
    if one.kind == "s32" and start >= turn >> 1:
        index -= turn
    return (first - index * one.scale) & WORD, start


def _run(
    world: World,
    one: Affine,
    kernel: gc.Kernel,
    args: tuple[int, ...],
    found: list[tuple[int, int, int]],
) -> Outcome:
    layout = world.layout
    reset(world, layout)
    before = world.file.read()
    error = kernel.submit(GRID, one.block, args).exception(TIMEOUT_S)
    after = world.file.read()
    bad = {
        (block, thread): address
        for block, thread, address in found
        if not layout.holds(address, 4) or address % 4
    }
    x, y, z = one.block
    out = layout.out - layout.base
    problems: list[str] = []
    if not bad:
        if error is not None:
            return Outcome(type(error).__name__, (f"a legal access was refused: {error}",))
        expected = bytearray(before)
        for block, thread, address in found:
            at = out + 4 * (block * x * y * z + thread)
            from_ = address - layout.base
            others = out - 4 < from_ < out + PAGE  # where other threads write meanwhile
            expected[at : at + 4] = after[at : at + 4] if others else before[from_ : from_ + 4]
        return Outcome("ran", tuple(differences(expected, after, layout)))
    for block, thread in bad:
        at = out + 4 * (block * x * y * z + thread)
        if after[at : at + 4] != b"\xee" * 4:
            problems.append(f"thread {thread} of block {block} went on after its bad access")
            break
    if not isinstance(error, gc.IllegalAddress):
        kind = "ran" if error is None else type(error).__name__
        return Outcome(
            kind, (*problems, f"{len(bad)} threads missed, and the outcome is {error!r}")
        )
    assert error.task_block is not None
    assert error.thread is not None
    tx, ty, tz = error.thread
    where = (error.task_block[0], (tz * y + ty) * x + tx)
    if bad.get(where) != error.address:
        problems.append(f"reported {error.address:#x} of {where}, not {bad.get(where)}")
    problems += array_problems(world, error, error.address)
    return Outcome("refused", tuple(problems))
