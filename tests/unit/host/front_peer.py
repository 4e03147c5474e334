"""The front's end of a real device host, for tests: blocking, with a limit on every wait."""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpud.device.host import messages as m
from gpud.errors import from_wire
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from tests.support.waiting import until
from tests.unit.cpu.device_helpers import OPEN, Array, rewritten

TIMEOUT_S = 30.0
Event = TypeVar("Event")

SOURCE = r"""
extern "C" __device__ int printf(const char*, ...);
extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
// A gate: with n in gate[0], the first n task blocks to start may end. gate[1] counts the starts.
extern "C" __global__ void gated(unsigned* runs, unsigned* gate) {
    if (threadIdx.x == 0) {
        unsigned ticket = atomicAdd(gate + 1, 1);
        while (*(volatile unsigned*)gate <= ticket) {}
        atomicAdd(&runs[blockIdx.x], 1);
    }
}
extern "C" __global__ void empty() {}
extern "C" __global__ void add(unsigned* word, unsigned n) { atomicAdd(word, n); }
extern "C" __global__ void twice(unsigned* words) {
    words[blockIdx.x * blockDim.x + threadIdx.x] *= 2;
}
extern "C" __global__ void says() { if (threadIdx.x == 0) printf("block %d\n", (int)blockIdx.x); }
extern "C" __global__ void traps(int at) { if (blockIdx.x == at) __trap(); }
__constant__ float coefficient[4];
__device__ unsigned counter = 7;
extern "C" __global__ void reads(float* out) {
    out[threadIdx.x] = coefficient[threadIdx.x];
    if (threadIdx.x == 0) atomicAdd(&counter, 1);
}
"""


class Arena(NamedTuple):
    """A session's memory: its device address, and its words in this process."""

    address: int
    words: Array
    memory: mmap.mmap


def row(
    module: int,
    entry: str,
    grid: int = 1,
    block: int = 32,
    parameters: bytes = b"",
    *,
    occupancy: int = 32,
    form: str = "persistent",
    shared: int = 0,
) -> m.HostLaunch:
    """A launch in the form that `StartRun` takes."""
    return m.HostLaunch(
        module, entry, form, (grid, 1, 1), (block, 1, 1), shared, occupancy, parameters
    )


