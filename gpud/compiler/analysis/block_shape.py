"""Block shapes for which the result of an analysis holds.

The size of a kernel's blocks is known only at launch. A result that holds for some shapes only
carries a `ShapeRule`, which the launch checks with `holds`.
"""

from __future__ import annotations

from enum import IntFlag

__all__ = ["WARP_SIZE", "ShapeRule", "holds"]

WARP_SIZE = 32


class ShapeRule(IntFlag):
    """Conditions on the shape of a block; combined with ``|``, all must hold."""

    ANY = 0
    ROWS = 1
    """No warp spans two rows: the block has one row, or rows of a multiple of 32 threads."""
    WHOLE = 2
    """Rows have a multiple of 32 threads."""


def holds(shape: ShapeRule, block: tuple[int, int, int]) -> bool:
    """Return whether a block of x, y, z threads has ``shape``."""
    x, y, z = block
    whole = x % WARP_SIZE == 0
    if shape & ShapeRule.WHOLE and not whole:
        return False
    return not shape & ShapeRule.ROWS or whole or y == z == 1
