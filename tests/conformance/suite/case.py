"""Conformance cases: a kernel, its launch, its arguments and the expected results.

Problem: every device, and every form that the rewriter makes of a kernel, must leave the same
memory behind. Approach: a `Case` says everything about one kernel without naming a device, so
that one runner (``tests/conformance/runner.py``), the stress run and the benchmarks share it.

Terms:
    argument: one entry of what ``make`` returns, known by its index in that list.
    device buffer: a NumPy array argument; copied in before the launch and out after it.
    counter: one ``unsigned int`` for each task block, raised by the kernel itself once each time
        the task block runs. After one launch every counter must be exactly 1.
    form: how the rewriter launches the kernel: unmodified, persistent, sliced or whole.

Properties: ``make`` and ``expect`` are NumPy and Python only, equal seeds give equal arguments,
and ``expect`` never changes what it is given.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

Args: TypeAlias = list[Any]
Array: TypeAlias = np.ndarray[Any, Any]
Rng: TypeAlias = np.random.Generator
Form: TypeAlias = Literal["unmodified", "persistent", "sliced", "whole"]
ExpectedForm: TypeAlias = Literal[
    "persistent", "persistent-exit-aware", "sliced", "whole", "rejected"
]
ALL_FORMS: frozenset[Form] = frozenset({"unmodified", "persistent", "sliced"})

RUNS_SYMBOL = "gpud_runs"
"""The module variable that holds the counters of a case with ``counts="symbol"``."""

_COUNT = (
    "#define GPUD_COUNT{suffix}(runs) do {{ "
    "if ((threadIdx.x | threadIdx.y | threadIdx.z) == 0) atomicAdd(&(runs)[{block}], 1u); "
    "}} while (0)\n"
)
PRELUDE = (
    _COUNT.format(suffix="", block="blockIdx.x")
    + _COUNT.format(suffix="_2D", block="blockIdx.x + gridDim.x * blockIdx.y")
    + _COUNT.format(
        suffix="_3D", block="blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)"
    )
    + "#line 1\n"
)
"""Prepended to every CUDA C++ source: counts a task block of a 1-, 2- or 3-dimensional grid.

