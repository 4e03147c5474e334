"""The fake host: scripted behaviour in virtual time."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.device.host import messages as m
from gpud.errors import KernelTrap, LaunchConfigError, from_wire
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
    host.handle(m.Load(1, MODULE, 1, "ptx"))
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


def test_requests_are_answered_at_once() -> None:
    too_large = LaunchConfigError("shared", 10, "too much")
    host = made(Behaviour(occupancy=3), Behaviour(refusal=too_large))
    host.handle(m.Measure(2, MODULE, "k0", (32, 1, 1), 0))
    host.handle(m.Measure(3, MODULE, "k1", (32, 1, 1), 0))
    host.handle(m.WriteSymbol(4, MODULE, "c", 2, b"ab"))
    host.handle(m.ReadSymbol(5, MODULE, "c", 0, 5))
    host.handle(m.ReadProgress(6, (77,)))
    assert host.events == [
        m.Replied(2, 3),
        m.Refused(3, too_large.to_wire()),
        m.Replied(4),
        m.Replied(5, b"\0\0ab\0"),
        m.Replied(6, []),
    ]


def test_a_job_takes_its_task_blocks_time() -> None:
    host = made(Behaviour(occupancy=2, output=b"hello"))
    start(host, 1, ("k0", 6), slices=2)
    host.advance(2 * MS)
    assert host.events == []
    host.handle(m.ReadProgress(1, (1,)))
    host.advance(MS)
    assert host.events == [
        m.Replied(1, [[1, 4, 6, 0, 0]]),
        m.RunEnded(1, None, True, b"hello", 6, 6, 0, 0),
    ]
    assert host.now_ns == 3 * MS


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


def test_the_tail_leaves_block_by_block() -> None:
    host = made(Behaviour(occupancy=1))
    start(host, 1, ("k0", 5), slices=3)
    host.advance(MS)
    assert host.events == [m.SlicesHeld(1, 0, 2, exhausted=True)]


def test_online_blocks_start_first_and_in_order() -> None:
    host = made(Behaviour(occupancy=1), sms=2)
    start(host, 1, ("k0", 10), slices=2)
    start(host, 2, ("k0", 2), slices=2)
    start(host, 3, ("k0", 2), slices=2, online=True)
    host.handle(m.ResizeJob(JobId(1), 0, 0, 1))
    host.advance(MS)
    assert [(j.number, j.running, j.queued) for j in host.jobs.values()] == [
        (1, 0, 0),
        (2, 0, 2),
        (3, 2, 0),
    ]
    host.run()
    assert [e.job for e in host.events if isinstance(e, m.RunEnded)] == [3, 2]
    assert host.jobs[1].done == 2


def test_launches_of_a_sequence_follow_each_other() -> None:
    host = made(Behaviour(block_ns=MS, occupancy=2), Behaviour(block_ns=3 * MS, occupancy=4))
    start(host, 1, ("k0", 3), ("k1", 8), ("k0", 1), slices=2)
    host.advance(2 * MS)
    assert (host.jobs[1].launch, host.jobs[1].running, host.jobs[1].held) == (1, 4, 2)
    host.advance(6 * MS)
    assert host.jobs[1].launch == 2
    host.advance(MS)
    assert host.events[-1] == m.RunEnded(1, None, True, b"", 12, 12, 0, 0)


def test_a_trap_ends_the_job_once_its_blocks_have_left() -> None:
    host = made(Behaviour(trap_at=1))
    start(host, 1, ("k0", 9), slices=3)
    host.run()
    ended = host.events[-1]
    error = from_wire(ended.error)
    assert isinstance(error, KernelTrap)
    assert error.task_block == (1, 0, 0)
    assert (ended.complete, ended.done, host.jobs) == (False, 3, {})


def test_a_kernel_that_never_ends() -> None:
    host = made(Behaviour(block_ns=None))
    start(host, 1, ("k0", 9), slices=2)
    host.handle(m.EndJob(JobId(1), 0))
    host.run()
    assert host.events == []
    assert host.jobs[1].held == 2


@pytest.mark.parametrize("slices", [0, 2])
def test_ending_a_job(slices: int) -> None:
    host = made(Behaviour())
    start(host, 1, ("k0", 9), slices=slices)
    host.handle(m.EndJob(JobId(1), 0))
    host.run()
    assert host.events == [m.RunEnded(1, None, False, b"", slices, 9, 0, slices and MS)]


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


@pytest.mark.asyncio
async def test_it_speaks_on_a_socket() -> None:
    front = Front(FakeHost(sms=3))
    descriptor = os.memfd_create("arena")
    await front.send(m.OpenArena(1, 9, 4096, 8192), m.Load(2, 5, 9, "x"), descriptors=(descriptor,))
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


@pytest.mark.asyncio
async def test_it_dies_when_it_is_told_and_starts_again_empty() -> None:
    front = Front(FakeHost(dies_at=2))
    await front.send(m.Load(1, 5, 9, "x"))
    await front.send(m.Unload(5))
    assert not front.host.alive
    assert list(front.received())[1:] == [m.Replied(1)]
    front.socket.close()
    again = Front(front.host)
    assert again.host.alive
    assert again.host.modules == {}
    again.close()


@pytest.mark.asyncio
async def test_time_may_run_by_itself() -> None:
    front = Front(FakeHost(auto=True))
    packed = m.HOST_PROTOCOL.encode_records([row(5, "any", 4)])
    await front.send(m.Load(1, 5, 9, "x"), m.StartRun(1, 9, packed, 1, 4, 0, online=False))
    assert list(front.received())[-1] == m.RunEnded(1, None, True, b"", 4, 4, 0, 0)
    front.close()


@pytest.mark.asyncio
async def test_a_front_that_goes_ends_it() -> None:
    front = Front(FakeHost())
    front.socket.close()
    async with asyncio.timeout(10):
        while front.host.alive:  # noqa: ASYNC110
            await asyncio.sleep(0)
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


@pytest.mark.parametrize(
    ("entry", "behaviour"),
    [("k0", Behaviour(block_ns=None)), ("k0__gpud_killable", Behaviour(None, poll_ns=None))],
)
def test_a_kernel_that_does_not_poll_stays_when_it_is_killed(
    entry: str, behaviour: Behaviour
) -> None:
    host = made(behaviour)
    packed = m.HOST_PROTOCOL.encode_records([row(MODULE, entry, 8, occupancy=1)])
    host.handle(m.StartRun(1, 1, packed, 1, 2, 0, online=False))
    host.handle(m.EndJob(JobId(1), 0))
    host.handle(m.KillJob(JobId(1), 0))
    host.run()
    assert list(host.jobs) == [1]


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
