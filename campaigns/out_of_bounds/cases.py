"""Cases: a kernel, a launch of it, and what must come of it.

Every case has exactly one bad address (with a stride: one a thread) and is told which threads of
which task blocks use it in which iteration. A *twin* uses an address that is in range, such as the
last bytes of the arena, or a bad one in threads that never come to the access, and must run right.

Terms: *side*: on which side of the range the address is, or what lies there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from campaigns.out_of_bounds.accesses import ACCESSES, Access
from campaigns.out_of_bounds.kernels import (
    MODES,
    PLACES,
    SLOT_BYTES,
    KernelSpec,
    Mode,
    fits,
)

ALL: Final = 0xFFFFFFFF
WORD: Final = (1 << 64) - 1
BLOCKS: Final = (
    (32, 1, 1), (64, 1, 1), (8, 4, 2), (16, 3, 1), (33, 1, 1), (1, 1, 1), (7, 1, 1), (4, 4, 4),
    (96, 1, 1), (2, 3, 5), (128, 1, 1),
)  # fmt: skip
GRIDS: Final = ((1, 1, 1), (3, 1, 1), (2, 2, 1), (2, 1, 2))
FORMS: Final = (None, None, None, "persistent", "sliced", "whole")


@dataclass(frozen=True)
class Layout:
    """Where things are.

    Attributes:
        base, size: of the attacker's arena.
        good, out, table, edge: its arrays: threads' own bytes, results, pointers, the first page.
        neighbours: (address, size) of arrays of others.
        host: addresses of the device host's own memory by what is there.
    """

    base: int
    size: int
    good: int
    out: int
    table: int
    neighbours: tuple[tuple[int, int], ...]
    host: dict[str, int]

    @property
    def end(self) -> int:
        """The first address after the arena."""
        return self.base + self.size

    def holds(self, address: int, span: int) -> bool:
        """Whether an access is within the arena."""
        return self.base <= address and address + span <= self.end


@dataclass(frozen=True)
class Miss:
    """A bad access that a thread makes first."""

    address: int
    opcode: str
    misaligned: bool


@dataclass(frozen=True)
class Case:
    """A launch of a kernel."""

    kernel: KernelSpec
    access: Access
    side: str
    target: int
    stride: int
    first: int
    last: int
    block: int
    when: int
    limit: int
    grid: tuple[int, int, int]
    salt: int
    seed: str
    twin: bool

    def __str__(self) -> str:
        who = f"threads {self.first}..{self.last} of block {self.block:#x}, turn {self.when}"
        return (
            f"[{self.seed}] {self.access.name} {self.side} {self.target:#x}+{self.stride} by "
            f"{self.kernel.mode.name} at {self.kernel.place.name} ({self.kernel.form}), {who}, "
            f"limit {self.limit}, {self.grid} x {self.kernel.block}"
        )

    def arguments(self, layout: Layout) -> tuple[int, ...]:
        """For the kernel's parameters."""
        mode = self.kernel.mode
        index = mode.index_of(layout.good, self.target) if mode.scale else 0
        step = self.stride // mode.scale if mode.scale else 0
        assert index is not None
        which = self.kernel.accesses.index(self.access)
        return (
            layout.good, self.target, self.stride, layout.out, layout.table, self.salt,
            index, step, self.first, self.last, self.block, self.when, which, self.limit,
        )  # fmt: skip

    def blocks(self) -> int:
        """Task blocks of the grid."""
        x, y, z = self.grid
        return x * y * z

    def misses(self, layout: Layout) -> dict[tuple[int, int], Miss]:
        """By (task block, thread): the first access of each that must be refused."""
        found = {}
        for block in range(self.blocks()):
            if self.block not in (ALL, block):
                continue
            for thread in range(self.first, min(self.last + 1, self.kernel.threads)):
                if self._arrives(thread) and self.when < self.kernel.place.turns(thread):
                    miss = self._miss(block, thread, layout)
                    if miss is not None:
                        found[block, thread] = miss
        return found

    def _arrives(self, thread: int) -> bool:
        return not self.kernel.place.limit or thread < self.limit

    def _value(self, block: int, thread: int) -> int:
        """What the thread writes."""
        gid = block * self.kernel.threads + thread
        return (gid * 81985529216486895 + self.salt) & WORD

    def _miss(self, block: int, thread: int, layout: Layout) -> Miss | None:
        start = (self.target + thread * self.stride) & WORD
        for part in self.access.parts:
            if part.odd and not self._value(block, thread) & 1:
                continue
            address = (start + part.offset) & WORD
            if not layout.holds(address, part.span):
                return Miss(address, part.opcode, misaligned=False)
            if address % part.align:
                return Miss(address, part.opcode, misaligned=True)
        return None

    def run(
        self, memory: bytearray, layout: Layout, begin: int
    ) -> dict[tuple[int, int], int | None]:
        """What a twin does to ``memory``, which begins at address ``begin``, and what it stores.

        Returns:
            By (task block, thread): its word of ``out``; None: it may be anything.
        """
        out: dict[tuple[int, int], int | None] = {}
        model = self.access.model
        for block in range(self.blocks()):
            for thread in range(self.kernel.threads):
                gid = block * self.kernel.threads + thread
                value = self._value(block, thread)
                if not self._arrives(thread):
                    if self.kernel.place.limit == "exit":
                        continue
                    out[block, thread] = 0 if self.kernel.place.limit == "branch" else None
                    continue
                total = 0
                for turn in range(self.kernel.place.turns(thread)):
                    chosen = (
                        self.first <= thread <= self.last
                        and self.block in (ALL, block)
                        and turn == self.when
                    )
                    at = layout.good + SLOT_BYTES * gid
                    if chosen:
                        at = self.target + thread * self.stride
                    if model is not None:
                        total = (total * 3 + model(memory, at - begin, value)) & WORD
                out[block, thread] = total if model is not None else None
        return out


