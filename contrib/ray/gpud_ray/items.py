"""Items: the data (or its address) and the kernel to run, as they travel between machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from gpud.errors import InvalidArgument

__all__ = ["InOut", "Item", "KernelCall", "Out", "new_item_id"]

Dim = int | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Out:
    """An array that the kernel fills; it begins as zeroes and is one of the item's results.

    Attributes:
        shape: Its extents.
        dtype: Of an element.
    """

    shape: int | tuple[int, ...]
    dtype: str = "float64"

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        shape = (self.shape,) if isinstance(self.shape, int) else self.shape
        return int(np.prod(shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class InOut:
    """An array that the kernel changes; what it has become is one of the item's results.

    Attributes:
        values: A NumPy array, or a Ray object reference to one. It stays as it is.
    """

    values: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCall:
    """A launch of a kernel, on whichever node it will be.

    Attributes:
        source: CUDA C++ or PTX.
        kernel: The kernel's name in it.
        grid: Task blocks, an int or up to three.
        block: Threads of a block, likewise.
        args: One for each parameter: a number, None, a NumPy array that is only read, a Ray object
            reference to one, `Out` or `InOut`.
        shared: Dynamic shared memory of a block, in bytes.
        reservation: Run online, with at least this share of the GPU, as in gpud.
        quota: Run offline, with at most this share.
        weight: Of an offline job, as in gpud.
        timeout: Seconds that the kernel may run.
    """

    source: str
    kernel: str
    grid: Dim
    block: Dim
    args: tuple[Any, ...] = ()
    shared: int = 0
    reservation: float | str | None = None
    quota: float | str | None = None
    weight: int = 1
    timeout: float | None = None

    def __post_init__(self) -> None:
        source, name, args = self.source, self.kernel, self.args
        if not str(source).strip() or type(source) is not str:
            raise InvalidArgument("a kernel call's source is CUDA C++ or PTX text, and not empty")
        if type(name) is not str or not name:
            raise InvalidArgument(f"a kernel call names its kernel, not {name!r}")
        if self.reservation is not None and self.quota is not None:
            raise InvalidArgument("a kernel call has a reservation or a quota, not both")
        object.__setattr__(self, "args", tuple(args))
        for number, one in enumerate(args):
            values = one.values if isinstance(one, InOut) else one
            if isinstance(values, np.ndarray) and values.dtype.hasobject:
                raise InvalidArgument(
                    f"argument {number} is an array of Python objects; a kernel needs numbers"
                )
            if isinstance(one, Out):
                _check_out(number, one)


@dataclass(slots=True)
class Item:
    """A kernel call on its way.

    Attributes:
        id: Unique in the cluster.
        call: What to run; large arrays in it are Ray object references.
        created_s: When it was submitted, by its node's clock.
        memory_bytes: What its arrays take together on a device.
        only_on: The one node that may run it; empty: any.
    """

    id: str
    call: KernelCall
    created_s: float
    memory_bytes: int
    only_on: str = ""
    refs: list[Any] = field(default_factory=list)


def new_item_id() -> str:
    """Return an id that no other item has."""
    return os.urandom(8).hex()


def array_of(argument: Any) -> npt.NDArray[Any] | None:
    """Return the NumPy array that an argument brings along, if it does."""
    values = argument.values if isinstance(argument, InOut) else argument
    return values if isinstance(values, np.ndarray) else None


def outputs(arguments: Sequence[Any]) -> list[int]:
    """Return the numbers of the arguments that become results."""
    return [number for number, one in enumerate(arguments) if isinstance(one, Out | InOut)]


def _check_out(number: int, out: Out) -> None:
    try:
        dtype = np.dtype(out.dtype)
        shape = (out.shape,) if isinstance(out.shape, int) else tuple(map(int, out.shape))
    except TypeError as error:
        raise InvalidArgument(f"argument {number}, {out!r}: {error}") from None
    if dtype.hasobject or any(extent < 0 for extent in shape):
        raise InvalidArgument(
            f"argument {number}, {out!r}: extents are 0 or more, and elements are numbers"
        )
