"""Compares the results of a run with those that a case expects.

Independent of any device: the runner, the stress run and the benchmarks hand over a `Results`
and get back sentences that say what is wrong, none when all is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .case import Array, Case, Expected, Hidden, Satisfies, Within


@dataclass(frozen=True)
class Results:
    """The results of a run.

    Attributes:
        buffers: every device buffer by argument index, with its dtype and shape; those that hold
            device addresses are left out.
        runs: the counters, ``uint32`` of one element a task block.
        symbols: the raw bytes of the module variables that ``expect`` names.
        output: what the kernel printed.
    """

    buffers: Mapping[int, Array]
    runs: Array
    symbols: Mapping[str, bytes] = field(default_factory=dict)
    output: str = ""


def mismatches(
    case: Case,
    arguments: Sequence[Any],
    results: Results,
    expected: Mapping[int | str, Expected] | None = None,
) -> list[str]:
    """Sentences about everything in ``results`` that differs from what ``case`` expects.

    ``expected`` is what ``case.expect`` says of the arguments, if the caller has it already.
    """
    found = _wrong_counts(case, results.runs)
    if expected is None:
        expected = case.expect(list(arguments))
    for index, argument in enumerate(arguments):
        array = argument.array if isinstance(argument, Hidden) else argument
        if not isinstance(array, np.ndarray):
            continue
        if index not in results.buffers:
            continue
        wanted: Expected = expected.get(index, array)
        found += _compare(_label(case, index), results.buffers[index], wanted, case)
    for key, wanted in expected.items():
        if isinstance(key, str):
            raw = results.symbols[key]
            like = wanted.value if isinstance(wanted, Within) else wanted
            dtype = like.dtype if isinstance(like, np.ndarray) else np.dtype(np.uint8)
            actual = np.frombuffer(raw, dtype)
            if isinstance(like, np.ndarray):
                actual = actual[: like.size].reshape(like.shape)
            found += _compare(f"variable {key}", actual, wanted, case)
    if case.output is not None:
        missing = Counter(case.output(list(arguments)))
        missing.subtract(results.output.splitlines())
        wrong = {line: count for line, count in missing.items() if count}
        if wrong:
            shown = dict(list(wrong.items())[:5])
            found.append(f"output: {len(wrong)} lines differ (missing > 0, extra < 0): {shown}")
    elif results.output:
        found.append(f"output where none was expected: {results.output[:200]!r}")
    return found


def differences_between(first: Results, second: Results) -> list[str]:
    """Sentences about device buffers and variables whose bytes differ between two runs."""
    found = []
    for index, array in first.buffers.items():
        if array.tobytes() != second.buffers[index].tobytes():
            where = np.flatnonzero(_bits(array) != _bits(second.buffers[index]))
            found.append(f"argument {index}: {where.size} elements differ, first at {where[0]}")
    for name, raw in first.symbols.items():
        if raw != second.symbols[name]:
            found.append(f"variable {name} differs")
    if Counter(first.output.splitlines()) != Counter(second.output.splitlines()):
        found.append("printed lines differ")
    return found


def same_values(actual: Array, expected: Array) -> Array:
    """Elementwise: equal bits, or both NaN.

    The payload of a NaN is left open because PTX leaves it open for single precision (PTX ISA
    9.0, section 9.7.3); where it is defined a case stores the bits as integers.
    """
    equal: Array = _bits(actual) == _bits(expected)
    if actual.dtype.kind in "fc":
        equal = equal | (np.isnan(actual) & np.isnan(expected))
    return equal


def _wrong_counts(case: Case, runs: Array) -> list[str]:
    wrong = np.flatnonzero(runs[: case.blocks] != case.launches)
    if not wrong.size:
        return []
    shown = {int(block): int(runs[block]) for block in wrong[:5]}
    times = f"exactly {case.launches} time(s)"
    return [f"{wrong.size} of {case.blocks} task blocks did not run {times}: {shown}"]


def _compare(what: str, actual: Array, expected: Expected, case: Case) -> list[str]:
    if isinstance(expected, Satisfies):
        return [] if expected.holds(actual) else [f"{what}: not {expected.meaning}"]
    rtol: float | Array = case.rtol
    atol: float | Array = case.atol
    value = expected
    if isinstance(expected, Within):
        value, rtol, atol = expected.value, expected.rtol, expected.atol
    assert isinstance(value, np.ndarray)
    if actual.shape != value.shape or actual.dtype != value.dtype:
        return [f"{what}: expected {value.dtype}{value.shape}, found {actual.dtype}{actual.shape}"]
    right = same_values(actual, value)
    if np.any(rtol) or np.any(atol):
        right = right | _close(actual, value, rtol, atol)
    wrong = np.flatnonzero(~right)
    if not wrong.size:
        return []
    first = np.unravel_index(wrong[0], value.shape) if value.shape else ()
    where = f"first at {tuple(int(i) for i in first)}"
    pair = f"expected {value[first]!r}, found {actual[first]!r}"
    return [f"{what}: {wrong.size} of {value.size} elements differ, {where}: {pair}"]


def _close(actual: Array, expected: Array, rtol: float | Array, atol: float | Array) -> Array:
    if actual.dtype.kind not in "fiu":
        return np.zeros(actual.shape, bool)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        near: Array = np.isfinite(a) & np.isfinite(e)
        near &= np.abs(a - e) <= np.asarray(atol) + np.asarray(rtol) * np.abs(e)
    return near


def _label(case: Case, index: int) -> str:
    name = f" ({case.labels[index]})" if index < len(case.labels) and case.labels[index] else ""
    return f"argument {index}{name}"


def _bits(array: Array) -> Array:
    if array.dtype.kind in "fc" and array.dtype.itemsize in (2, 4, 8):
        return array.view(f"u{array.dtype.itemsize}")
    return array
