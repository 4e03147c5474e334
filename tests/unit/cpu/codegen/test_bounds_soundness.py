"""Random kernels: an access is reported if and only if it is out of bounds, wherever that is seen.

Problem: bounds are tested before loops, for whole blocks, for several arrays at once, by intervals,
by remainders, from conditions and from what a block's shape allows. Each such way can admit an
illegal access or report a legal one, at the edges.

Approach: a generator writes a kernel in CUDA C++ as random statements over thread number, loop
counter and parameters, and an interpreter in Python says which indices each thread uses. The arrays
are then placed so that the outermost of these indices is the arena's first or last element, and
once more so that it is the one beyond. Shared memory is as large as its largest index needs, or one
element smaller.

Properties: no error where all accesses are legal, and then the stores are those of the interpreter;
else `IllegalAddress`, at the address of an illegal access of the thread that it names, and nothing
is written outside of the arena.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from gpud.errors import IllegalAddress
from tests.unit.cpu.codegen.checked_arena import ARENA_BYTES, Arena

Value = Callable[[dict[str, int]], int]
"""The value of an expression, an unsigned number of 32 bits, for the variables' values."""

ELEMENTS = ARENA_BYTES // 4
PARAMETERS = {"p": (0, 1, 3, 40), "q": (1, 2, 5, 33)}
MOST_TURNS = 12


@dataclass
class Made:
    """A part of a program: its text, and what it means."""

    text: str
    value: Value


def u32(value: int) -> int:
    return value % 2**32


def signed(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: u32(a + b),
    "-": lambda a, b: u32(a - b),
    "^": lambda a, b: a ^ b,
    "|": lambda a, b: a | b,
}
KINDS = ("combine", "combine", "times", "mask", "shift", "remainder", "quotient", "least")
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b, "==": lambda a, b: a == b, "!=": lambda a, b: a != b,
}  # fmt: skip