There is one macro for each number of dimensions because a kernel that never reads ``blockIdx.y``
takes another path through the rewriter than one that does.
"""


@dataclass(frozen=True)
class AddressOf:
    """The device address of another argument's buffer, ``offset`` bytes in.

    Passed as an argument it is a pointer; inside a `Struct` or a `Hidden` buffer it is written
    into the bytes.
    """

    index: int
    offset: int = 0


@dataclass(frozen=True)
class Struct:
    """A by-value struct: its bytes, with device addresses to be written in before the launch.

    ``pointers`` maps byte offsets to the addresses that belong there (8 bytes, little endian).
    """

    data: bytes
    pointers: Mapping[int, AddressOf] = field(default_factory=dict)


@dataclass(frozen=True)
class Hidden:
    """A device buffer that is not passed: only addresses inside other arguments lead to it.

    ``pointers`` as in `Struct`.
    """

    array: Array
    pointers: Mapping[int, AddressOf] = field(default_factory=dict)


@dataclass(frozen=True)
class Within:
    """An expected array with its own tolerance: ``|actual - value| <= atol + rtol * |value|``.

    ``rtol`` and ``atol`` may be arrays of the shape of ``value``. Values that are not finite must
    be equal (a NaN for a NaN).
    """

    value: Array
    rtol: float | Array = 0.0
    atol: float | Array = 0.0


@dataclass(frozen=True)
class Satisfies:
    """A property instead of a value, where several results are right (an order of tickets)."""

    holds: Callable[[Array], bool]
    meaning: str


Expected: TypeAlias = "Array | Within | Satisfies"
Make: TypeAlias = Callable[[Rng], Args]
Expect: TypeAlias = Callable[[Args], Mapping[int | str, Expected]]


@dataclass(frozen=True)
class Case:
    """One kernel of the conformance suite.

    Attributes:
        name: unique; also the entry's name unless ``kernel`` says otherwise.
        source: CUDA C++, or PTX text (recognised by its ``.version`` directive).
        grid: task blocks in each dimension.
        block: threads of a task block in each dimension.
        make: the arguments for a seeded generator, the counters left out.
        expect: what each device buffer (by argument index) and each module variable (by name)
            must hold afterwards. Buffers that are not named must not have changed.
        kernel: entry name or C++ name expression.
        counts: where the counters are: a last ``unsigned int*`` argument that the runner adds, or
            the module variable `RUNS_SYMBOL`.
        shared: dynamic shared memory, in bytes.
        options: further NVRTC options.
        arch: the lowest target that the kernel needs.
        deterministic: the bytes are the same in every run and every form.
        rtol: relative tolerance for expected arrays without their own; 0 means exact bytes.
        atol: absolute tolerance, likewise.
        forms: the forms in which the kernel is run. What only the rewriter provides, a plain launch
            does not: the workspace of a grid that is synchronised.
        expected_form: what the analysis must choose.
        progress: what the program says of its blocks, as `compile_program` takes it.
        rejection: a word that the reason code of a rejected kernel must contain.
        output: ``printf`` lines in any order, computed from the arguments; ``None`` for a kernel
            that prints nothing.
        symbols: module variables to set before the first launch, by plain name.
        launches: how often the kernel is launched on the same buffers and the same module.
        resident: the number of task blocks that must be resident together, 1 for most kernels.
        covers: features that the case is there for, as ``"shfl.sync"`` or ``"barrier.count"``.
        labels: what each argument is, for messages; may be shorter than the argument list.
        headers: whether the source includes CUDA's headers, which may not be installed.
        opcodes: whether the kernel is a table of instructions (`sweep`), one output for each.
        long: it takes seconds to compile or to run in all forms, for what it adds to the rest: only
            continuous integration runs it.
    """

    name: str
    source: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    make: Make
    expect: Expect
    kernel: str = ""
    counts: Literal["argument", "symbol"] = "argument"
    shared: int = 0
    options: tuple[str, ...] = ()
    arch: str = "compute_75"
    deterministic: bool = True
    rtol: float = 0.0
    atol: float = 0.0
    forms: frozenset[Form] = ALL_FORMS
    expected_form: ExpectedForm = "persistent"
    progress: str | None = None
    rejection: str = ""
    output: Callable[[list[Any]], Sequence[str]] | None = None
    symbols: Mapping[str, Array] = field(default_factory=dict)
    launches: int = 1
    resident: int = 1
    covers: frozenset[str] = frozenset()
    labels: tuple[str, ...] = ()
    headers: bool = False
    opcodes: bool = False
    long: bool = False

    @property
    def is_ptx(self) -> bool:
        """Whether `source` is PTX text rather than CUDA C++."""
        return ".version" in self.source.split(".target", 1)[0]

    @property
    def target(self) -> int:
        """The compute capability that the kernel needs, times ten."""
        return int(self.arch.removeprefix("compute_").rstrip("af"))

    @property
    def program(self) -> str:
        """The text to compile: PTX as it is, CUDA C++ after `PRELUDE`."""
        return self.source if self.is_ptx else PRELUDE + self.source

    @property
    def entry(self) -> str:
        """The entry name or name expression."""
        return self.kernel or self.name

    @property
    def blocks(self) -> int:
        """Task blocks in the grid."""
        return total_blocks(self.grid)

    def arguments(self, seed: int = 0) -> list[Any]:
        """The arguments for ``seed``; other cases draw other numbers for the same seed."""
        return self.make(np.random.default_rng([seed, zlib.crc32(self.name.encode())]))


def total_blocks(grid: Sequence[int]) -> int:
    """The number of task blocks of a grid."""
    product = 1
    for extent in grid:
        product *= extent
    return product


def count_ptx(target: str, dimensions: int = 1, *, symbol: bool = False) -> str:
    """PTX that counts this task block: the counterpart of `PRELUDE` for PTX cases.

    Args:
        target: the parameter that holds the counters' address, or the variable with ``symbol``.
        dimensions: how many dimensions of the grid to read.
        symbol: whether ``target`` is a ``.global`` variable.
    """
    address = (
        f"mov.u64 address, {target};"
        if symbol
        else f"ld.param.u64 address, [{target}]; cvta.to.global.u64 address, address;"
    )
    linear = "mov.u32 index, %ctaid.x;"
    if dimensions == 2:
        linear = (
            "mov.u32 y, %ctaid.y; mov.u32 width, %nctaid.x; mov.u32 x, %ctaid.x;\n"
            "        mad.lo.u32 index, y, width, x;"
        )
    elif dimensions == 3:
        linear = (
            "mov.u32 z, %ctaid.z; mov.u32 height, %nctaid.y; mov.u32 y, %ctaid.y;\n"
            "        mad.lo.u32 y, z, height, y;\n"
            "        mov.u32 width, %nctaid.x; mov.u32 x, %ctaid.x;\n"
            "        mad.lo.u32 index, y, width, x;"
        )
    return f"""{{
        .reg .pred first;
        .reg .b32 x, y, z, width, height, index, thread;
        .reg .b64 address, offset;
        mov.u32 thread, %tid.x; mov.u32 y, %tid.y; or.b32 thread, thread, y;
        mov.u32 z, %tid.z; or.b32 thread, thread, z;
        setp.eq.u32 first, thread, 0;
        {linear}
        mul.wide.u32 offset, index, 4;
        {address}
        add.s64 address, address, offset;
        @first red.global.add.u32 [address], 1;
    }}"""