# -- kernels -----------------------------------------------------------------------------------


def kernels_of(
    rng: random.Random, accesses: Sequence[Access] = ACCESSES, *, most: int = 1, prefix: str = "k"
) -> list[KernelSpec]:
    """Kernels that have each of ``accesses`` once, up to ``most`` in one kernel, in random order.

    Modes and places come round in turn, so that any 17 kernels have all modes.
    """
    modes, places = list(MODES.values()), list(PLACES.values())
    order = list(accesses)
    rng.shuffle(order)
    rng.shuffle(modes)
    rng.shuffle(places)
    found: list[KernelSpec] = []
    while order:
        count = rng.randint(1, most) if most > 1 else 1
        some, order = tuple(order[:count]), order[count:]
        number = len(found)
        place = places[number % len(places)]
        mode = modes[number % len(modes)]
        block = rng.choice(BLOCKS)
        while not fits(mode, place, block[0] * block[1] * block[2]):
            block, mode = rng.choice(BLOCKS), rng.choice(modes)
        form = rng.choice(FORMS)
        if mode.warps and form == "persistent":  # not legal if lanes may have left before
            form = None
        timed = rng.randrange(4) == 0
        found.append(KernelSpec(f"{prefix}{number}", some, mode, place, block, form, timed))
    return found


# -- launches ----------------------------------------------------------------------------------


def cases_of(rng: random.Random, kernel: KernelSpec, layout: Layout) -> Iterator[Case]:
    """Bad cases of a kernel, without end; each tenth is a twin."""
    number = 0
    while True:
        access = kernel.accesses[number % len(kernel.accesses)]
        twin = number % 10 == 9
        seed = f"{kernel.name}#{number}"
        tries = ((_twin if twin else _bad)(rng, kernel, access, layout, seed) for _ in range(9999))
        yield next(made for made in tries if made is not None)
        number += 1


def _bad(
    rng: random.Random, kernel: KernelSpec, access: Access, layout: Layout, seed: str
) -> Case | None:
    side, target = _target(rng, access, layout)
    first, last = _threads(rng, kernel.threads)
    stride = rng.choice((0, 0, access.span, 64)) if last > first else 0
    if kernel.mode.scale:
        stride = stride // kernel.mode.scale * kernel.mode.scale
    case = _launch(rng, kernel, access, layout, side, target, stride, first, last, seed, twin=False)
    if case is None or not case.misses(layout):
        return None
    return case


def _launch(
    rng: random.Random, kernel: KernelSpec, access: Access, layout: Layout, side: str, target: int,
    stride: int, first: int, last: int, seed: str, *, twin: bool, limit: int | None = None,
) -> Case | None:  # fmt: skip
    target &= WORD
    mode: Mode = kernel.mode
    if mode.scale and mode.index_of(layout.good, target) is None:
        return None
    grid = rng.choice(GRIDS)
    blocks = grid[0] * grid[1] * grid[2]
    block = rng.choice((ALL, rng.randrange(blocks), blocks - 1))
    when = rng.randrange(max(map(kernel.place.turns, range(first, last + 1))))
    if limit is None:
        limit = rng.choice((kernel.threads, kernel.threads, last + 1))
    salt = rng.getrandbits(64)
    return Case(
        kernel, access, side, target, stride, first, last, block, when, limit, grid, salt, seed,
        twin,
    )  # fmt: skip


