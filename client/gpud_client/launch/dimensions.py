"""Checks grids, blocks and sizes of shared memory."""

from __future__ import annotations

from operator import index
from typing import SupportsIndex

from gpud.errors import LaunchConfigError

__all__ = ["MOST_BLOCKS", "Dim", "as_dim3", "as_shared"]

Dim = int | tuple[int, ...]
"""A grid or a block: an int, or up to three."""

MOST_BLOCKS = (1 << 31) - 1
"""The most task blocks of a launch, and the most in any direction."""

_MOST_GRID_YZ = (1 << 16) - 1


def as_dim3(what: str, value: Dim) -> tuple[int, int, int]:
    """Convert an int or a tuple of up to three to (x, y, z).

    Raises:
        LaunchConfigError: another length, or an extent below 1 or over CUDA's limit; a ValueError.
        TypeError: it is neither.
    """
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        if any(isinstance(one, bool) for one in given):
            raise TypeError
        extents = [index(one) for one in given]
    except TypeError:
        raise TypeError(f"{what} is an int or a tuple of up to three, not {value!r}") from None
    if not 1 <= len(extents) <= 3:
        raise LaunchConfigError(what, extents, "give one to three extents")
    if min(extents) < 1 or max(extents) > MOST_BLOCKS:
        raise LaunchConfigError(what, extents, f"every extent is 1 to {MOST_BLOCKS}")
    x, y, z = (*extents, 1, 1)[:3]
    if what == "grid" and max(y, z) > _MOST_GRID_YZ:  # a loop over task blocks could have more
        raise LaunchConfigError(
            what, (x, y, z), f"CUDA allows {_MOST_GRID_YZ} in y and z", limit=_MOST_GRID_YZ
        )
    return x, y, z


def as_shared(shared: int) -> int:
    """Convert a size of dynamic shared memory to an int, in bytes.

    Raises:
        LaunchConfigError: it is negative, or not below 4 GiB; a ValueError.
        TypeError: it is not an integer.
    """
    if isinstance(shared, bool) or not isinstance(shared, SupportsIndex):
        raise TypeError(f"shared is a number of bytes, not {shared!r}")
    size = shared.__index__()
    if not 0 <= size < 1 << 32:
        raise LaunchConfigError("shared", size, "give the bytes of a block, 0 or more")
    return size
