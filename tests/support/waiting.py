"""Waits for a condition that another thread or process brings about."""

from __future__ import annotations

import time
from collections.abc import Callable

_LIMIT_S = 60.0
_PAUSE_S = 0.002
"""Leaves the processors to those that are waited for."""


def until(holds: Callable[[], object], what: str = "the condition") -> None:
    """Wait until a condition holds; fail if it does not within a minute."""
    end = time.monotonic() + _LIMIT_S
    while not holds():
        assert time.monotonic() < end, f"{what} never came to hold"
        time.sleep(_PAUSE_S)