def _threads(rng: random.Random, threads: int) -> tuple[int, int]:
    """One, a warp, or all."""
    how = rng.randrange(4)
    if how == 0:
        return 0, threads - 1
    if how == 1 and threads > 32:
        warp = rng.randrange(-(-threads // 32))
        return 32 * warp, min(32 * warp + 31, threads - 1)
    one = rng.choice((0, threads - 1, rng.randrange(threads)))
    return one, one


def _target(rng: random.Random, access: Access, layout: Layout) -> tuple[str, int]:
    """A side, and an address there, mostly aligned."""
    span, align, base, end = access.span, access.align, layout.base, layout.end
    where = rng.choice(_SIDES)
    if where == "after":
        return where, end + align * rng.choice((0, 0, 0, 1, 2, rng.randrange(512)))
    if where == "before":
        return where, base - span - align * rng.choice((0, 0, 1, rng.randrange(512)))
    if where == "one byte before":
        return where, base - 1
    if where == "straddles the end":
        return where, end - (rng.randrange(1, span) if span > 1 else 0)
    if where == "straddles the begin":
        return where, base - (rng.randrange(1, span) if span > 1 else 1)
    if where == "neighbour":
        address, size = rng.choice(layout.neighbours)
        return where, address + rng.randrange(size // 64) * 64
    if where == "host":
        name = rng.choice(sorted(layout.host))
        return f"host {name}", layout.host[name] + 64 * rng.randrange(8)
    if where == "null":
        return where, rng.choice((0, 0, align, 4096, 64 * rng.randrange(4096)))
    if where == "minus":
        return where, (-rng.choice((1, span, align, 64, 4096))) & WORD
    if where == "not canonical":
        high = rng.choice((1 << 47, 1 << 48, 0x8000 << 48, 0xFFFF_7FFF << 32, 1 << 56, 1 << 62))
        return where, high + rng.choice((0, base, 64 * rng.randrange(1024)))
    if where == "far":
        distance = 1 << rng.randrange(24, 47)
        return where, base + rng.choice((-distance, distance))
    if where == "misaligned":
        return where, base + 64 * rng.randrange(16) + (rng.randrange(1, align) if align > 1 else 0)
    return where, rng.getrandbits(64) & -align


_SIDES: Final = (
    "after", "after", "before", "before", "one byte before", "straddles the end",
    "straddles the begin", "neighbour", "neighbour", "host", "null", "minus", "not canonical",
    "far", "misaligned", "random",
)  # fmt: skip


def _twin(
    rng: random.Random, kernel: KernelSpec, access: Access, layout: Layout, seed: str
) -> Case | None:
    span, align, threads = access.span, access.align, kernel.threads
    step = -(-span // align) * align
    if kernel.mode.scale:
        step = -(-step // kernel.mode.scale) * kernel.mode.scale
    first, last = _threads(rng, threads)
    how = rng.randrange(4)
    if kernel.place.limit and how == 0 and threads > 1:
        # Idle threads have a bad address and never come to the access.
        side, target = _target(rng, access, layout)
        limit = rng.randrange(1, threads)
        return _launch(
            rng, kernel, access, layout, f"idle threads, {side}", target, 0, limit, threads - 1,
            seed, twin=True, limit=limit,
        )  # fmt: skip
    if how == 0 and all(part.odd for part in access.parts):
        side, target = _target(rng, access, layout)
        what = f"never comes there, {side}"
        case = _launch(
            rng, kernel, access, layout, what, target, 0, first, first, seed, twin=True,
            limit=threads,
        )  # fmt: skip
        return None if case is None or case.misses(layout) else case
    count = last - first + 1
    if how == 1:
        side, start = "first bytes", layout.base
    elif how == 2:
        side, start = "within", layout.end - 8192 + align * rng.randrange(1 + 1024 // align)
    else:
        side, start = "last bytes", layout.end - (step * (count - 1) + span)
    start -= start % max(align, kernel.mode.scale)
    target = start - first * step
    case = _launch(rng, kernel, access, layout, side, target, step, first, last, seed, twin=True)
    if case is None or case.misses(layout):
        return None
    # One task block only: their threads' addresses are the same.
    return case if case.block != ALL or case.blocks() == 1 else None
