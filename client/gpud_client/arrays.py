"""Arrays in a device's memory.

On the CPU device a session's arrays lie in memory that the daemon and this process share:
`Array.get` and `Array.set` take one copy, `Array.numpy` none. A GPU has memory of its own: there
the daemon copies between it and the shared memory, and `Array.numpy` is not available.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gpud.errors import ConnectionLost, DeviceLost, GpudError, OutOfMemory
from gpud.wire.messages import Allocate, Download, Upload
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Notification, Operation, PendingJob, PendingJobs, Request
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.displays import Display, Displayed
from gpud_client.launch.streams import Failure, StreamBase, unseen_failures
from gpud_client.workloads.memory import MemoryPart

__all__ = [
    "ArrayBase",
    "Shape",
    "Values",
    "allocate",
    "as_dtype",
    "as_shape",
    "as_values",
]

Shape = int | Sequence[int]
Values = npt.NDArray[Any]

_LOG = logging.getLogger("gpud_client")
_FREED = "the array was freed"
_WAITS = (
    "%d bytes are not there before job %s (%s) has ended, as arrays were dropped since it was "
    "submitted: waiting for it; later waits are not logged"
)
_LARGEST_BYTES = (1 << 64) - 1
"""The largest size that a request can hold; no device has as much memory."""


A = TypeVar("A", bound="ArrayBase")


class _Allocation:
    """Memory on a device, freed when neither the array nor a NumPy view of it is left."""

    __slots__ = ("__weakref__", "address", "core", "device", "kick", "lost", "size", "users")

    def __init__(
        self, core: ProtocolState, device: int, address: int, size: int, kick: Any
    ) -> None:
        self.core = core
        self.device = device
        self.address = address
        self.size = size
        self.kick = kick
        self.lost = False
        self.users = PendingJobs()
        if core.resumable is not None:
            core.resumable.allocations.add(self)

    @property
    def array(self) -> int:
        """Address of the memory that the daemon knows: its own."""
        return self.address

    @property
    def offset(self) -> int:
        """Where in that memory this is."""
        return 0

    def __del__(self) -> None:
        checking = self.core.checking
        if checking is None or not checking.dropped(self.device, self.address):
            self.core.free(self.device, self.address)
            self.kick()


class ArrayBase(Displayed):
    """State and operations common to `Array` and `AsyncArray`."""

    _mappings: tuple[Any, ...] = ()
    """This process's mappings of a GPU's memory, see `gpud_client.adapters.mapped_array`."""

    def __init__(
        self, session: Any, device: Device, allocation: _Allocation | MemoryPart,
        shape: tuple[int, ...], dtype: np.dtype[Any],
    ) -> None:  # fmt: skip
        self._session = session
        self._channel = session._channel
        self._device = device
        self._allocation: _Allocation | MemoryPart | None = allocation
        self._address = allocation.address
        self._shape = shape
        self._dtype = dtype
        self._exposed = False
        self._exported: _Allocation | MemoryPart | None = None
        self._users = allocation.users
        self._gone = _FREED
        self._suspended: _Allocation | MemoryPart | None = None
        self._described: ArrayBase | None = None
        """The array that this one describes, if it is a texture."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents, slowest-varying first; the layout is C order."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of an element."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self._shape)

    @property
    def nbytes(self) -> int:
        """The size of all elements in bytes."""
        return self.size * self._dtype.itemsize

    @property
    def device(self) -> Device:
        """The device whose memory holds the array."""
        return self._device

    @property
    def ptr(self) -> int:
        """The device address of the first byte, for pointers inside structs and other arrays.

        Once the address was read, any job of the session on the device may use the array: from then
        on `get`, `set` and `numpy` wait for all of them.

        Raises:
            ValueError: The array was freed.
        """
        self._exposed = True
        return self._live_address()

    def _live_address(self) -> int:
        """As `ptr`, for callers that track the jobs that use the array themselves."""
        if self._allocation is None:
            raise ValueError(self._gone)
        return self._address

    def free(self) -> None:
        """Release the memory once the jobs that were submitted before have ended.

        The array cannot be used afterwards. NumPy views made by `numpy` stay valid, and keep the
        memory until they are gone. May be called twice. Dropping the array does the same.
        """
        self._allocation = self._suspended = None

    def _withdraw(self, why: str) -> None:
        """Free the array, as what it was made for has ended."""
        self._allocation = self._suspended = None
        self._gone = why

    def _suspend(self, why: str) -> None:
        """Have each use of the array raise ``why`` until `_resume`; its memory may be elsewhere."""
        if self._allocation is not None:
            self._suspended, self._allocation = self._allocation, None
            self._gone = why

    def _resume(self) -> None:
        """Let the array be used again."""
        if self._suspended is not None:
            self._allocation, self._suspended = self._suspended, None
            self._gone = _FREED

    def _display(self) -> Display:
        rows = [
            ("shape", " x ".join(map(str, self._shape)) or "one element"),
            ("type", str(self._dtype)),
            ("size", f"{self.nbytes:,} bytes"),
            ("device", f"{self._device.index}: {self._device.name}"),
        ]
        if self._allocation is None:
            rows.append(("state", "freed" if self._suspended is None else "between iterations"))
        return Display(type(self).__name__, rows)

    def __repr__(self) -> str:
        freed = ", freed" if self._allocation is None and self._suspended is None else ""
        where = f"device {self._device.index} ({self._device.kind})"
        return f"<{type(self).__name__} {self._shape} {self._dtype} on {where}{freed}>"

    @operation
    def get(self, out: Values | None = None, stream: StreamBase | None = None) -> Operation[Values]:
        """Copy the values out.

        Waits for the jobs that were submitted with this array and have not ended.

        Args:
            out: The destination, of the same shape and type; None: a new array.
            stream: Wait for all jobs of this stream, too, as `Stream.synchronize` does.

        Returns:
            The values, in ``out`` or a new NumPy array.

        Raises:
            JobError: A job that was submitted with this array has failed, or was not run because of
                one that has, and that was not seen before; the values are unspecified.
            ValueError: The array was freed, or ``out`` does not match.
            DeviceLost: The device lost the values; write new ones with `set`.
            ConnectionLost: The connection to the daemon is lost.
        """
        if out is not None:
            if not isinstance(out, np.ndarray):
                raise TypeError(f"out is a NumPy array, not a {type(out).__name__}")
            if out.shape != self._shape or out.dtype != self._dtype:
                raise ValueError(
                    f"out has shape {out.shape} and type {out.dtype}, the array {self._shape} and "
                    f"{self._dtype}"
                )
        view = yield from self._view(stream, fetch=True)
        if out is None:
            return view.copy()
        out[...] = view
        return out

    @operation
    def set(self, values: npt.ArrayLike, stream: StreamBase | None = None) -> Operation[None]:
        """Copy values in, of the array's shape and type; waits for the same jobs as `get`.

        Raises:
            JobError: As with `get`; nothing is copied.
            TypeError: The values are of another type.
            ValueError: The array was freed, or the values have another shape.
            ConnectionLost: The connection to the daemon is lost.
        """
        if isinstance(values, np.ndarray | np.generic):
            given = np.asarray(values)
            if given.dtype != self._dtype and given.dtype.newbyteorder("=") != self._dtype:
                raise TypeError(
                    f"the values are {given.dtype}, the array is {self._dtype}; convert them with "
                    "astype()"
                )
        else:
            given = np.asarray(values, self._dtype)
        if given.shape != self._shape:
            raise ValueError(f"the values have shape {given.shape}, the array {self._shape}")
        yield from self._put(given, stream)

    @operation
    def numpy(self) -> Operation[Values]:
        """Make a NumPy view of the array's memory, without a copy.

        Waits once for the same jobs as `get`. Later jobs change the values under the view, and
        writes to the view change the array: synchronise with `Job.result`.

        Raises:
            GpudError: This process cannot map the device's memory, such as a GPU's.
        """
        if self._copied:
            raise GpudError(
                f"the memory of {self._device.name} cannot be mapped into this process: copy the "
                "values with get() and set()"
            )
        view = yield from self._view(None)
        self._note_written()  # by whoever has the view
        return view

    # -- steps of operations

    @property
    def _copied(self) -> bool:
        return self._device.arrays == "copied"

    def _followed(self, stream: StreamBase | None) -> list[PendingJob]:
        """Return the jobs that an access to the values must wait for now."""
        in_lanes = self._followed_in_lanes(stream) if self._channel.core.lanes else []
        return in_lanes + self._followed_jobs(stream)

    def _followed_in_lanes(self, stream: StreamBase | None) -> list[PendingJob]:
        """Return the latest launch of each lane that an access must wait for."""
        found: list[PendingJob] = []
        for lane in list(self._channel.core.lanes.values()):
            every = self._exposed or lane is stream
            latest = lane._latest() if every else lane._latest_with(self._allocation)
            if latest is not None:
                found.append(latest)
        return found

    def _followed_jobs(self, stream: StreamBase | None) -> list[PendingJob]:
        pending = self._channel.core.jobs
        if stream is None and not self._exposed:
            return self._users.unended(pending)
        jobs: list[PendingJob] = list(pending.values())
        if self._exposed:
            return [job for job in jobs if job._device is self._device]
        assert stream is not None
        return self._users.unended(pending) + [job for job in jobs if job._stream is stream]

    def _wait_for_jobs(self, stream: StreamBase | None) -> Operation[None]:
        """Wait for the jobs that an access must follow.

        Raises:
            JobError: one of them, or of those that were to use the array before, has failed, and
                nobody has seen it.
        """
        jobs = self._followed(stream)
        if jobs:
            yield jobs
        failure = self._unseen_failure(stream)
        if failure is not None:
            raise failure.see()

    def _unseen_failure(self, stream: StreamBase | None) -> Failure | None:
        """Return the failure of a job that was to use the array, if nobody has seen it."""
        found = [self._users.failure, None if stream is None else stream._failure]
        if self._exposed:
            every = unseen_failures(self._channel.core)
            found += [failure for failure in every if failure.device is self._device]
        return next((one for one in found if one is not None and not one.seen), None)

    def _view(self, stream: StreamBase | None, *, fetch: bool = False) -> Operation[Values]:
        """Return the array's part of the shared memory, once the jobs to wait for have ended.

        Args:
            stream: see `ArrayBase.get`.
            fetch: copy the device's values there first, if the device has memory of its own.
        """
        allocation = self._allocation
        if allocation is None:
            raise ValueError(self._gone)
        core: ProtocolState = self._channel.core
        yield from self._wait_for_jobs(stream)
        if fetch and allocation.lost:
            raise DeviceLost(
                f"the values of {self!r} were in the memory of a device that ended with its "
                "daemon: write new ones with set()"
            )
        if fetch and self._copied and core.lost is None:
            part = allocation.device, allocation.array, allocation.offset, allocation.size
            yield Request(lambda number: Download(number, *part))
        if core.lost is not None:
            raise ConnectionLost(f"{core.lost}; the array's values are gone")
        arena = core.arenas[self._device.index]
        raw = arena.view(allocation.address, self.nbytes, allocation)
        return raw.view(self._dtype).reshape(self._shape)

    def _put(self, values: Values, stream: StreamBase | None = None) -> Operation[None]:
        """Copy values of the array's shape in, before later jobs start."""
        core: ProtocolState = self._channel.core
        view = yield from self._view(stream)
        view[...] = values
        self._note_written()
        allocation = self._allocation
        if allocation is not None:
            allocation.lost = False
        if self._copied and allocation is not None:
            part = allocation.device, allocation.array, allocation.offset, allocation.size
            yield Notification(Upload(*part))
            if any(lane.device is self._device for lane in core.lanes.values()):
                # Launches in lanes overtake what goes by the daemon: wait until it has arrived.
                yield Request(lambda number: Download(number, *part[:3], 1))

    def _note_written(self) -> None:
        """Tell the checking mode that the client has written the array, or can."""
        checking = self._channel.core.checking
        allocation = self._allocation
        if checking is not None and allocation is not None:
            checking.written(allocation.device, allocation.address, allocation.size)


