"""A kernel in CUDA C++ and in OpenCL C, with its launch, its data and the expected results.

Both texts are the same algorithm, step for step: the same blocks, tiles, barriers and index
arithmetic. Where the languages name a function differently (``expf``, ``exp``) the default one of
each language is used; with fast mathematics OpenCL's ``native_`` functions stand in, because that
is what ``--use_fast_math`` selects on the other side (`FAST`).

Terms: the *size* is one integer with which a pair's data grow; ``tiny`` is for tests, ``full`` for
measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["FAST", "Argument", "Dim3", "Pair", "Problem", "wrong"]

Argument: TypeAlias = npt.NDArray[Any] | np.generic
"""An array is a buffer in device memory, a NumPy scalar is passed by value."""

Dim3: TypeAlias = tuple[int, int, int]

FAST = r"""
#ifdef __FAST_RELAXED_MATH__
#undef exp
#undef log
#undef cos
#undef sqrt
#undef rsqrt
#define exp native_exp
#define log native_log
#define cos native_cos
#define sqrt native_sqrt
#define rsqrt native_rsqrt
#endif
"""
"""Prefix of OpenCL C sources that call these functions."""


@dataclass(frozen=True)
class Problem:
    """One launch.

    Attributes:
        grid: blocks in x, y, z.
        arguments: in the kernel's order; arrays are never changed, sides work on copies.
        expect: by argument index, which elements NumPy knows, and their values in float64 or as
            exact integers. A sample of the elements where all of them would take NumPy too long.
        operations: floating-point or table operations of one launch, counted by hand.
        bytes: bytes that one launch must at least move to and from memory.
        rtol: relative tolerance of floating-point results.
        atol: absolute tolerance.
        strays: share of the elements that may differ, for results that depend on the last bit.
    """

    grid: Dim3
    arguments: tuple[Argument, ...]
    expect: Mapping[int, tuple[Any, npt.NDArray[Any]]]
    operations: float = 0.0
    bytes: float = 0.0
    rtol: float = 1e-5
    atol: float = 1e-6
    strays: float = 0.0


@dataclass(frozen=True)
class Pair:
    """One algorithm in both languages; both kernels have the pair's name.

    ``counts``: whether it belongs in a mean over kernels.
    """

    name: str
    what: str
    cuda: str
    opencl: str
    block: Dim3
    make: Callable[[int], Problem]
    tiny: int
    full: int
    counts: bool = True


def wrong(problem: Problem, index: int, result: npt.NDArray[Any]) -> str:
    """Return what is wrong in the buffer of argument ``index`` after a launch; may be empty."""
    where, expected = problem.expect[index]
    found = result[where]
    if found.shape != expected.shape:
        return f"argument {index} has shape {found.shape}, not {expected.shape}"
    if np.issubdtype(found.dtype, np.integer):
        bad = found != expected
    else:
        bad = ~np.isclose(found.astype(np.float64), expected, problem.rtol, problem.atol)
    if bad.mean() <= problem.strays:
        return ""
    first = np.argwhere(bad)[0]
    place = tuple(int(i) for i in first)
    return (
        f"argument {index}: {int(bad.sum())} of {bad.size} elements differ, the first at {place}: "
        f"{found[place]} instead of {expected[place]}"
    )
