"""The operations of a session that make arrays, and loops that take turns with memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from gpud_client.arrays import ArrayBase, Shape, allocate, as_dtype, as_shape, as_values
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Operation
from gpud_client.devices import Device, chosen_devices
from gpud_client.textures import describe
from gpud_client.workloads.workload import WorkloadBase, open_workload

__all__ = ["SessionArrays"]

ArrayT = TypeVar("ArrayT", bound=ArrayBase)
WorkloadT = TypeVar("WorkloadT", bound=WorkloadBase[Any, Any])


class SessionArrays(Generic[ArrayT, WorkloadT]):
    """Makes the arrays and workloads of a `SessionBase`."""

    _array_class: type[ArrayT]
    _workload_class: type[WorkloadT]
    _devices: tuple[Device, ...]

    @operation
    def array(
        self,
        values: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        *,
        device: Device | int | None = None,
    ) -> Operation[ArrayT]:
        """Make an array that holds a copy of ``values``.

        Args:
            values: Anything that NumPy can make an array of.
            dtype: Convert to this type; None: the type that NumPy infers.
            device: On which device; None: on the first one.

        Raises:
            OutOfMemory: There is not enough memory.
            TypeError: The values are Python objects.
        """
        given = as_values(values, dtype)
        on = self._on(device)
        array = yield from allocate(self, self._array_class, on, given.shape, given.dtype)
        yield from array._put(given)
        return array

    @operation
    def zeros(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> Operation[ArrayT]:
        """Make an array of zeroes.

        If it needs the memory of arrays that were freed or dropped, it waits for the jobs that the
        session had submitted before. So does `array`.

        Args:
            shape: Extents, an int or a tuple.
            dtype: Of an element.
            device: On which device; None: on the first one.

        Raises:
            OutOfMemory: There is not enough memory.
            TypeError, ValueError: The shape is not valid, or the type not one that a device can
                hold.
        """
        array = yield from self._new(shape, dtype, device)
        array._note_written()
        return array

    @operation
    def empty(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> Operation[ArrayT]:
        """Make an array with unspecified values; see `zeros`."""
        return (yield from self._new(shape, dtype, device))

    @operation
    def texture(
        self,
        array: ArrayT,
        *,
        channels: int = 1,
        filtering: str = "point",
        mode: str | Sequence[str] = "clamp",
        normalized: bool = False,
        read: str = "element",
        border: Sequence[float] = (0, 0, 0, 0),
    ) -> Operation[ArrayT]:
        """Make a texture over an array, for a kernel's ``cudaTextureObject_t``.

        It is read by ``tex1Dfetch``, ``tex1D``, ``tex2D`` and ``tex3D``, and, passed for a
        ``cudaSurfaceObject_t``, read and written by ``surf1Dread``, ``surf2Dwrite`` and the like.
        Values that are written to the array are seen by kernels that start later. On every device
        gpud does in software what a texture unit does: a fetch costs several loads.

        Args:
            array: The elements: integers of 8, 16 or 32 bits, float16 or float32. Its shape is
                ``(width,)``, ``(height, width)`` or ``(depth, height, width)``.
            channels: 2 or 4 for elements such as ``float4``; they are then the last axis.
            filtering: ``"point"``: the element at a coordinate; ``"linear"``: interpolate between
                the nearest, with weights of 8 bits, as GPUs do.
            mode: Outside of the array: ``"clamp"``, ``"border"``, or with ``normalized``
                ``"wrap"`` or ``"mirror"``; or one for each dimension, x first.
            normalized: Whether coordinates go from 0 to 1 instead of to the extents.
            read: ``"normalized"``: integers of 8 or 16 bits become floats from 0 or -1 to 1.
            border: The values outside, with the mode ``"border"``.

        Returns:
            An array with the description of the texture, to be passed to kernels; it keeps
            ``array`` alive.

        Raises:
            OutOfMemory: There is not enough memory for the description, of 64 bytes.
            TypeError: ``array`` is none, or has other elements.
            ValueError: The array was freed, or the arguments do not fit together.
        """
        if not isinstance(array, ArrayBase):
            raise TypeError(f"a texture is made over an Array, not a {type(array).__name__}")
        words = describe(
            array.ptr,
            array.shape,
            array.dtype,
            channels=channels,
            filtering=filtering,
            mode=mode,
            normalized=normalized,
            read=read,
            border=border,
        )
        made = yield from allocate(self, self._array_class, array.device, words.shape, words.dtype)
        yield from made._put(words)
        made._described = array
        return made

    @operation
    def workload(
        self,
        persistent: int | str | None = None,
        temporary: int | str | None = None,
        offset: int | str | None = None,
        weight: int = 1,
        *,
        movable: bool = False,
        device: Device | int | None = None,
    ) -> Operation[WorkloadT]:
        """Open a workload: a loop that takes turns with others with a device's memory.

        Waits until there is room for what it keeps, beside what others keep and the largest
        temporary need. Sizes are bytes, or text such as ``"2GiB"``. Without sizes it learns them:
        it has all memory that is left, half for each kind, until its first iteration has ended, and
        keeps what that has used.

        Args:
            persistent: What lives across iterations, such as weights and optimiser state; None: to
                be learned.
            temporary: What lives within an iteration, at most, such as activations; None: to be
                learned.
            offset: Room in which the persistent memory can grow; it counts as used. None: 100 MiB,
                or a sixteenth of the device's memory where that is less.
            weight: The length of its turns beside those of others, 1 to 1000.
            movable: What it keeps may be in host memory while others have their turns, so that it
                also fits where all that workloads keep is more than the device has. Its arrays
                are made and used within iterations then, and views of them (`Array.numpy`) too.
            device: On which device; None: the daemon chooses, and `Workload.reason` says why.

        Raises:
            OutOfMemory: No device can ever hold it, or a limit of the session or user is reached.
            TypeError, ValueError: A size or the weight is not one.
        """
        on = None if device is None else self._on(device)
        sizes = persistent, temporary, offset
        workload: WorkloadT = yield from open_workload(
            self, self._workload_class, on, sizes, weight, movable=bool(movable)
        )
        return workload

    # -- steps of operations

    def _on(self, device: Device | int | None, default: Device | None = None) -> Device:
        """Return the device that ``device`` names, or the default.

        Raises:
            TypeError: it is neither a device nor an index.
            ValueError: the daemon does not have it.
        """
        if device is None:
            return chosen_devices(self._devices)[0] if default is None else default
        if isinstance(device, Device):
            if device.index < len(self._devices) and self._devices[device.index] == device:
                return self._devices[device.index]
            raise ValueError(f"{device.name} is a device of another daemon")
        if isinstance(device, bool) or not isinstance(device, int):
            raise TypeError(f"a device is one of gpu.devices or its index, not {device!r}")
        if not 0 <= device < len(self._devices):
            raise ValueError(f"there is no device {device}: the daemon has {len(self._devices)}")
        return self._devices[device]

    def _new(
        self, shape: Shape, dtype: npt.DTypeLike, device: Device | int | None
    ) -> Operation[ArrayT]:
        extents, element = as_shape(shape), as_dtype(dtype)
        return (yield from allocate(self, self._array_class, self._on(device), extents, element))
