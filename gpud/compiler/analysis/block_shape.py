"""What the analyses may have to assume about the shape of a thread block.

A kernel does not say how large its blocks will be; the launch does. An answer that holds only for
some shapes carries them as a `Shape`, and the launch checks it with `holds`.
"""

from __future__ import annotations

from enum import IntFlag

__all__ = ["WARP_SIZE", "Shape", "holds"]

WARP_SIZE = 32


class Shape(IntFlag):
    """Block shapes for which an answer holds; combined, both must hold."""

    ANY = 0
    ROWS = 1
    """No warp spans two rows: the block has one row, or rows of a multiple of 32 threads."""
    WHOLE = 2
    """Rows have a multiple of 32 threads."""


def holds(shape: Shape, block: tuple[int, int, int]) -> bool:
    """Whether a block of x, y, z threads has ``shape``."""
    x, y, z = block
    whole = x % WARP_SIZE == 0
    if shape & Shape.WHOLE and not whole:
        return False
    return not shape & Shape.ROWS or whole or y == z == 1
