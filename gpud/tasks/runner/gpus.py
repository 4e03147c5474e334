"""The GPUs of this machine for tasks: devices of a gpud daemon, else those that NVML knows.

A device of the CPU kind counts as a GPU, so that a daemon with ``--device cpu:4`` given several
times makes a node of several GPUs anywhere. The runner uses the GPUs of one daemon at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from typing import Any

from gpud.errors import GpudError, InternalError, InvalidArgument
from gpud.tasks.store import TaskStore
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from gpud.wire.messages import CLIENT_PROTOCOL, VERSION, Hello, Welcome

__all__ = ["GPUs"]

_ANSWER_S = 5.0


class GPUs:
    """The GPUs that there are, and what is told to tasks about theirs.

    Attributes:
        names: of all that there ever were, so that their numbers stay: ``SOCKET#INDEX`` for a
            daemon's device.
        hint: what to do if there are too few.
    """

    def __init__(self, store: TaskStore) -> None:
        self._store = store
        self.names: tuple[str, ...] = tuple(store.gpus())
        self._socket = ""
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
        self._socket = socket
        try:
            rows = await asyncio.wait_for(_devices(socket), _ANSWER_S)
        except (OSError, GpudError, TimeoutError):
            self._there = {}
            self.hint = f"no daemon answers at {socket}: start one with `gpud serve`"
            return
        self.hint = f"the daemon at {socket} has {len(rows)}"
        self._there = {f"{socket}#{index}": row for index, row in enumerate(rows)}
        new = [name for name in self._there if name not in self.names]
        if new:
            with suppress(InternalError), self._store.transaction():
                for name in new:
                    self._store.keep_gpu(name)
            self.names = (*self.names, *new)

    def environment(
        self, gpus: tuple[int, ...], part: Fraction | None, *, reserved: bool
    ) -> dict[str, str]:
        """Return the variables that tell a task its GPUs."""
        if not gpus:
            return {"CUDA_VISIBLE_DEVICES": ""}
        names = [self.names[gpu] for gpu in gpus]
        indices = ",".join(name.rpartition("#")[2] for name in names)
        uuids = [str(self._there.get(name, {}).get("uuid") or "") for name in names]
        told = {
            "GPUD_SOCKET": names[0].rpartition("#")[0],
            "GPUD_DEVICE": indices,
            "CUDA_VISIBLE_DEVICES": ",".join(filter(None, uuids)),
        }
        if part is not None:
            told["GPUD_RESERVATION" if reserved else "GPUD_QUOTA"] = f"{float(part * 100):g}%"
        return told

    async def utilisation(self, task: int, window_ns: int) -> int | None:
        """Return the mean utilisation of a task's GPUs over a window from now on, in permille."""
        await asyncio.sleep(window_ns / 1e9)
        return None


async def _devices(socket: str) -> list[dict[str, Any]]:
    """Return the rows of a daemon's devices."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(CLIENT_PROTOCOL.encode(Hello(1, VERSION, "gpud runner")))
        await writer.drain()
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            decoder.feed(data)
            for body in decoder.frames():
                message = CLIENT_PROTOCOL.decode(body, Sender.DAEMON)
                if isinstance(message, Welcome):
                    return list(message.devices)
        raise ConnectionError("the daemon said nothing")
    finally:
        writer.close()
