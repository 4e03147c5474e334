"""The fake host: scripted behaviour in virtual time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.device.host import messages as m
from gpud.units import JobId
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender
from tests.fake_host.host import Behaviour, FakeHost
from tests.unit.host.front_peer import row

MS = 1_000_000
MODULE = 5


def made(*behaviours: Behaviour, **options: Any) -> FakeHost:
    """A host with a module whose kernels are k0, k1 ..."""
    kernels = {f"k{index}": one for index, one in enumerate(behaviours)}
    host = FakeHost(kernels=kernels, **options)
    host.handle(m.LoadModule(1, MODULE, 1, "ptx"))
    host.events.clear()
    return host


def start(
    host: FakeHost, job: int, *launches: tuple[str, int], slices: int, online: bool = False
) -> None:
    rows = [row(MODULE, entry, grid, occupancy=host.kernels[entry].occupancy)
            for entry, grid in launches]  # fmt: skip
    occupancy = min(one.occupancy for one in rows)
    packed = m.HOST_PROTOCOL.encode_records(rows)
    host.handle(m.StartRun(job, 1, packed, occupancy, slices, 0, online))


def test_released_blocks_leave_after_their_task_block_or_later() -> None:
    host = made(Behaviour(occupancy=2, late_ns=MS // 2))
    start(host, 1, ("k0", 100), slices=4)
    host.advance(MS // 2)
    host.handle(m.ResizeJob(JobId(1), 0, 1, 1))
    host.advance(MS // 2)
    assert host.events == [m.SlicesHeld(1, 1, 4, exhausted=False)]
    host.advance(MS // 2)
    assert host.events[1:] == [m.SlicesHeld(1, 1, 1, exhausted=False)]
    host.run()
    assert host.events[-1].release_ns == MS


ops = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=40
)


@settings(deadline=None, derandomize=True)
@given(ops)
def test_every_task_block_runs_once_and_room_is_kept(steps: list[tuple[int, int, int]]) -> None:
    behaviours = [Behaviour(occupancy=2), Behaviour(block_ns=3 * MS, occupancy=3)]
    host = made(*behaviours, sms=3)
    epochs: dict[int, int] = {}
    for what, amount, which in steps:
        job = which + 1
        if job not in epochs:
            start(host, job, ("k0", 7), (f"k{which % 2}", 5), slices=amount, online=which == 3)
            epochs[job] = 0
        elif what <= 1:
            epochs[job] += 1
            host.handle(m.ResizeJob(JobId(job), 0, amount, epochs[job]))
        else:
            host.advance(amount * MS // 2)
        used = sum(
            (Fraction(j.running + j.idle, j.now.occupancy) for j in host.jobs.values()), Fraction(0)
        )
        assert used <= host.sms
    for job, epoch in epochs.items():
        host.handle(m.ResizeJob(JobId(job), 0, 1, epoch + 1))
    host.run()
    ended = [event for event in host.events if isinstance(event, m.RunEnded)]
    assert sorted(event.job for event in ended) == sorted(epochs)
    assert all((event.complete, event.done, event.total) == (True, 12, 12) for event in ended)


# -- the socket ----------------------------------------------------------------------------------


class Front:
    """The other end of a fake host's socket."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.socket = host.connect()
        self.decoder = FrameDecoder(1 << 20)

    async def send(self, *commands: Any, descriptors: tuple[int, ...] = ()) -> None:
        data = b"".join(map(m.HOST_PROTOCOL.encode, commands))
        socket.send_fds(self.socket, [data], descriptors)
        wanted = len(self.host.commands) + len(commands)
        async with asyncio.timeout(10):
            while len(self.host.commands) < wanted and self.host.alive:  # noqa: ASYNC110
                await asyncio.sleep(0)  # the host runs on this loop

    def received(self) -> Iterator[Any]:
        try:
            while data := self.socket.recv(1 << 16):
                self.decoder.feed(data)
        except BlockingIOError:
            pass
        return (m.HOST_PROTOCOL.decode(body, Sender.DAEMON) for body in self.decoder.frames())

    def close(self) -> None:
        self.socket.close()
        self.host.close()


async def test_it_speaks_on_a_socket() -> None:
    front = Front(FakeHost(sms=3))
    descriptor = os.memfd_create("arena")
    await front.send(
        m.OpenArena(1, 9, 4096, 8192), m.LoadModule(2, 5, 9, "x"), descriptors=(descriptor,)
    )
    os.close(descriptor)
    ready, *replies = front.received()
    assert isinstance(ready, m.HostReady)
    assert (ready.sms, replies) == (3, [m.Replied(1, 4096), m.Replied(2)])
    base, size, held = front.host.arenas[9]
    assert (base, size) == (4096, 8192)
    assert held is not None
    await front.send(m.CloseArena(9))
    assert front.host.arenas == {}
    front.close()


def test_a_killable_kernel_leaves_when_it_is_killed() -> None:
    host = made(Behaviour(block_ns=None), Behaviour(block_ns=None, poll_ns=3 * MS))
    rows = [row(MODULE, f"k{index}__gpud_killable", 8, occupancy=1) for index in range(2)]
    for job, one in enumerate(rows, 1):
        packed = m.HOST_PROTOCOL.encode_records([one])
        host.handle(m.StartRun(job, 1, packed, 1, 2, 0, online=False))
    host.advance(MS)
    host.handle(m.KillJob(JobId(1), 0))
    assert host.events == [m.RunEnded(1, None, False, b"", 0, 8, 0, 0)]
    host.handle(m.KillJob(JobId(2), 0))
    host.handle(m.KillJob(JobId(3), 0))  # it has ended, or never was
    assert list(host.jobs) == [2]
    host.advance(3 * MS)
    assert host.events[-1] == m.RunEnded(2, None, False, b"", 0, 8, 0, 3 * MS)
    assert host.jobs == {}


def test_blocks_that_end_when_they_are_killed_leave_once() -> None:
    host = made(Behaviour(block_ns=MS, poll_ns=MS))
    packed = m.HOST_PROTOCOL.encode_records([row(MODULE, "k0__gpud_killable", 8, occupancy=1)])
    host.handle(m.StartRun(1, 1, packed, 1, 3, 0, online=False))
    host.handle(m.KillJob(JobId(1), 0))
    host.run()
    assert [type(event) for event in host.events].count(m.RunEnded) == 1
    start(host, 2, ("k0", 4), slices=4)
    host.run()
    assert host.now_ns == 2 * MS  # all capacity is free again