# -- creation ----------------------------------------------------------------------------------


def allocate(
    session: Any, cls: type[A], device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Operation[A]:
    """Make an array of zeroes; if needed, wait for jobs that keep the memory of dropped arrays."""
    core: ProtocolState = session._channel.core
    size = max(1, math.prod(shape) * dtype.itemsize)
    if size > _LARGEST_BYTES:
        raise OutOfMemory(size, device.memory, limit="device")
    index = device.index
    checking = core.checking
    if checking is not None:
        checking.settle()
    wanted = size if checking is None else checking.bytes_for(index, size)
    answer = None
    oldest: list[PendingJob] = []
    while answer is None:
        try:
            answer = yield Request(
                lambda number: Allocate(number, index, wanted),
                undo=lambda answer: core.free(index, answer.address),
            )
        except OutOfMemory as error:
            if checking is not None and wanted != size:
                # What was freed is kept for a while, to find out kernels that still use it.
                checking.settle(give_back=True)
                checking = None
                continue
            if error.limit != "jobs":
                raise
            # Memory is released in the order of jobs. Wait for the job that was the oldest before
            # this request: the oldest one now may be a later one, which may never end.
            if oldest and not core.has_waited:
                core.has_waited = True
                _LOG.warning(_WAITS, size, oldest[0].id, oldest[0]._what)
            yield oldest
            oldest = list(core.jobs.values())[:1]
    if core.checking is not None:
        core.checking.added(index, answer.address, size, dtype, shape)
    allocation = _Allocation(core, index, answer.address, size, session._channel.kick)
    return cls(session, device, allocation, shape, dtype)


def as_shape(shape: Shape) -> tuple[int, ...]:
    """Convert a shape to a tuple of extents.

    Raises:
        TypeError: it is neither an int nor a sequence of ints.
        ValueError: one is negative.
    """
    try:
        given = tuple(shape) if isinstance(shape, Sequence) else (shape,)
        extents = tuple(extent.__index__() for extent in given)
    except (AttributeError, TypeError):
        raise TypeError(f"a shape is an int or a tuple of ints, not {shape!r}") from None
    if any(extent < 0 for extent in extents):
        raise ValueError(f"extents are 0 or more, not {shape!r}")
    return extents


def as_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Convert to a type of elements that a device can hold.

    Raises:
        TypeError: it is not a type, or holds Python objects.
        ValueError: it has the other byte order.
    """
    element: np.dtype[Any] = np.dtype(dtype)
    if element.hasobject:
        raise TypeError(f"an array of {element} holds Python objects, which no device can use")
    if not element.itemsize:
        raise TypeError(f"elements of type {element!r} have no size; say how long they are")
    if element != element.newbyteorder("="):
        raise ValueError(f"{element!r} is not in this machine's byte order; use newbyteorder('=')")
    return element


def as_values(values: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Values:
    """Convert values for a new array: contiguous, in this machine's byte order.

    Raises:
        TypeError: they hold Python objects.
    """
    given = np.asarray(values, None if dtype is None else as_dtype(dtype))
    return np.ascontiguousarray(given, as_dtype(given.dtype.newbyteorder("="))).reshape(given.shape)
