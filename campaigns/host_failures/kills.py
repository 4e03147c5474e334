"""``kill -9`` of a device host, again and again at random moments, while clients work.

Counts what became of every job, measures how long the device is out of service, and compares what
the daemon's process has before and after: descriptors, memory, child processes.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.harness.memory import resident_bytes
from campaigns.host_failures.load import Load, Wrong
from tests.integration.daemon_world import Client
from tests.support.processes import children

MOST_PAUSE_S = 0.8
"""Between a host's start and its end: some are ended while they load, most while they work."""


class Holdings(NamedTuple):
    """What a process has."""

    descriptors: int
    children: int
    resident_bytes: int


class Report(NamedTuple):
    """What came of it.

    Attributes:
        outcomes: jobs by how they ended: ``done``, or the code of their error.
        refused: requests likewise.
        service_s: from each kill until a job that was submitted right then is done.
        wrong: broken promises.
        resident_bytes: of the daemon after each kill. What it remembers of jobs and events grows
            until its rings are full; what goes on growing then is lost.
    """

    kills: int
    outcomes: Counter[str]
    refused: Counter[str]
    service_s: list[float]
    wrong: list[str]
    before: Holdings
    after: Holdings
    resident_bytes: list[int]


class Kills:
    """Some clients of a daemon, and one that wants to be served at the worst moment.

    Args:
        path: of its socket.
        seed: of everything random.
        clients: how many.
    """

    def __init__(self, path: str, seed: int, clients: int = 4) -> None:
        self.draw = random.Random(seed)
        self.admin = Client(path)
        self.loads = [Load(path, seed * 1000 + number) for number in range(clients)]
        self.service_s: list[float] = []
        self.wrong: list[str] = []
        self._stop = False
        self.probe = Load(path, seed)

    async def run(self, kills: int) -> Report:
        """Let the clients work, and end so many hosts meanwhile."""
        await self.admin.hello("killer")
        status = await self.admin.query("status")
        front = int(status["pid"])
        await asyncio.gather(*(load.open() for load in (self.probe, *self.loads)))
        # Once before, so that what grows once has grown.
        await self._kill()
        self.service_s.clear()
        self._stop = True
        await asyncio.gather(*(self._work(load) for load in self.loads))
        self._stop = False
        await self._rest()
        before = holdings(front)
        resident: list[int] = []
        working = [asyncio.ensure_future(self._work(load)) for load in self.loads]
        try:
            for _ in range(kills):
                await self._kill()
                resident.append(holdings(front).resident_bytes)
        finally:
            self._stop = True
            await asyncio.gather(*working)
        await self._rest()
        return Report(
            kills,
            sum((load.outcomes for load in self.loads), Counter()),
            sum((load.refused for load in self.loads), Counter()),
            self.service_s,
            self.wrong,
            before,
            holdings(front),
            resident,
        )

    async def _work(self, load: Load) -> None:
        """Rounds of jobs until all kills are done; at least one."""
        while True:
            try:
                await load.round()
            except (Wrong, TimeoutError) as error:
                self.wrong.append(repr(error))
                return
            if self._stop:
                return

    async def _kill(self) -> None:
        await asyncio.sleep(self.draw.random() * MOST_PAUSE_S)
        device = (await self.admin.query("status"))["devices"][0]
        killed_s = time.monotonic()
        if device["pid"] is not None:
            with suppress(ProcessLookupError):
                os.kill(int(device["pid"]), signal.SIGKILL)
        try:
            # What the daemon had told the host before it knew is lost, and sent again.
            while (await self.probe.check(self.probe.submit(0), 0)).state != "done":
                pass
        except (Wrong, TimeoutError) as error:
            self.wrong.append(repr(error))
        self.service_s.append(time.monotonic() - killed_s)

    async def _rest(self) -> None:
        """Wait until no job is left and the device is up."""
        async with asyncio.timeout(60):
            while True:
                status = await self.admin.query("status")
                if status["devices"][0]["state"] == "ready" and not status["jobs"]:
                    return
                await asyncio.sleep(0.05)

    def close(self) -> None:
        """Leave."""
        self.admin.close()
        for load in (self.probe, *self.loads):
            load.close()


def holdings(pid: int) -> Holdings:
    """What a process has now."""
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return Holdings(descriptors, len(children(pid)), resident_bytes(pid))
