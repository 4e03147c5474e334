"""The runner's socket: clients of the same user, one request at a time each or many at once."""

from __future__ import annotations

import asyncio
import logging
import os
import pwd
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from gpud import __version__
from gpud.errors import GpudError, InternalError, ProtocolError
from gpud.server.ipc.listener import Listener, adopt, listen
from gpud.server.ipc.systemd import activated, notify
from gpud.tasks.runner.runner import Runner
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.task_messages import (
    TASK_PROTOCOL,
    AskQueues,
    AwaitTask,
    ChangeTask,
    Greet,
    ListTasks,
    ReportTasks,
    ShowTask,
    SubmitTask,
    TaskAnswer,
    TaskRefused,
)
from gpud.wire.task_paths import runner_socket, task_folder

__all__ = ["RunnerServer", "serve"]

_READ_BYTES = 1 << 16
_LOOK_S = 5.0

log = logging.getLogger(__name__)


class RunnerServer:
    """A runner with its clients.

    Args:
        runner: started.
        idle_s: after so long without tasks and clients `idle` returns; None: never.
    """

    def __init__(self, runner: Runner, idle_s: float | None) -> None:
        self._runner = runner
        self._idle_s = idle_s
        self._clients = 0
        self._busy_until_s = asyncio.get_running_loop().time()

    async def idle(self) -> None:
        """Return when there have been neither tasks nor clients for long enough."""
        loop = asyncio.get_running_loop()
        while self._idle_s is None or loop.time() - self._busy_until_s < self._idle_s:
            if self._clients or not self._runner.idle:
                self._busy_until_s = loop.time()
            await asyncio.sleep(_LOOK_S if self._idle_s is None else min(_LOOK_S, self._idle_s))

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a client until it leaves."""
        self._clients += 1
        decoder = FrameDecoder()
        answers: dict[asyncio.Task[None], None] = {}
        uid = _peer_uid(writer)
        try:
            while data := await reader.read(_READ_BYTES):
                decoder.feed(data)
                for body in decoder.frames():
                    answer = asyncio.create_task(self._serve(body, writer, uid))
                    answers[answer] = None
                    answer.add_done_callback(lambda done: answers.pop(done, None))
        except (ConnectionError, ProtocolError) as error:
            log.info("a client was sent away: %s", error)
        finally:
            self._clients -= 1
            for answer in answers:
                answer.cancel()
            writer.close()

    async def _serve(self, body: bytes, writer: asyncio.StreamWriter, uid: int) -> None:
        request = 0
        try:
            message = TASK_PROTOCOL.decode(body, Sender.CLIENT)
            request = message.request
            reply: Any = TaskAnswer(request, await self._answer(message, uid))
        except GpudError as error:
            request = request or getattr(error, "request", None) or 0
            reply = TaskRefused(request, error.to_wire())
        except Exception as error:
            log.exception("a request failed")
            told = InternalError(f"{type(error).__name__}: {error}", stage="tasks")
            reply = TaskRefused(request, told.to_wire())
        with suppress(ConnectionError):
            writer.write(TASK_PROTOCOL.encode(reply))
            await writer.drain()

    async def _answer(self, message: Any, uid: int) -> Any:
        runner = self._runner
        match message:
            case Greet():
                return {
                    "version": __version__, "pid": os.getpid(), "protocol": TASK_PROTOCOL.version,
                }  # fmt: skip
            case SubmitTask():
                return await runner.submit(message, uid, _user(uid))
            case ListTasks():
                return {"tasks": runner.rows(ended=message.all, limit=message.limit)}
            case ShowTask():
                return runner.row(message.task, details=True)
            case ChangeTask():
                return await runner.change(message.task, message.action, message.by)
            case AwaitTask():
                return await runner.ended(message.task)
            case ReportTasks():
                since_ns = message.since_s * 1_000_000_000
                return {"rows": runner.store.report(message.by, since_ns)}
            case AskQueues():
                return runner.queues()
        raise ProtocolError(f"{type(message).__name__} is no request")


def _peer_uid(writer: asyncio.StreamWriter) -> int:
    sock = writer.get_extra_info("socket")
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    uid: int = struct.unpack("3i", packed)[1]
    return uid


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


async def serve(idle_s: float | None, ready: Callable[[], None] = lambda: None) -> None:
    """Run this user's tasks until SIGTERM, or until there is nothing to do for ``idle_s``.

    Tasks that run then go on; the next runner adopts them.

    Raises:
        InvalidArgument: another runner serves the socket, or the database cannot be used.
    """
    descriptors = activated()
    listener: Listener = adopt(descriptors[0]) if descriptors else listen(
        runner_socket(), flag="GPUD_RUNNER"
    )  # fmt: skip
    try:
        runner = Runner(task_folder())
        try:
            await runner.start()
            server = RunnerServer(runner, idle_s)
            stop = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, stop.set)
            accepting = await asyncio.start_unix_server(server.client, sock=listener.socket)
            log.info("the runner listens at %s; tasks are controlled by %s", listener.address,
                     runner.control.describe)  # fmt: skip
            notify("READY=1")
            ready()
            waits = [asyncio.create_task(stop.wait()), asyncio.create_task(server.idle())]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            accepting.close()
        finally:
            runner.close()
    finally:
        listener.close()
