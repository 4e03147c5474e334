"""A node's heartbeats: what they say, when they are sent, and what their answers bring.

A heartbeat says that the agent lives, and brings the latest reading of the node's GPUs. It does not
wait for one: a gpud that is slow to answer, as under load, must not make its node lost. Items are
named as arrived only beside a reading that was begun after they came: until then the head counts
them itself.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayActorError, RayError

from gpud_ray.actors import find_head
from gpud_ray.errors import NoCluster
from gpud_ray.head import Answer
from gpud_ray.node.daemon import NodeDaemon
from gpud_ray.node.outcome import Outcome
from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.head_state import Beat
from gpud_ray.placement.settings import Settings

__all__ = ["Heartbeats", "HeldItem", "MakeHead"]

_LEAST_S = 0.02  # between two heartbeats

Readings = tuple[GPUReading, ...]
MakeHead = Callable[[Settings, str], Any]


@dataclass(slots=True)
class HeldItem:
    """An item that the node has.

    Attributes:
        memory_bytes: What its arrays take together.
        device: Which of the node's devices it goes to; None: there is none.
        run: Its run.
        unread: Whether the last reading of the GPUs knows nothing of it.
    """

    memory_bytes: int
    device: int | None
    run: asyncio.Task[Outcome]
    unread: bool = True


class Heartbeats:
    """The node as the head knows it.

    Attributes:
        items: Those that the node has.
        gpus: Its GPUs, as last read.
        settings: The cluster's, as the last answer brought them.
        soon: Set it to have the next heartbeat sent at once.
        latest_s: The longest time between two heartbeats, until now.
    """

    def __init__(
        self,
        node: str,
        life: int,
        daemon: NodeDaemon,
        settings: Settings,
        answered: Callable[[Answer], None],
        make_head: MakeHead,
        *,
        serves: bool,
    ) -> None:
        self._node, self._life, self._serves = node, life, serves
        self._daemon = daemon
        self._answered = answered
        self._make_head = make_head
        self.settings = settings
        self.items: dict[str, HeldItem] = {}
        self.gpus: Readings = ()
        self.soon = asyncio.Event()
        self.latest_s = 0.0
        self._came: list[str] = []  # since the last reading was begun
        self._arrived: list[str] = []  # that a reading knows, and no answered heartbeat
        self._ended: list[str] = []
        self._reading: asyncio.Task[tuple[Readings, list[str]]] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._head: Any = None

    def begin(self) -> None:
        """Send heartbeats from now on."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_on())

    def end(self) -> None:
        """Send no more."""
        for task in (self._beating, self._reading):
            if task is not None:
                task.cancel()

    def take(self, name: str, item: HeldItem) -> None:
        """Note an item that has arrived."""
        self.items[name] = item
        self._came.append(name)

    def give_up(self, name: str) -> None:
        """Note that an item has ended; if the head holds others back for this node, say it soon."""
        self.items.pop(name, None)
        self._ended.append(name)
        limit = self.settings.in_flight_per_gpu
        if limit and len(self._ended) * 2 >= limit * max(len(self.gpus), 1):
            self.soon.set()

    def head(self) -> Any:
        """Return the head.

        Raises:
            NoCluster: there is none.
        """
        if self._head is None:
            self._head = find_head()
        return self._head

    def forget_head(self) -> None:
        """Look for the head again: it did not answer."""
        self._head = None

    # -- steps

    async def _beat_on(self) -> None:
        number, wants_all, missed = 0, False, 0
        begin = time.monotonic()
        while True:
            number += 1
            last, begin = begin, time.monotonic()
            self.latest_s = max(self.latest_s, begin - last)
            await self._look()
            arrived, ended = self._arrived, self._ended
            self._arrived, self._ended = [], []
            holds = tuple((name, item.memory_bytes) for name, item in self.items.items())
            beat = Beat(
                self._node, self._life, number, self.gpus, tuple(arrived), tuple(ended),
                holds if wants_all else None, f"{socket.gethostname()} {self._daemon.address}",
                self._serves,
            )  # fmt: skip
            answer = await self._send(beat)
            if answer is None:
                self._arrived, self._ended = arrived + self._arrived, ended + self._ended
                missed += 1
                if missed > self.settings.missed_beats:
                    self._replace_head()
                    missed = 0
                wants_all = False
            else:
                missed = 0
                wants_all = answer.wants_all
                self.settings = answer.settings
                self._answered(answer)
            rest = _LEAST_S if wants_all else self.settings.period_s - (time.monotonic() - begin)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(rest, _LEAST_S)):
                    await self.soon.wait()
                    await asyncio.sleep(_LEAST_S)
            self.soon.clear()

    async def _look(self) -> None:
        """Take a reading if there is one within half a period; else the last one has to do."""
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        ended, _ = await asyncio.wait({self._reading}, timeout=self.settings.period_s / 2)
        if ended:
            self.gpus, known = self._reading.result()
            self._arrived += known
            self._reading = None

    async def _read(self) -> tuple[Readings, list[str]]:
        """Return a reading, and the items that had come before it was begun."""
        came, self._came = self._came, []
        unread = [item for item in self.items.values() if item.unread]
        reserved: Counter[int] = Counter()
        for item in unread:
            if item.device is not None:
                reserved[item.device] += item.memory_bytes
        try:
            gpus = await self._daemon.read(reserved)
        except Exception as error:  # noqa: BLE001  (without heartbeats the node would be lost)
            self._daemon.problem = f"{type(error).__name__}: {error}"
            return (), came
        for item in unread:
            item.unread = False
        return gpus, came

    async def _send(self, beat: Beat) -> Answer | None:
        """Send a heartbeat; None if there is no answer within the time that makes a node lost."""
        try:
            head = self.head()
            async with asyncio.timeout(self.settings.lost_s):
                answer: Answer = await head.beat.remote(beat)
            return answer
        except (NoCluster, RayActorError, TimeoutError):
            self.forget_head()
            return None

    def _replace_head(self) -> None:
        """Make a new head: the last one is gone for good, or Ray would have restarted it."""
        with suppress(NoCluster, RayError):
            self._head = self._make_head(self.settings, self._node)
