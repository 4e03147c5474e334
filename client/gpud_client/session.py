"""The blocking session with the daemon, and `connect`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from gpud.units import Share
from gpud.wire.socket_path import socket_path
from gpud_client.arrays import Array, Shape
from gpud_client.connection.channel import Channel
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.launch.jobs import Job
from gpud_client.launch.kernels import Kernel
from gpud_client.launch.launches import Launch
from gpud_client.launch.modules import Module
from gpud_client.launch.streams import Stream
from gpud_client.launch.unretrieved import log_cancelled
from gpud_client.session_base import SessionBase

__all__ = ["Session", "connect"]


class Session(SessionBase):
    """A connection to the daemon; made by `connect` or `local`. Thread-safe.

    Use it in a ``with`` block, or close it. Its arrays, kernels and jobs cannot be used afterwards.
    Leaving the block does not wait: jobs that have not ended are cancelled, as their results could
    not be read any more, and the log names them. Wait for jobs with `Job.result`.

    A forked process must connect anew.
    """

    _channel: Channel
    _array_class = Array
    _module_class = Module

    def __init__(self, path: str, program: str | None = None) -> None:
        super().__init__(ProtocolState(), path)
        self._channel = Channel(connect_socket(path), self._core, path)
        self._finalizer = weakref.finalize(self, self._channel.abandon)
        try:
            self._channel.run(self._open(program))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            log_cancelled(self._core.jobs)
        self.close()

    def close(self) -> None:
        """End the session: jobs that have not ended are cancelled, arrays are freed.

        Does not wait for jobs. May be called twice.
        """
        self._channel.close()
        self._finalizer()

    # -- arrays

    def array(
        self,
        values: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        *,
        device: Device | int | None = None,
    ) -> Array:
        """A new array that holds a copy of ``values``.

        Args:
            values: Anything that NumPy can make an array of.
            dtype: Convert to this type; None: the type that NumPy infers.
            device: On which device; None: on the first one.

        Raises:
            OutOfMemory: There is not enough memory.
            TypeError: The values are Python objects.
        """
        found: Array = self._channel.run(self._array(values, dtype, device))
        return found

    def zeros(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> Array:
        """A new array of zeroes.

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
        found: Array = self._channel.run(self._new(shape, dtype, device))
        return found

    def empty(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> Array:
        """A new array with unspecified values; see `zeros`."""
        return self.zeros(shape, dtype, device=device)

    # -- kernels and jobs

    def kernel(
        self,
        source: str,
        name: str,
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        device: Device | int | None = None,
    ) -> Kernel:
        """Compile a source and return one of its kernels. Blocks until it is compiled.

        The daemon caches compiled programs, so the same request is quick the next time.

        Args:
            source: CUDA C++ or PTX.
            name: Of the kernel; ``"axpy<float>"`` for a template.
            options: For NVRTC, such as ``"-DN=4"``.
            form: Force a form: ``"persistent"``, ``"sliced"`` or ``"whole"``.
            device: For which device; None: for the first one, and for others when needed.

        Raises:
            CompileError: The source does not compile; ``error.log`` is the compiler's output.
            KernelNotFound: There is no such kernel.
            KernelRejected: gpud cannot run it; the message says why.
        """
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name is text, not {name!r}")
        return self.module(source, (name,), options, form, device=device).kernel(name)

    def module(
        self,
        source: str,
        names: Sequence[str] = (),
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        device: Device | int | None = None,
    ) -> Module:
        """Compile a source whose kernels share variables; see `kernel`.

        Args:
            source: CUDA C++ or PTX.
            names: Kernels that will be used; template instances must be named.
            options: For NVRTC.
            form: Force this form for every kernel.
            device: For which device.
        """
        found: Module = self._channel.run(self._compile(source, names, options, form, device))
        return found

    def sequence(
        self,
        launches: Iterable[Launch],
        *,
        reservation: Share | None = None,
        quota: Share | None = None,
        deadline: float | None = None,
        timeout: float | None = None,
        stream: Stream | None = None,
        after: Iterable[Job] = (),
        device: Device | int | None = None,
        weight: int = 1,
        exclusive: bool = False,
    ) -> Job:
        """Submit launches that run one after the other as one job, in one message.

        Args:
            launches: One or more, made by `Kernel.call`. Submitting the same again is quicker.
            reservation: As for `Kernel.submit`, like all that follow.
            quota: At most this share.
            deadline: Seconds from now.
            timeout: Seconds for the whole job.
            stream: Jobs of one stream run in order.
            after: Jobs that must have ended before.
            device: On which device.
            weight: An offline job's weight when capacity is shared.
            exclusive: Reserve whole SMs for this job alone.

        Raises:
            GpudError, TypeError, ValueError: As for `Kernel.submit`.
        """
        submission = self._submit(
            launches,
            reservation,
            quota,
            deadline,
            timeout,
            stream,
            after,
            device,
            weight,
            exclusive,
        )
        job: Job = self._channel.run(submission)
        return job

    def query(self, topic: str, limit: int = 0) -> dict[str, Any]:
        """Query the daemon's state, as ``gpuctl --json`` shows it.

        Args:
            topic: ``status``, ``jobs``, ``kernels``, ``memory``, ``history``, ``events``, ``trace``
                or ``doctor``.
            limit: How many rows, the latest ones; 0: all that are kept.

        Raises:
            ValueError: There is no such topic.
        """
        return self._channel.run(self._query(topic, limit))

    def _new_job(self, what: str, device: Device, stream: int, total: int) -> Job:
        return Job(self._channel, what, device, stream, total, self)


def connect(path: str | os.PathLike[str] | None = None, *, name: str | None = None) -> Session:
    """Connect to the daemon of this machine.

    Args:
        path: Of its socket; None: ``$GPUD_SOCKET``, else ``$XDG_RUNTIME_DIR/gpud/gpud.sock``.
        name: This client's name in ``gpuctl``; None: the program's name.

    Raises:
        ConnectionLost: No daemon listens there; the message says how to start one.
    """
    return Session(str(socket_path(path)), name)
