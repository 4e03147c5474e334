"""Compares results of a case between devices: which bytes must be equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.conformance.suite import Case, Results
from tests.conformance.suite.case import Expected, Satisfies, Within
from tests.conformance.suite.comparison import same_values


def approximate(case: Case, key: int | str, expected: Mapping[int | str, Expected]) -> bool:
    """Whether a case allows devices to differ in a buffer or variable.

    It does where it has a tolerance (approximate instructions, library functions) and where several
    results are right.
    """
    wanted = expected.get(key)
    return isinstance(wanted, Within | Satisfies) or bool(case.rtol or case.atol)


def differences(
    case: Case, expected: Mapping[int | str, Expected], first: Results, second: Results
) -> list[str]:
    """The forbidden differences between two devices, as sentences: any bit but a NaN's payload.

    A case that is not deterministic is not compared.
    """
    if not case.deterministic:
        return []
    found = []
    for key, array in first.buffers.items():
        if not approximate(case, key, expected):
            found += _differ(f"argument {key}", array, second.buffers[key])
    for name, raw in first.symbols.items():
        if not approximate(case, name, expected):
            wanted = expected.get(name)
            kind = wanted.dtype if isinstance(wanted, np.ndarray) else np.dtype(np.uint8)
            sides = (np.frombuffer(one, kind) for one in (raw, second.symbols[name]))
            found += _differ(f"variable {name}", *sides)
    return found


def _differ(what: str, first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> list[str]:
    wrong = np.flatnonzero(~same_values(first, second))
    if not wrong.size:
        return []
    pair = f"{first.flat[wrong[0]]!r} and {second.flat[wrong[0]]!r}"
    return [f"{what}: {wrong.size} of {first.size} elements differ, at {wrong[0]}: {pair}"]