class Peer:
    """A device host process and the link to it.

    Attributes:
        ready: its first event.
        events: events received and not taken yet.
        logs: the `Log` events so far.
    """

    def __init__(self, device: str = "cpu:2") -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "gpud.device.host", "--device", device]
            self.process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self.socket.settimeout(TIMEOUT_S)
        self.events: deque[Any] = deque()
        self.logs: list[m.Log] = []
        self._decoder = FrameDecoder(1 << 27)
        self._ticket = 0
        self._arenas: list[mmap.mmap] = []
        self.ready = self.take(m.HostReady)

    # -- sending and receiving

    def send(self, *commands: Any, descriptors: Iterable[int] = ()) -> None:
        """Send commands, all at once. Events are received meanwhile: the host never waits long."""
        data = memoryview(b"".join(m.HOST_PROTOCOL.encode(command) for command in commands))
        rights = array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
        while data:
            readable, writable, _ = select.select([self.socket], [self.socket], [], TIMEOUT_S)
            assert readable or writable, "the host neither reads nor writes"
            if readable:
                self.receive()
            if writable:
                data = data[self.socket.sendmsg([data[:4096]], ancillary) :]
                ancillary = []

    def receive(self) -> None:
        """Wait for data from the host and put the events in it into `events`."""
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError(f"the host has gone: {self.process.wait(TIMEOUT_S)}")
        self._decoder.feed(data)
        for body in self._decoder.frames():
            event = m.HOST_PROTOCOL.decode(body, Sender.DAEMON)
            if isinstance(event, m.Log):
                self.logs.append(event)
            self.events.append(event)

    def take(self, kind: type[Event], fits: Callable[[Event], bool] = lambda _: True) -> Event:
        """The first event of this kind that fits; waits for it, and takes it out of `events`."""
        seen = 0
        while True:
            while seen < len(self.events):
                event = self.events[seen]
                if isinstance(event, kind) and fits(event):
                    del self.events[seen]
                    return event
                seen += 1
            self.receive()

    def ask(self, make: Callable[[int], Any], descriptors: Iterable[int] = ()) -> Any:
        """Send ``make(ticket)``; its reply's value.

        Raises:
            GpudError: it was refused.
        """
        self._ticket += 1
        ticket = self._ticket
        self.send(make(ticket), descriptors=descriptors)
        while True:
            for event in self.events:
                if isinstance(event, m.Replied | m.Refused) and event.ticket == ticket:
                    self.events.remove(event)
                    if isinstance(event, m.Refused):
                        raise from_wire(event.error)
                    return event.value
            self.receive()

    def barrier(self) -> None:
        """Wait until the host has read everything that was sent before."""
        self.ask(lambda ticket: m.ReadProgress(ticket, ()))

    # -- what tests need

    def arena(self, session: int, size: int = 1 << 20, base: int = 0) -> Arena:
        """A new session's memory."""
        descriptor = os.memfd_create("arena")
        try:
            os.ftruncate(descriptor, size)
            address = self.ask(
                lambda ticket: m.OpenArena(ticket, session, base, size), [descriptor]
            )
            memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._arenas.append(memory)
        return Arena(address, np.frombuffer(memory, np.uint32), memory)

    def load(self, module: int, session: int, source: str = SOURCE, form: str | None = None) -> int:
        """Load a program; returns the module's number."""
        ptx = rewritten(source, form).ptx
        self.ask(lambda ticket: m.LoadModule(ticket, module, session, ptx))
        return module

    def measure(self, module: int, entry: str, block: int = 32, shared: int = 0) -> int:
        """M of a kernel."""
        value = self.ask(
            lambda ticket: m.MeasureKernel(ticket, module, entry, (block, 1, 1), shared)
        )
        assert isinstance(value, int)
        return value

    def start(
        self,
        job: int,
        session: int,
        rows: list[m.HostLaunch],
        *,
        slices: int = 1,
        online: bool = False,
    ) -> None:
        """Start a job whose occupancy is the least of its launches'."""
        occupancy = min(row.occupancy for row in rows)
        packed = m.HOST_PROTOCOL.encode_records(rows)
        self.send(m.StartRun(job, session, packed, occupancy, slices, 0, online))

    def ended(self, job: int) -> m.RunEnded:
        """Wait for the end of a job."""
        return self.take(m.RunEnded, lambda event: event.job == job)

    def left(self, job: int, epoch: int, held: int) -> m.SlicesHeld:
        """Wait until a job holds this much after this resize."""
        return self.take(
            m.SlicesHeld, lambda e: e.job == job and e.epoch == epoch and e.held == held
        )

    def close(self) -> int:
        """Close the link; returns the host's exit status."""
        self.socket.close()
        self.events.clear()
        return self.process.wait(TIMEOUT_S)


RUNS, GATE = 1024, 0
"""Words in a session's arena: how often each task block of `gated` ran, and its gate."""


class Session:
    """A session on a host: its memory and the test program, loaded and measured."""

    def __init__(self, peer: Peer, number: int) -> None:
        self.peer = peer
        self.number = number
        self.module = number * 10
        self.arena: Arena = peer.arena(number)
        peer.load(self.module, number)
        self.jobs = 0

    @property
    def words(self) -> Array:
        return self.arena.words

    def pointer(self, word: int) -> bytes:
        return struct.pack("<Q", self.arena.address + 4 * word)

    def gated(self, total: int = 12) -> m.HostLaunch:
        self.words[GATE : GATE + 2] = 0
        self.words[RUNS : RUNS + total] = 0
        parameters = self.pointer(RUNS) + self.pointer(GATE)
        return row(self.module, "gated", total, 32, parameters)

    def open(self, count: int = OPEN) -> None:
        self.words[GATE] = count

    def until_started(self, count: int) -> None:
        until(lambda: int(self.words[GATE + 1]) >= count)

    def new_job(self) -> int:
        self.jobs += 1
        return self.number << 32 | self.jobs
