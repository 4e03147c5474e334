"""Launches with checked and packed arguments, and checks of grid and block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from gpud.errors import LaunchConfigError
from gpud_client.arrays import ArrayBase

if TYPE_CHECKING:
    from gpud_client.devices import Device
    from gpud_client.launch.kernels import KernelBase

__all__ = ["Dim", "Launch", "as_dim3", "as_shared"]

Dim = int | tuple[int, ...]
"""A grid or a block: an int, or up to three."""

_MOST = (1 << 31) - 1
_MOST_GRID_YZ = (1 << 16) - 1


class Launch:
    """One launch with its arguments, for `Session.sequence`; made by `Kernel.call`.

    The arguments are packed when it is made. It may be submitted any number of times, and keeps its
    arrays alive.

    Attributes:
        kernel: The kernel that is launched.
        grid: Task blocks, as (x, y, z).
        block: Threads of a block, likewise.
        shared: Dynamic shared memory of a block, in bytes.
    """

    __slots__ = (
        "_arrays",
        "_device",
        "_packed",
        "_parameters",
        "_sequence",
        "_total",
        "block",
        "grid",
        "kernel",
        "shared",
    )

    def __init__(
        self, kernel: KernelBase, grid: Dim, block: Dim, args: Sequence[Any], shared: int
    ) -> None:
        self.kernel = kernel
        self.grid = as_dim3("grid", grid)
        self.block = as_dim3("block", block)
        self.shared = as_shared(shared)
        self._total = math.prod(self.grid)
        if self._total > _MOST:
            raise LaunchConfigError(
                "grid",
                self.grid,
                f"{self._total} task blocks are over {_MOST}; split the work into jobs",
                limit=_MOST,
            )
        self._parameters, self._arrays = kernel._packer.pack(args)
        self._device = _device_of(kernel, self._arrays)
        self._packed: Any = None  # its `PackedLaunch`, for one device
        self._sequence: Any = None  # the `PackedSequence` that begins with this launch

    def __repr__(self) -> str:
        return f"<Launch {self.kernel.name} grid={self.grid} block={self.block}>"


def as_dim3(what: str, value: Dim) -> tuple[int, int, int]:
    """Convert an int or a tuple of up to three to (x, y, z).

    Raises:
        LaunchConfigError: another length, or an extent below 1 or over CUDA's limit; a ValueError.
        TypeError: it is neither.
    """
    if type(value) is int and 0 < value <= _MOST:
        return value, 1, 1
    given = tuple(value) if isinstance(value, tuple | list) else (value,)
    try:
        if any(isinstance(one, bool) for one in given):
            raise TypeError
        extents = [index(one) for one in given]
    except TypeError:
        raise TypeError(f"{what} is an int or a tuple of up to three, not {value!r}") from None
    if not 1 <= len(extents) <= 3:
        raise LaunchConfigError(what, extents, "give one to three extents")
    if min(extents) < 1 or max(extents) > _MOST:
        raise LaunchConfigError(what, extents, f"every extent is 1 to {_MOST}")
    x, y, z = (*extents, 1, 1)[:3]
    if what == "grid" and max(y, z) > _MOST_GRID_YZ:  # a loop over task blocks could have more
        raise LaunchConfigError(
            what, (x, y, z), f"CUDA allows {_MOST_GRID_YZ} in y and z", limit=_MOST_GRID_YZ
        )
    return x, y, z


def as_shared(shared: int) -> int:
    """A size of dynamic shared memory, in bytes.

    Raises:
        LaunchConfigError: it is negative, or not below 4 GiB; a ValueError.
        TypeError: it is not an integer.
    """
    if type(shared) is int and 0 <= shared < 1 << 32:
        return shared
    if isinstance(shared, bool) or not isinstance(shared, SupportsIndex):
        raise TypeError(f"shared is a number of bytes, not {shared!r}")
    size = shared.__index__()
    if not 0 <= size < 1 << 32:
        raise LaunchConfigError("shared", size, "give the bytes of a block, 0 or more")
    return size


def _device_of(kernel: KernelBase, arrays: list[ArrayBase]) -> Device | None:
    """The device of the arrays, None if there are none.

    Raises:
        ValueError: they are of another session, or on different devices.
    """
    if not arrays:
        return None
    device = arrays[0]._device
    for array in arrays:
        if array._session is not kernel._session:
            raise ValueError(
                f"{array!r} is of another session; every array of a job is made by the session "
                "that submits it"
            )
        if array._device is not device:
            raise ValueError(
                f"the arrays of a job lie on one device, not on {device.name} and "
                f"{array._device.name}"
            )
    return device
