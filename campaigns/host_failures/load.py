"""Clients that give a daemon work of every kind and check what comes of it.

Each task block of each job adds a constant that the client wrote, 1, to a cell of its own. So a job
that is done has exactly as many in each of its cells as it has launches, one that failed no more:
nothing was lost, nothing doubled, and the constant was there on every host.
"""

from __future__ import annotations

import asyncio
import mmap
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from gpud.wire import messages as wm
from tests.integration.daemon_world import Client, launch

SOURCE = r"""
__constant__ unsigned step[2];
__device__ unsigned served;
extern "C" __global__ void count(unsigned* cells, unsigned spins, unsigned zero) {
    unsigned x = blockIdx.x;
    for (unsigned i = 0; i < spins; ++i) x = x * 1664525u + 1013904223u;
    if (threadIdx.x == 0) {
        atomicAdd(cells + blockIdx.x, step[1] + (x & zero));
        atomicAdd(&served, 1);
    }
}
"""
BLOCKS = 48
CELLS = 64
LIMIT_S = 60.0
STATES = ("done", "failed", "cancelled")


class Wrong(AssertionError):
    """A promise was broken."""


class Load:
    """One client: a session with a program, memory, and jobs one after the other or at once.

    Attributes:
        outcomes: how many jobs ended how: ``done``, or the code of their error.
        refused: errors of requests, by code.
    """

    def __init__(self, path: str, seed: int, *, tries: int = 20) -> None:
        self.client = Client(path)
        self.draw = random.Random(seed)
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._tries = tries
        self._number = 0
        self._module = 0
        self._base = 0
        self._cells: Any = None
        self._memory: mmap.mmap | None = None

    async def open(self, jobs: int = 16) -> Load:
        """Say hello, compile, allocate, measure, write the constant."""
        client = self.client
        await client.hello("load")
        client.send(wm.Allocate(client.next_request(), 0, 4 * CELLS * jobs))
        arena = await client.expect(wm.Arena)
        self._base = (await client.expect(wm.Allocated)).address
        size = -(-4 * CELLS * jobs // mmap.PAGESIZE) * mmap.PAGESIZE
        offset = self._base - arena.base
        self._memory = mmap.mmap(client.descriptors[0], size, offset=offset)
        self._cells = np.frombuffer(self._memory, np.uint32, CELLS * jobs).reshape(jobs, CELLS)
        self._module = (await self.insist(lambda r: wm.Compile(r, 0, SOURCE, ()))).module
        await self.insist(lambda r: wm.WriteSymbol(r, self._module, "step", 4, b"\1\0\0\0"))
        await self.insist(lambda r: wm.Measure(r, self._module, 0, (32, 1, 1), 0))
        return self

    async def insist(self, make: Any) -> Any:
        """Send a request until it is answered without an error, a stated number of times."""
        error: Any = None
        for _ in range(self._tries):
            self.client.send(make(request := self.client.next_request()))
            answer = await self._answer(request)
            if type(answer) is not wm.Failed:
                return answer
            error = answer.error
            self.refused[error["code"]] += 1
        raise Wrong(f"a request was refused {self._tries} times, the last time with {error}")

    async def _answer(self, request: int) -> Any:
        return await self._take(lambda message: getattr(message, "request", None) == request)

    async def _take(self, fits: Callable[[Any], bool]) -> Any:
        """Wait for the first message that fits."""
        client = self.client
        async with asyncio.timeout(LIMIT_S):
            while True:
                for index, message in enumerate(client.received):
                    if fits(message):
                        return client.received.pop(index)
                if client.closed:
                    raise Wrong("the connection was closed before an answer came")
                client._arrived.clear()
                await client._arrived.wait()

    def submit(self, slot: int, *, launches: int = 1, spins: int = 50, **more: Any) -> int:
        """Submit a job whose cells are those of ``slot``; its number."""
        self._cells[slot] = 0
        self._number += 1
        address = self._base + 4 * CELLS * slot
        parameters = struct.pack("<QII", address, spins, 0)
        one = launch(self._module, BLOCKS, 32, parameters)
        self.client.submit(self._number, self._module, launches=[one] * launches, **more)
        return self._number

    async def check(self, number: int, slot: int, launches: int = 1) -> Any:
        """Wait for the end of a job and look at its cells; its `Finished`."""
        finished = await self._finished(number)
        cells = self._cells[slot][:BLOCKS]
        if finished.state not in STATES or (finished.state == "done") is bool(finished.error):
            raise Wrong(f"job {number} ended as {finished}")
        if finished.state == "done":
            if not (cells == launches).all():
                raise Wrong(f"job {number} is done, its cells have {cells.tolist()}")
        elif cells.max() > launches:
            raise Wrong(f"job {number} is {finished.state}, and ran twice: {cells.tolist()}")
        code = finished.state if finished.error is None else finished.error["code"]
        self.outcomes[code] += 1
        return finished

    async def _finished(self, number: int) -> Any:
        return await self._take(lambda m: type(m) is wm.Finished and m.number == number)

    async def round(self) -> list[Any]:
        """Jobs of every kind, at once; returns how they ended."""
        client, draw = self.client, self.draw
        spins = draw.choice((20, 200, 2000))
        jobs = [  # (number, slot, launches)
            (self.submit(0, stream=1), 0, 1),
            (self.submit(1, stream=2, spins=spins, quota=(1, 1)), 1, 1),
            (self.submit(2, stream=3, reservation=(1, 1), launches=2), 2, 2),
            (self.submit(3, stream=1, launches=3), 3, 3),
            (self.submit(4, stream=4, spins=20_000, timeout_ns=60 * 10**9), 4, 1),
            (self.submit(5, stream=2), 5, 1),
        ]
        numbers = [number for number, _, _ in jobs]
        await self._try(lambda r: wm.Resize(r, (client.session, numbers[1]), None, (2, 1)))
        await self._try(lambda r: wm.Describe(r, ((client.session, numbers[0]),)))
        if draw.random() < 0.5:
            await self._try(lambda r: wm.Cancel(r, (client.session, numbers[4])))
        return [await self.check(*job) for job in jobs]

    async def _try(self, make: Any) -> Any:
        """A request that may be refused."""
        request = self.client.next_request()
        self.client.send(make(request))
        answer = await self._answer(request)
        if type(answer) is wm.Failed:
            self.refused[answer.error["code"]] += 1
        return answer

    async def read(self, name: str, offset: int = 0) -> int:
        """A word of a module variable."""
        answer = await self.insist(lambda r: wm.ReadSymbol(r, self._module, name, offset, 4))
        return int.from_bytes(answer.value, "little")

    def close(self) -> None:
        """Leave."""
        self.client.close()
        self._cells = None
        if self._memory is not None:
            self._memory.close()
