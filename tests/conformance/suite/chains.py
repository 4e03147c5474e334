"""Random chains of floating-point instructions, on operands that are often NaN or subnormal.

Problem: a sweep has each instruction alone, with operands that a compiler knows nothing about.
What goes wrong in compilers is what they conclude from operands: that one is never NaN, never
negative, a constant, smaller than another. Approach: a kernel computes chains of instructions
whose operands are inputs, constants and earlier results, drawn once and for all, half of them
minima and maxima; the reference evaluates the same chains in exact arithmetic.

The kernel looks like compiled code, with typed registers and no branch around it: a compiler
concludes less from bits. The last instruction of a chain gives the canonical NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from . import exact
from .case import Array, Case, Expected, Rng
from .cases import Cases
from .exact import FORMATS, Format
from .floats import ARITHMETIC, extreme
from .ptx_text import kernel

CASES = Cases()

BLOCK = 128
ROWS = 3 * BLOCK
_CHAINS = 60
_MOST_STEPS = 8


class _Chain(NamedTuple):
    """Instructions on ``v0``, ``v1`` and ``v2``, the register of their result, what it is."""

    lines: list[str]
    last: int
    evaluate: Callable[[int, int, int], int]


class _Values:
    """The values of a chain so far: three inputs, constants, results."""

    def __init__(self, *constants: int) -> None:
        self.constants = constants
        self.lines: list[str] = []
        self.steps: list[tuple[Callable[..., int], tuple[int, ...]]] = []

    @property
    def count(self) -> int:
        """How many there are; also the number of the next."""
        return 3 + len(self.constants) + len(self.steps)

    def append(self, text: str, function: Callable[..., int], *operands: int) -> int:
        """Apply an instruction, ``text`` up to the operands; returns the result's number."""
        number = self.count
        named = ", ".join(f"%v{k}" for k in operands)
        self.lines.append(text.format(*operands) if "{" in text else f"{text} %v{number}, {named};")
        self.steps.append((function, operands))
        return number

    def chain(self, bits: int) -> _Chain:
        """The chain whose result is the last value."""
        moves = [f"mov.b{bits} %v{3 + k}, {value};" for k, value in enumerate(self.constants)]

        def evaluate(a: int, b: int, c: int) -> int:
            values = [a, b, c, *self.constants]
            for function, operands in self.steps:
                values.append(function(*(values[k] for k in operands)))
            return values[-1]

        return _Chain(moves + self.lines, self.count - 1, evaluate)


def _instructions(t: str, *, flushed: bool) -> dict[str, tuple[int, Callable[..., int]]]:
    """Spelling, number of operands and function; ``{p}`` is a predicate."""
    f = FORMATS[t]
    ftz = ".ftz" if flushed else ""
    table: dict[str, tuple[int, Callable[..., int]]] = {}
    for name in ("min", "max"):
        for modifiers in (ftz, *((f"{ftz}.NaN",) if t != "f64" else ())):
            table[f"{name}{modifiers}.{t}"] = (2, extreme(name, modifiers, f))
    for name, spelled in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("fma", "fma.rn")):
        function, count = ARITHMETIC[name]
        table[f"{spelled}{ftz}.{t}"] = (count, exact.operation(function, f, ftz=flushed))
    if t != "f64":
        saturating = exact.operation(exact.add, f, ftz=flushed, sat=True)
        table[f"add{ftz}.sat.{t}"] = (2, saturating)
    flush = f.flush if flushed else int
    table[f"abs{ftz}.{t}"] = (1, lambda a: flush(a) & ~f.sign)
    table[f"neg{ftz}.{t}"] = (1, lambda a: flush(a) ^ f.sign)
    return table


def _less(f: Format, a: int, b: int, c: int, d: int, *, flushed: bool) -> int:
    """``a < b ? c : d``."""
    if flushed:
        a, b = f.flush(a), f.flush(b)
    if f.is_nan(a) or f.is_nan(b) or (a | b) & ~f.sign == 0:
        return d
    return c if a != b and exact.minimum(f, a, b) == a else d


def _operand(count: int, rng: Rng) -> int:
    """The newest value often, so that chains get deep, and constants, as of clamps."""
    draw = rng.random()
    if draw < 0.45:
        return count - 1
    return int(rng.integers(3, 5)) if draw < 0.65 else int(rng.integers(0, count))


def _random(t: str, rng: Rng, *, flushed: bool) -> _Chain:
    f = FORMATS[t]
    table = _instructions(t, flushed=flushed)
    extremes = [text for text in table if text.startswith(("min", "max"))]
    others = [text for text in table if text not in extremes]
    constants = [0, f.sign, f.one, f.one | f.sign, f.one + (2 << f.mantissa), f.infinity,
                 f.infinity | f.sign, f.nan, 1, f.infinity + 1]  # fmt: skip
    values = _Values(*(int(k) for k in rng.choice(constants, 2, replace=False).astype(np.uint64)))
    compare = f"setp.lt{'.ftz' if flushed else ''}.{t}"
    steps = int(rng.integers(2, _MOST_STEPS + 1))
    for step in range(steps):
        last = step == steps - 1
        if not last and rng.random() < 0.1:
            operands = [int(x) for x in rng.integers(0, values.count, 4)]
            select = f"selp.b{f.width} %v{values.count}, %v{{}}, %v{{}}, %p;"
            text = f"{compare} %p, %v{{}}, %v{{}}; {select}"
            values.append(text, partial(_less, f, flushed=flushed), *operands)
            continue
        names = extremes if last or rng.random() < 0.5 else others
        text = names[int(rng.integers(len(names)))]
        count, function = table[text]
        values.append(text, function, *(_operand(values.count, rng) for _ in range(count)))
    return values.chain(f.width)