class Writer:
    """Writes random expressions of the variables that are there."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance

    def variable(self, names: tuple[str, ...]) -> Made:
        name = self.chance.choice(names)
        return Made(name, lambda v: v[name])

    def expression(self, names: tuple[str, ...], depth: int = 2) -> Made:
        chance = self.chance
        if depth == 0 or chance.random() < 0.2:
            return self.variable(names)
        one = self.expression(names, depth - 1)
        kind = chance.choice(KINDS)
        if kind == "combine":
            sign = chance.choice(tuple(OPERATORS))
            apply = OPERATORS[sign]
            if chance.random() < 0.5:
                number = chance.choice((1, 2, 7, 31, 64))
                return Made(f"({one.text} {sign} {number}u)", lambda v: apply(one.value(v), number))
            two = self.expression(names, depth - 1)
            return Made(
                f"({one.text} {sign} {two.text})", lambda v: apply(one.value(v), two.value(v))
            )
        number = chance.choice((2, 3, 5, 24, 32))
        if kind == "times":
            return Made(f"({one.text} * {number}u)", lambda v: u32(one.value(v) * number))
        if kind == "mask":
            mask = chance.choice((1, 3, 15, 60, 63))
            return Made(f"({one.text} & {mask}u)", lambda v: one.value(v) & mask)
        if kind == "shift":
            by = chance.choice((1, 2, 5))
            if chance.random() < 0.5:
                return Made(f"({one.text} >> {by})", lambda v: one.value(v) >> by)
            return Made(f"({one.text} << {by})", lambda v: u32(one.value(v) << by))
        if kind == "remainder":
            return Made(f"({one.text} % {number}u)", lambda v: one.value(v) % number)
        if kind == "quotient":
            return Made(f"({one.text} / {number}u)", lambda v: one.value(v) // number)
        two = self.variable(names)
        return Made(f"min({one.text}, {two.text})", lambda v: min(one.value(v), two.value(v)))

    def condition(self, names: tuple[str, ...]) -> Made:
        sign = self.chance.choice(tuple(COMPARISONS))
        apply = COMPARISONS[sign]
        one, two = self.variable(names), self.variable((*names, "p", "q"))
        if self.chance.random() < 0.5:  # as indices are compared: signed
            return Made(
                f"(int){one.text} {sign} (int){two.text}",
                lambda v: int(apply(signed(one.value(v)), signed(two.value(v)))),
            )
        return Made(
            f"{one.text} {sign} {two.text}", lambda v: int(apply(one.value(v), two.value(v)))
        )


@dataclass
class Kernel:
    """A program, and what each thread accesses: (array, index) in order."""

    text: str
    run: Callable[[dict[str, int], list[tuple[str, int]]], None]
    arrays: set[str] = field(default_factory=set)


def access(write: Writer, names: tuple[str, ...]) -> tuple[str, Callable[..., None], str]:
    """A statement with one access."""
    made = write.expression(names)
    array = write.chance.choice("aabbs")
    wide = write.chance.random() < 0.4 and array != "s"
    index = f"(int)({made.text})" if wide else made.text

    def run(v: dict[str, int], found: list[tuple[str, int]]) -> None:
        value = made.value(v)
        found.append((array, signed(value) if wide else value))

    text = f"{array}[{index}] = 7u;" if array != "a" else f"sum += a[{index}];"
    return text, run, array


def kernel(seed: int, threads: int) -> Kernel:
    """A random kernel: accesses in straight code, under conditions, in loops, behind barriers."""
    chance = Random(f"{seed}:bounds")
    write = Writer(chance)
    lines: list[str] = []
    steps: list[Callable[[dict[str, int], list[tuple[str, int]]], None]] = []
    arrays: set[str] = set()
    if chance.random() < 0.25:
        lines.append("if ((t & 1u) == 0u) __syncwarp(0x55555555u);")  # from here they run apart
    for _ in range(chance.randint(2, 4)):
        if chance.random() < 0.3:
            lines.append("__syncthreads();")
        guard = write.condition(("t",)) if chance.random() < 0.5 else None
        looped = chance.random() < 0.6
        names = ("t", "r", "t", "p") if looped else ("t", "t", "p", "q")
        body = [access(write, names) for _ in range(chance.randint(1, 3))]
        arrays |= {array for _, _, array in body}
        text = " ".join(line for line, _, _ in body)
        first, step = chance.choice(("0u", "t")), chance.choice((1, 2, 8))
        if looped:
            text = f"for (unsigned r = {first}; r < q + {first}; r += {step}u) {{ {text} }}"
        if guard is not None:
            text = f"if ({guard.text}) {{ {text} }}"
        lines.append(text)
        steps.append(_statement(guard, looped, first, step, [run for _, run, _ in body]))

    def run(v: dict[str, int], found: list[tuple[str, int]]) -> None:
        for one in steps:
            one(v, found)

    joined = "\n    ".join(lines)
    source = f"""
