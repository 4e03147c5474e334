"""Makes arrays in a workload's memory: what workloads and their iterations have in common."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from gpud_client.arrays import ArrayBase, Shape, as_dtype, as_shape, as_values
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Operation
from gpud_client.workloads.memory import MemoryPart, MemoryRange

__all__ = ["ArrayMaker", "nbytes"]

ArrayT = TypeVar("ArrayT", bound=ArrayBase)


class ArrayMaker(Generic[ArrayT]):
    """Makes arrays in a range of memory; what workloads and turns have in common."""

    _channel: Any
    _workload: Any

    @operation
    def empty(self, shape: Shape, dtype: npt.DTypeLike = "float64") -> Operation[ArrayT]:
        """Make an array with unspecified values; see `zeros`."""
        return (yield from self._allocate(as_shape(shape), as_dtype(dtype)))

    @operation
    def zeros(self, shape: Shape, dtype: npt.DTypeLike = "float64") -> Operation[ArrayT]:
        """Make an array of zeroes in this memory.

        Args:
            shape: Extents, an int or a tuple.
            dtype: Of an element.

        Raises:
            OutOfMemory: The memory that the workload has asked for is used up.
            TypeError, ValueError: The shape is not valid, or the type not one that a device can
                hold; or the iteration or the workload is over.
        """
        array = yield from self._allocate(as_shape(shape), as_dtype(dtype))
        yield from array._put(np.zeros(array.shape, array.dtype))
        return array

    @operation
    def array(self, values: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Operation[ArrayT]:
        """Make an array that holds a copy of ``values``; see `zeros`."""
        given = as_values(values, dtype)
        array = yield from self._allocate(given.shape, given.dtype)
        yield from array._put(given)
        return array

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operation[ArrayT]:
        raise NotImplementedError

    def _make(
        self, of: MemoryRange, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> ArrayT:
        workload = self._workload
        session = workload._session
        size = nbytes(shape, dtype)
        part = MemoryPart(of, workload, workload.device.index, address, size)
        array: ArrayT = session._array_class(session, workload.device, part, shape, dtype)
        return array


def nbytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes, 1 at least."""
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    return max(1, size)