def _relu6(t: str) -> _Chain:
    """``max(min(max(x, 0), 6), x)``: x, or zero for NaN."""
    f = FORMATS[t]
    values = _Values(0, f.encode(6))
    least, most = extreme("max", "", f), extreme("min", "", f)
    clamped = values.append(f"min.{t}", most, values.append(f"max.{t}", least, 0, 3), 4)
    values.append(f"max.{t}", least, clamped, 0)
    return values.chain(f.width)


def _of_eight(t: str, name: str) -> _Chain:
    """An unrolled reduction: eight values of three inputs."""
    f = FORMATS[t]
    function, product = extreme(name, "", f), partial(exact.multiply, f, "rn")
    values = _Values()
    most = values.append(f"{name}.{t}", function, values.append(f"{name}.{t}", function, 0, 1), 2)
    for pair in ((0, 1), (1, 2), (2, 0), (0, 0), (1, 1)):
        most = values.append(
            f"{name}.{t}", function, most, values.append(f"mul.{t}", product, *pair)
        )
    return values.chain(f.width)


def _operands(f: Format, rng: Rng) -> list[Array]:
    """Three columns: a third NaN or infinite, a third zero or subnormal, the others any."""
    quiet = 1 << (f.mantissa - 1)
    special = [f.infinity, f.infinity | quiet, f.nan, f.infinity | 1, f.infinity | 5 | quiet]
    small = [0, 1, quiet, (1 << f.mantissa) - 1, 1 << f.mantissa]
    drawn = []
    for column in exact.samples(f, 3, rng):
        numbers = rng.choice(column, ROWS)
        kind = rng.integers(0, 3, ROWS)
        sign = rng.integers(0, 2, ROWS).astype(np.uint64) * np.uint64(f.sign)
        for k, among in enumerate((special, small)):
            edges = rng.choice(np.array(among, np.uint64), ROWS) | sign
            numbers = np.where(kind == k, edges.astype(f.dtype), numbers)
        drawn.append(numbers)
    return drawn


def _source(name: str, t: str, chains: list[_Chain]) -> str:
    """Chain ``k`` of row ``i`` is element ``k * ROWS + i`` of the output."""
    f = FORMATS[t]
    size = f.width // 8
    kind = "b16" if size == 2 else t
    lines = [".reg .b64 %at, %to; .reg .pred %p;"]
    lines.append(f"mul.wide.u32 %at, %i, {size}; add.s64 %to, %out, %at;")
    lines.append(f".reg .{kind} %v<3>;")
    for k, letter in enumerate("abc"):
        lines.append(f"add.s64 %{letter}, %{letter}, %at; ld.global.{kind} %v{k}, [%{letter}];")
    for k, chain in enumerate(chains):
        known = [f"%v{number}" for number in range(3, chain.last + 1)]
        lines.append(f"{{ .reg .{kind} {', '.join(known)};")
        lines += chain.lines
        lines.append(f"st.global.{kind} [%to+{k * ROWS * size}], %v{chain.last}; }}")
    lines.append("ret;")
    parameters = [f"u64 {label}" for label in ("a", "b", "c", "out")]
    return kernel(name, parameters, "\n".join(lines), arch="compute_80")


def _case(name: str, t: str, *, flushed: bool = False) -> Case:
    f = FORMATS[t]
    rng = np.random.default_rng(f.width + flushed)
    chains = [_random(t, rng, flushed=flushed) for _ in range(_CHAINS)]
    if not flushed:
        chains += [_relu6(t), _of_eight(t, "min"), _of_eight(t, "max")]

    def make(rng: Rng) -> list[Any]:
        return [*_operands(f, rng), np.zeros((len(chains), ROWS), f.dtype)]

    def expect(args: list[Any]) -> dict[int | str, Expected]:
        rows = [exact.on_patterns(chain.evaluate, f.dtype)(*args[:3]) for chain in chains]
        return {3: np.stack(rows)}

    return Case(
        name,
        _source(name, t, chains),
        (ROWS // BLOCK,),
        (BLOCK,),
        make,
        expect,
        arch="compute_80",
        covers=frozenset({"min", "max", "nan", "subnormal"}),
        opcodes=True,
        labels=("a", "b", "c", "chains"),
    )


CASES += (
    _case("chains_f16", "f16"),
    _case("chains_f32", "f32"),
    _case("chains_f32_flushed", "f32", flushed=True),
    _case("chains_f64", "f64"),
)
