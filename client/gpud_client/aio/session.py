"""The asyncio client: `aconnect`, and sessions, arrays, modules and kernels with ``await``.

Every method that may wait is a coroutine here, and properties that query the daemon are awaited
too: ``await job.progress``. A session belongs to the event loop in which it was made.

    async with gc.aconnect() as gpu:
        kernel = await gpu.kernel(SOURCE, "saxpy")
        x = await gpu.array(values)
        job = await kernel.submit(grid=64, block=256, args=(2.0, x, len(values)))
        await job.result(timeout=30)
"""

from __future__ import annotations

import asyncio
import os
import socket
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import numpy.typing as npt

from gpud.units import Share
from gpud.wire.socket_path import socket_path
from gpud_client.aio.channel import AsyncChannel
from gpud_client.aio.jobs import AsyncJob
from gpud_client.arrays import ArrayBase, Shape, Values
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.launch.kernels import KernelBase
from gpud_client.launch.launches import Dim, Launch
from gpud_client.launch.modules import ModuleBase, SymbolBase
from gpud_client.launch.streams import Stream
from gpud_client.launch.unretrieved import log_cancelled
from gpud_client.session_base import SessionBase

__all__ = [
    "AsyncArray",
    "AsyncJob",
    "AsyncKernel",
    "AsyncModule",
    "AsyncSession",
    "AsyncSymbol",
    "Connecting",
    "aconnect",
    "open_session",
]


class AsyncArray(ArrayBase):
    """An array in a device's memory; see `Array`."""

    _session: AsyncSession

    async def get(self, out: Values | None = None, stream: Stream | None = None) -> Values:
        """Copy the values out; see `Array.get`."""
        return await self._session._channel.run(self._get(out, stream))

    async def set(self, values: npt.ArrayLike, stream: Stream | None = None) -> None:
        """Copy values in; see `Array.set`."""
        await self._session._channel.run(self._set(values, stream))

    async def numpy(self) -> Values:
        """A NumPy view of the array's memory; see `Array.numpy`."""
        return await self._session._channel.run(self._numpy())


class AsyncSymbol(SymbolBase):
    """A variable of a module; see `Symbol`."""

    _module: AsyncModule

    async def get(self) -> Any:
        """The variable's value; see `Symbol.get`."""
        return await self._module._session._channel.run(self._get())

    async def set(self, values: npt.ArrayLike | bytes) -> None:
        """Write the whole variable; see `Symbol.set`."""
        await self._module._session._channel.run(self._set(values))


class AsyncModule(ModuleBase):
    """A compiled source; see `Module`."""

    _session: AsyncSession

    def kernel(self, name: str) -> AsyncKernel:
        """A kernel of this module; not awaited. See `Module.kernel`."""
        return AsyncKernel(self, name)

    def symbol(
        self,
        name: str,
        dtype: npt.DTypeLike | None = None,
        shape: Shape | None = None,
        *,
        device: Device | int | None = None,
    ) -> AsyncSymbol:
        """A variable of this module; not awaited. See `Module.symbol`."""
        return AsyncSymbol(self, name, dtype, shape, self._session._on(device, self._device))


