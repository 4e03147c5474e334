"""Division by constants that the host knows in advance, as a multiplication and a shift.

Problem: the coordinates of a task block are its number divided by the grid's extents, and GPUs have
no instruction for integer division.

Approach: the host computes a *divider* for each extent, a (multiplier, shift) pair, which is in the
job record (`gpud.compiler.abi.control_words`); kernels multiply.

Algorithm: for a divisor d >= 1 with 2**(s-1) < d <= 2**s, multiplier = floor(2**(31+s) / d) + 1
fits 32 bits, and for every n < 2**31

    n // d == ((2 * n * multiplier) >> 32) >> s

because multiplier * d = 2**(31+s) + e with 0 < e <= 2**s, so the error n * e / (d * 2**(31+s)) is
below 1/d (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994,
theorem 4.2). On a device: an addition, a ``mul.hi.u32`` and a shift.

Properties:
* ``divide(n, divider(d)) == n // d`` for all 0 <= n < 2**31, 1 <= d < 2**31.
"""

from __future__ import annotations

from typing import Final

__all__ = ["LARGEST", "coordinates", "divide", "divider"]

LARGEST: Final = 2**31 - 1
"""The largest numerator and divisor."""


def divider(divisor: int) -> tuple[int, int]:
    """Compute (multiplier, shift) for `divide`; both fit 32 bits.

    Raises:
        ValueError: ``divisor`` is not in 1..2**31 - 1.
    """
    if not 1 <= divisor <= LARGEST:
        raise ValueError(f"a divisor is in 1..{LARGEST}, not {divisor}")
    shift = (divisor - 1).bit_length()
    return (1 << (31 + shift)) // divisor + 1, shift


def divide(numerator: int, by: tuple[int, int]) -> int:
    """Return the quotient of a numerator below 2**31 by a divider, as kernels compute it."""
    multiplier, shift = by
    return ((numerator + numerator) * multiplier >> 32) >> shift


def coordinates(task_block: int, grid: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the x, y, z of a task block, as kernels compute them."""
    rows = divide(task_block, divider(grid[0]))
    z = divide(rows, divider(grid[1]))
    return task_block - rows * grid[0], rows - z * grid[1], z
