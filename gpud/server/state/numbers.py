"""Numbers of sessions and modules, which are 32 bits wide on the wire."""

from __future__ import annotations

from collections.abc import Container

__all__ = ["LAST_NUMBER", "number_after"]

LAST_NUMBER = (1 << 32) - 1


def number_after(number: int, taken: Container[int]) -> int:
    """Return the next number that is not taken, wrapping to 1 after `LAST_NUMBER`."""
    while True:
        number = number + 1 if number < LAST_NUMBER else 1
        if number not in taken:
            return number
