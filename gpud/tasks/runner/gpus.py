"""The GPUs of this machine for tasks: the devices of a gpud daemon.

A device of the CPU kind counts as a GPU, so that a daemon with ``--device cpu:4`` given several
times makes a node of several GPUs anywhere. The runner uses the GPUs of one daemon at a time.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

from gpud.errors import GpudError, InternalError, InvalidArgument, from_wire
from gpud.tasks.store import TaskStore
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import CLIENT_PROTOCOL, VERSION, Answer, Failed, Hello, Query, Welcome

__all__ = ["GPUs"]

_ANSWER_S = 5.0
_SAMPLE_S = 1.0
_EXEC = "import sys; from gpud_client.cli import main; sys.exit(main())"


class GPUs:
    """The GPUs that there are, and what is told to tasks about theirs.

    Attributes:
        names: of all that there ever were, so that their numbers stay: ``SOCKET#INDEX``.
        hint: what to do if there are too few.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.names: tuple[str, ...] = tuple(store.gpus())
        self._socket = ""
        self._link: _Link | None = None
        self._there: dict[str, dict[str, Any]] = {}
        self.hint = ""

    def marks(self) -> Iterator[tuple[int, str]]:
        """Yield each GPU's number, and why nothing can start on it (empty: something can)."""
        for number, name in enumerate(self.names):
            socket, _, index = name.rpartition("#")
            gone = f"device {index} of the daemon at {socket} is not there"
            yield number, "" if name in self._there else gone

    async def use(self, socket: str, *, busy: bool) -> None:
        """Look which devices the daemon at a socket has.

        Args:
            socket: of the daemon.
            busy: whether there are tasks with GPUs of the daemon that was used so far.

        Raises:
            InvalidArgument: another daemon's GPUs are in use.
        """
        if busy and self._socket and socket != self._socket:
            raise InvalidArgument(
                f"tasks use the GPUs of the daemon at {self._socket}; this one names {socket}: "
                "submit it when they have ended, or name the same daemon"
            )
        if socket != self._socket:
            self._drop()
        self._socket = socket
        await self.look()

    async def look(self) -> bool:
        """Look whether the daemon is there; returns whether anything has changed."""
        before = self._there
        try:
            if self._link is None and self._socket:
                self._link = await asyncio.wait_for(_Link.open(self._socket), _ANSWER_S)
            if self._link is not None:
                await self._link.status()
        except (OSError, GpudError, TimeoutError):
            self._drop()
        rows = [] if self._link is None else self._link.devices
        self._there = {f"{self._socket}#{index}": row for index, row in enumerate(rows)}
        self.hint = f"the daemon at {self._socket} has {len(rows)}"
        if self._link is None:
            self.hint = f"no daemon answers at {self._socket}: start one with `gpud serve`"
        new = [name for name in self._there if name not in self.names]
        if new:
            with suppress(InternalError), self._store.transaction():
                for name in new:
                    self._store.keep_gpu(name)
            self.names = (*self.names, *new)
        return self._there.keys() != before.keys()

    def close(self) -> None:
        """Leave the daemon."""
        self._drop()

    def _drop(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def environment(self, gpus: tuple[int, ...]) -> dict[str, str]:
        """Return the variables that tell a task its GPUs."""
        if not gpus:
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = [self.names[gpu] for gpu in gpus]
        uuids = [str(self._there.get(name, {}).get("uuid") or "") for name in names]
        return {
            "GPUD_SOCKET": names[0].rpartition("#")[0],
            "GPUD_DEVICE": ",".join(name.rpartition("#")[2] for name in names),
            "CUDA_VISIBLE_DEVICES": ",".join(filter(None, uuids)),
        }

    def command(
        self, command: list[str], gpus: tuple[int, ...], part: Fraction | None, *, reserved: bool
    ) -> list[str]:
        """Return how a program is started: with a part of a GPU under ``gpuctl exec``."""
        if part is None:
            return command
        socket, _, index = self.names[gpus[0]].rpartition("#")
        share = f"{float(part * 100):.6g}%"
        return [
            sys.executable, "-P", "-c", _EXEC, "exec", "--socket", socket, "--device", index,
            "--reservation" if reserved else "--quota", share, "--", *command,
        ]  # fmt: skip

    async def utilisation(self, gpus: tuple[int, ...], window_ns: int) -> int | None:
        """Return the mean utilisation of GPUs over a window from now on, in permille.

        It is what NVML says of a GPU, and on a CPU device the part of its SMs that jobs have.
        """
        indices = [int(self.names[gpu].rpartition("#")[2]) for gpu in gpus]
        count = max(1, round(window_ns / 1e9 / _SAMPLE_S))
        samples: list[float] = []
        for _ in range(count):
            await asyncio.sleep(window_ns / 1e9 / count)
            with suppress(OSError, GpudError, TimeoutError):
                if self._link is not None:
                    rows = await asyncio.wait_for(self._link.status(), _ANSWER_S)
                    samples += [_busy(rows[index]) for index in indices if index < len(rows)]
        return round(sum(samples) / len(samples) * 1000) if samples else None


def _busy(row: dict[str, Any]) -> float:
    percent = row.get("gpu_utilisation_percent")
    if percent is not None:
        return float(percent) / 100
    return float(row.get("allocated_sms") or 0) / max(1, int(row.get("sms") or 1))


class _Link:
    """A connection to a daemon, for questions one after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder()
        self._request = 0
        self._asking = asyncio.Lock()
        self.devices: list[dict[str, Any]] = []

    @classmethod
    async def open(cls, socket: str) -> _Link:
        link = cls(*await asyncio.open_unix_connection(socket))
        try:
            link.devices = list((await link._ask(Hello(1, VERSION, "gpud runner"))).devices)
        except BaseException:
            link.close()
            raise
        return link

    async def status(self) -> list[dict[str, Any]]:
        """Return the devices with their load."""
        async with self._asking:
            self._request += 1
            answer = await self._ask(Query(self._request + 1, "status"))
        rows: list[dict[str, Any]] = answer.value["devices"]
        return rows

    def close(self) -> None:
        self._writer.close()

    async def _ask(self, message: Any) -> Any:
        self._writer.write(CLIENT_PROTOCOL.encode(message))
        await self._writer.drain()
        while True:
            for body in self._decoder.frames():
                answer = CLIENT_PROTOCOL.decode(body, Sender.DAEMON)
                if isinstance(answer, Failed):
                    raise from_wire(answer.error)
                if isinstance(answer, Welcome | Answer) and answer.request == message.request:
                    return answer
            data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("the daemon has gone")
            self._decoder.feed(data)
