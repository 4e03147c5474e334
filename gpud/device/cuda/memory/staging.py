"""Staged copies between memory files and the GPU's memory, through a page-locked buffer.

Problem: copies by the GPU's copy engines need page-locked memory. A session's file is as large as
its arena, its client writes to it, and its pages are freed while it is used: locking it would keep
host memory for every array, written or not, and the GPU would see old pages where some were freed.

Approach: a small page-locked buffer in two halves. While the GPU copies one, the other is read from
the file or written to it, with calls that do not allocate the file's holes when they read them
(`FilePart`). What is copied there and back again and again is mapped once instead (`MappedPart`):
that takes the processor a third of the time, as no page has to be looked up.

Properties:
* no more than two parts of a copy are under way: a short copy of another's waits for no more;
* a copy is complete when the call returns, or it raises, and no part of it is still in progress;
* no part of a file is locked; a hole that is read by calls stays one.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.driver.calls import DriverError
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.memory.pool import MappedBlock
from gpud.errors import DeviceLost, InternalError

__all__ = ["FilePart", "MappedPart", "Part", "Staging"]

_HALF_BYTES: Final = 4 << 20


class Part(Protocol):
    """A part of a file."""

    def read(self, at: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill ``target`` from the byte ``at`` of the part on."""

    def write(self, at: int, source: npt.NDArray[np.uint8]) -> None:
        """Write ``source`` from the byte ``at`` of the part on."""


class FilePart:
    """A part of a file from ``offset`` on, that is read and written by calls.

    Raises, when it is used:
        InternalError: the system cannot, or the file ends too early.
    """

    def __init__(self, descriptor: int, offset: int) -> None:
        self._descriptor = descriptor
        self._offset = offset

    def read(self, at: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill ``target`` from the byte ``at`` of the part on."""
        self._call(os.preadv, "read", at, target)

    def write(self, at: int, source: npt.NDArray[np.uint8]) -> None:
        """Write ``source`` from the byte ``at`` of the part on."""
        self._call(os.pwritev, "written", at, source)

    def _call(
        self, call: Callable[..., int], what: str, at: int, values: npt.NDArray[np.uint8]
    ) -> None:
        view, offset = memoryview(values.data), self._offset + at
        while view:
            try:
                count = call(self._descriptor, [view], offset)
            except OSError as error:
                raise _file_error(what, error) from error
            if not count:
                raise InternalError("the session's memory file ends too early", stage="device host")
            offset += count
            view = view[count:]


class MappedPart:
    """A part of a file that is mapped as long as this exists.

    All of it was written, so that no page has to be allocated, which could fail.

    Args:
        descriptor: of the file, which is sealed: it does not shrink.
        size: of the part, in bytes.

    Raises:
        InternalError: the system does not map it.
    """

    def __init__(self, descriptor: int, offset: int, size: int) -> None:
        try:
            self._bytes = np.frombuffer(mmap.mmap(descriptor, size, offset=offset), np.uint8)
        except (OSError, ValueError) as error:
            raise InternalError(
                f"a part of the session's memory file cannot be mapped: {error}",
                stage="device host",
            ) from error

    def read(self, at: int, target: npt.NDArray[np.uint8]) -> None:
        """Fill ``target`` from the byte ``at`` of the part on."""
        np.copyto(target, self._bytes[at : at + target.size])

    def write(self, at: int, source: npt.NDArray[np.uint8]) -> None:
        """Write ``source`` from the byte ``at`` of the part on."""
        np.copyto(self._bytes[at : at + source.size], source)


class Staging:
    """The page-locked buffer and its stream. For one thread at a time.

    Raises:
        OutOfMemory: the buffer cannot be page-locked.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        driver = context.enter()
        api = driver.api
        flags = int(api.CUevent_flags.CU_EVENT_DISABLE_TIMING) | int(
            api.CUevent_flags.CU_EVENT_BLOCKING_SYNC
        )
        with ExitStack() as undo:
            self._stream = driver.call(
                "cuStreamCreateWithPriority",
                int(api.CUstream_flags.CU_STREAM_NON_BLOCKING),
                context.least_priority,
            )
            undo.callback(driver.call, "cuStreamDestroy", self._stream)
            self._halves: list[tuple[MappedBlock, Any]] = []
            for _ in range(2):
                block = MappedBlock(context, _HALF_BYTES)
                undo.callback(block.free)
                event = driver.call("cuEventCreate", flags)
                undo.callback(driver.call, "cuEventDestroy", event)
                self._halves.append((block, event))
            self._close = undo.pop_all()

    def upload(self, part: Part, address: int, size: int) -> None:
        """Copy the first ``size`` bytes of a part of a file to the device."""
        driver = self._context.enter()
        try:
            for at, count, block, event in self._parts(size):
                driver.call("cuEventSynchronize", event)  # its last copy
                part.read(at, block.view[:count])
                driver.call("cuMemcpyHtoDAsync", address + at, block.address, count, self._stream)
                driver.call("cuEventRecord", event, self._stream)
        finally:
            self._wait()

    def download(self, address: int, part: Part, size: int) -> None:
        """Copy ``size`` bytes of the device from ``address`` on into a part of a file."""
        driver = self._context.enter()
        last: tuple[int, int, MappedBlock, Any] | None = None
        try:
            for piece in self._parts(size):
                at, count, block, event = piece
                driver.call("cuMemcpyDtoHAsync", block.address, address + at, count, self._stream)
                driver.call("cuEventRecord", event, self._stream)
                if last is not None:
                    self._flush(part, *last)
                last = piece
            if last is not None:
                self._flush(part, *last)
        finally:
            self._wait()

    def zero(self, address: int, size: int) -> None:
        """Set bytes of the device to 0.

        A memset would do less work but needs room on an SM, and a full device may have none for
        hours; copies use the copy engines.
        """
        driver = self._context.enter()
        for block, _ in self._halves:
            block.view[: min(size, _HALF_BYTES)] = 0
        try:
            for at, count, block, event in self._parts(size):
                driver.call("cuEventSynchronize", event)  # others' copies are not to wait for all
                driver.call("cuMemcpyHtoDAsync", address + at, block.address, count, self._stream)
                driver.call("cuEventRecord", event, self._stream)
        finally:
            self._wait()

    def close(self) -> None:
        """Free the buffer and the stream."""
        self._close.close()

    def _parts(self, size: int) -> Any:
        """Yield (offset, size, half, its event) of each part of a copy."""
        for index, at in enumerate(range(0, size, _HALF_BYTES)):
            yield at, min(size - at, _HALF_BYTES), *self._halves[index % 2]

    def _flush(self, part: Part, at: int, count: int, block: MappedBlock, event: Any) -> None:
        self._context.driver.call("cuEventSynchronize", event)
        part.write(at, block.view[:count])

    def _wait(self) -> None:
        try:
            self._context.driver.call("cuStreamSynchronize", self._stream)
        except DriverError as error:
            raise DeviceLost(f"a copy of an arena cannot be waited for: {error}") from error


def _file_error(what: str, error: OSError) -> InternalError:
    return InternalError(
        f"the session's memory file cannot be {what}: {error.strerror}; is the host's memory full?",
        stage="device host",
    )