class AsyncKernel(KernelBase):
    """A kernel, compiled and rewritten; see `Kernel`."""

    _session: AsyncSession

    @property
    def module(self) -> AsyncModule:
        """The module of the kernel."""
        found: AsyncModule = self._module
        return found

    async def occupancy(
        self, block: Dim, shared: int = 0, *, device: Device | int | None = None
    ) -> int:
        """M for blocks of this shape; see `Kernel.occupancy`."""
        on = self._session._on(device, self._module._device)
        return await self._session._channel.run(self._occupancy(block, shared, on))

    async def submit(
        self,
        grid: Dim,
        block: Dim,
        args: Sequence[Any] = (),
        *,
        shared: int = 0,
        reservation: Share | None = None,
        quota: Share | None = None,
        deadline: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (of the job, not of this call)
        stream: Stream | None = None,
        after: Iterable[AsyncJob] = (),
        device: Device | int | None = None,
        weight: int = 1,
        exclusive: bool = False,
    ) -> AsyncJob:
        """Submit a launch as a job; see `Kernel.submit`."""
        session = self._session
        launch = Launch(self, grid, block, args, shared)
        submission = session._submit(
            (launch,),
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
        job: AsyncJob = await session._channel.run(submission)
        return job


class AsyncSession(SessionBase):
    """A connection to the daemon for asyncio; see `Session`. Made by `aconnect` or `alocal`."""

    _channel: AsyncChannel
    _array_class = AsyncArray
    _module_class = AsyncModule

    def __init__(self, sock: socket.socket, path: str) -> None:
        super().__init__(ProtocolState(), path)
        self._channel = AsyncChannel(sock, self._core, path)
        self._finalizer = weakref.finalize(self, self._channel.abandon)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            log_cancelled(self._core.jobs)
        await self.close()

    async def close(self) -> None:
        """End the session; see `Session.close`."""
        self._channel.close()
        if self._finalizer.alive:
            await asyncio.to_thread(self._finalizer)  # may wait for a private daemon to end

    async def array(
        self,
        values: npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
        *,
        device: Device | int | None = None,
    ) -> AsyncArray:
        """A new array that holds a copy of ``values``; see `Session.array`."""
        found: AsyncArray = await self._channel.run(self._array(values, dtype, device))
        return found

    async def zeros(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> AsyncArray:
        """A new array of zeroes; see `Session.zeros`."""
        found: AsyncArray = await self._channel.run(self._new(shape, dtype, device))
        return found

    async def empty(
        self,
        shape: Shape,
        dtype: npt.DTypeLike = "float64",
        *,
        device: Device | int | None = None,
    ) -> AsyncArray:
        """A new array with unspecified values; see `Session.empty`."""
        return await self.zeros(shape, dtype, device=device)

    async def kernel(
        self,
        source: str,
        name: str,
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        device: Device | int | None = None,
    ) -> AsyncKernel:
        """Compile a source and return one of its kernels; see `Session.kernel`."""
        if not isinstance(name, str):
            raise TypeError(f"a kernel's name is text, not {name!r}")
        return (await self.module(source, (name,), options, form, device=device)).kernel(name)

    async def module(
        self,
        source: str,
        names: Sequence[str] = (),
        options: Sequence[str] = (),
        form: str | None = None,
        *,
        device: Device | int | None = None,
    ) -> AsyncModule:
        """Compile a source whose kernels share variables; see `Session.module`."""
        found: AsyncModule = await self._channel.run(
            self._compile(source, names, options, form, device)
        )
        return found

    async def sequence(
        self,
        launches: Iterable[Launch],
        *,
        reservation: Share | None = None,
        quota: Share | None = None,
        deadline: float | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  (of the job, not of this call)
        stream: Stream | None = None,
        after: Iterable[AsyncJob] = (),
        device: Device | int | None = None,
        weight: int = 1,
        exclusive: bool = False,
    ) -> AsyncJob:
        """Submit launches that run one after the other as one job; see `Session.sequence`."""
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
        found: AsyncJob = await self._channel.run(submission)
        return found

    async def query(self, topic: str, limit: int = 0) -> dict[str, Any]:
        """Query the daemon's state; see `Session.query`."""
        return await self._channel.run(self._query(topic, limit))

    def _new_job(self, what: str, device: Device, stream: int, total: int) -> AsyncJob:
        return AsyncJob(self._channel, what, device, stream, total, self)


class Connecting:
    """A pending connection: ``await`` it, or enter it with ``async with``."""

    def __init__(self, make: Callable[[], Awaitable[AsyncSession]]) -> None:
        self._make = make
        self._session: AsyncSession | None = None

    def __await__(self) -> Generator[Any, Any, AsyncSession]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSession:
        self._session = await self._make()
        return self._session

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.__aexit__(kind, error, trace)


async def open_session(path: str, program: str | None) -> AsyncSession:
    """Connect and open a session."""
    session = AsyncSession(await asyncio.to_thread(connect_socket, path), path)
    try:
        await session._channel.run(session._open(program))
    except BaseException:
        await session.close()
        raise
    return session


def aconnect(path: str | os.PathLike[str] | None = None, *, name: str | None = None) -> Connecting:
    """Connect to the daemon of this machine, for asyncio; see `connect`.

    ``async with aconnect() as gpu:`` or ``gpu = await aconnect()``.
    """
    return Connecting(lambda: open_session(str(socket_path(path)), name))