extern "C" __global__ void k(const unsigned* a, unsigned* b, unsigned* out,
                             unsigned p, unsigned q) {{
    extern __shared__ unsigned s[];
    unsigned t = threadIdx.x, sum = 0u;
    {joined}
    out[t] = sum;
}}"""
    return Kernel(source, run, arrays)


def _statement(
    guard: Made | None,
    looped: bool,
    first: str,
    step: int,
    body: list[Callable[[dict[str, int], list[tuple[str, int]]], None]],
) -> Callable[[dict[str, int], list[tuple[str, int]]], None]:
    def run(v: dict[str, int], found: list[tuple[str, int]]) -> None:
        if guard is not None and not guard.value(v):
            return
        start = 0 if first == "0u" else v["t"]
        for r in range(start, start + v["q"], step) if looped else (0,):
            for one in body:
                one({**v, "r": r}, found)

    return run


def accesses(one: Kernel, threads: int, p: int, q: int) -> list[list[tuple[str, int]]]:
    """For each thread what it accesses, in order."""
    every: list[list[tuple[str, int]]] = []
    for t in range(threads):
        every.append([])
        one.run({"t": t, "p": p, "q": q, "r": 0}, every[-1])
    return every


def edges(every: list[list[tuple[str, int]]], array: str) -> tuple[int, int]:
    """The least and the greatest index of an array; (0, 0) if it is not used."""
    used = [index for mine in every for name, index in mine if name == array]
    return (min(used), max(used)) if used else (0, 0)


def check(world: Arena, one: Kernel, threads: int, p: int, q: int, placed: dict[str, int]) -> bool:
    """Run the kernel with arrays at these addresses, shared memory of this size; was it legal?"""
    every = accesses(one, threads, p, q)
    size = placed["s"]

    def outside(array: str, index: int) -> int | None:
        """The address, if the access is illegal."""
        address = (placed[array] + 4 * index) % 2**64 if array != "s" else 4 * index % 2**32
        low, high = (0, 4 * size) if array == "s" else (world.base, world.end)
        return None if low <= address and address + 4 <= high else address

    # The front end may change the order of a thread's loads: any of them may be the one reported.
    wrong = {
        (thread, address, array == "s")
        for thread, mine in enumerate(every)
        for array, index in mine
        if (address := outside(array, index)) is not None
    }
    world.bytes[:] = 0
    values = (placed["a"], placed["b"], placed["out"], np.uint32(p), np.uint32(q))
    error = world.run(one.text, *values, block=threads, shared=4 * size)
    if wrong:
        assert isinstance(error, IllegalAddress), one.text
        assert error.thread is not None
        assert (error.thread[0], error.address, error.space == "shared") in wrong, one.text
        return False
    assert error is None, one.text
    stores = {index for mine in every for array, index in mine if array == "b"}
    words = world.words()
    first = (placed["b"] - world.base) // 4
    own = (placed["out"] - world.base) // 4
    written = {at - first for at in np.flatnonzero(words == 7) if not own <= at < own + threads}
    assert stores <= written, one.text
    return True


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=() if n % 3 == 0 else pytest.mark.ci) for n in range(36)]
)
def test_an_access_is_reported_if_and_only_if_it_is_out_of_bounds(world: Arena, seed: int) -> None:
    threads = (8, 64)[seed % 2]
    one = kernel(seed, threads)
    legal = illegal = 0
    for p, q in zip(PARAMETERS["p"], PARAMETERS["q"], strict=True):
        every = accesses(one, threads, p, q)
        (low_a, high_a), (low_b, high_b), (_, high_s) = (edges(every, name) for name in "abs")
        if high_s >= 8192:
            high_s = 100
        middle = world.base + 4 * (ELEMENTS // 2)
        at_end = {
            "a": world.end - 4 * (high_a + 1), "b": world.end - 4 * (high_b + 1),
            "out": middle, "s": high_s + 1,
        }  # fmt: skip
        at_base = {**at_end, "a": world.base - 4 * low_a, "b": world.base - 4 * low_b}
        for placed, beyond in ((at_end, 4), (at_base, -4)):
            for moved in (None, "a", "b", "s"):
                change: dict[str, int] = {}
                if moved is not None:
                    change[moved] = high_s if moved == "s" else placed[moved] + beyond
                fine = check(world, one, threads, p, q, {**placed, **change})
                legal += fine
                illegal += not fine
    assert illegal


def test_a_check_that_was_moved_out_of_a_loop_is_made_though_it_is_alone(world: Arena) -> None:
    """The uniform load's check before it runs once for all threads, which leaves this one alone."""
    text = """
    extern "C" __global__ void k(const unsigned* a, unsigned* b, unsigned* out, unsigned q) {
        unsigned sum = 0u;
        for (unsigned r = 0u; r < q; r++) { sum += a[0]; b[threadIdx.x] = 7u; }
        out[threadIdx.x] = sum;
    }"""
    for q in (1, 3, 4, 7):
        values = (world.base + 4096, np.uint32(q))
        assert world.run(text, world.base, world.end - 32, *values) is None
        error = world.run(text, world.base, world.end - 28, *values)
        assert isinstance(error, IllegalAddress)
        assert (error.address, error.thread) == (world.end, (7, 0, 0))
