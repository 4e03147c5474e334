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
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Self

from gpud.wire.socket_path import socket_path
from gpud_client.aio.channel import AsyncChannel
from gpud_client.aio.jobs import AsyncJob
from gpud_client.aio.lanes import AsyncLane
from gpud_client.arrays import ArrayBase
from gpud_client.connection.daemon_socket import connect_socket
from gpud_client.connection.faces import Awaited
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.launch.kernels import KernelBase
from gpud_client.launch.modules import ModuleBase, SymbolBase
from gpud_client.launch.streams import StreamBase
from gpud_client.launch.unretrieved import log_cancelled
from gpud_client.session_base import SessionBase
from gpud_client.workloads.faces import AwaitedTurn, AwaitedWorkload

__all__ = [
    "AsyncArray",
    "AsyncJob",
    "AsyncKernel",
    "AsyncModule",
    "AsyncSession",
    "AsyncStream",
    "AsyncSymbol",
    "AsyncTurn",
    "AsyncWorkload",
    "Connecting",
    "aconnect",
    "open_session",
]


class AsyncArray(ArrayBase, Awaited):
    """An array in a device's memory; see `Array`."""


class AsyncStream(StreamBase, Awaited):
    """A queue of jobs that run one after the other; see `Stream`."""


class AsyncSymbol(SymbolBase, Awaited):
    """A variable of a module; see `Symbol`."""


class AsyncKernel(KernelBase["AsyncModule", AsyncJob], Awaited):
    """A kernel, compiled and rewritten; see `Kernel`."""


class AsyncModule(ModuleBase[AsyncKernel, AsyncSymbol], Awaited):
    """A compiled source; see `Module`."""

    _kernel_class = AsyncKernel
    _symbol_class = AsyncSymbol


class AsyncTurn(AwaitedTurn[AsyncArray]):
    """An iteration of a workload; see `Turn`."""


class AsyncWorkload(AwaitedWorkload[AsyncArray, AsyncTurn]):
    """A loop whose iterations take turns with a device's memory; see `Workload`."""

    _turn_class = AsyncTurn


class AsyncSession(
    SessionBase[
        AsyncArray, AsyncKernel, AsyncModule, AsyncJob, AsyncWorkload, AsyncLane, AsyncStream
    ],
    Awaited,
):
    """A connection to the daemon for asyncio; see `Session`. Made by `aconnect` or `alocal`."""

    _channel: AsyncChannel
    _array_class = AsyncArray
    _module_class = AsyncModule
    _job_class = AsyncJob
    _workload_class = AsyncWorkload
    _lane_class = AsyncLane
    _stream_class = AsyncStream

    def __init__(self, sock: socket.socket, path: str, program: str | None = None) -> None:
        super().__init__(ProtocolState(), path, program)
        self._channel = AsyncChannel(sock, self._core, path)
        self._finalizer: weakref.finalize[..., Any] = weakref.finalize(self, self._channel.abandon)

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


async def open_session(
    path: str, program: str | None, reconnect: bool | float = False, check: bool = False
) -> AsyncSession:
    """Connect and open a session."""
    session = AsyncSession(await asyncio.to_thread(connect_socket, path), path, program)
    try:
        session._make_checking(check, reconnect)
        session._make_resumable(reconnect)
        await session._channel.run(session._open())
    except BaseException:
        await session.close()
        raise
    return session


def aconnect(
    path: str | os.PathLike[str] | None = None,
    *,
    name: str | None = None,
    reconnect: bool | float = False,
    check: bool = False,
) -> Connecting:
    """Connect to the daemon of this machine, for asyncio; see `connect`.

    ``async with aconnect() as gpu:`` or ``gpu = await aconnect()``.
    """
    return Connecting(lambda: open_session(str(socket_path(path)), name, reconnect, check))
