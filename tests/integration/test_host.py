"""The device host: a real process, commands over its socket, kernels on the CPU device."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest

from gpud.device.host import messages as m
from gpud.errors import (
    InvalidArgument,
    KernelNotFound,
    LaunchConfigError,
    ProtocolError,
    PTXSyntaxError,
    UnknownName,
    from_wire,
)
from gpud.units import JobId
from tests.unit.host.front_peer import RUNS, Peer, Session, row

TOTAL = 12  # task blocks of `Session.gated`


@pytest.fixture(scope="module")
def shared_peer() -> Iterator[Peer]:
    peer = Peer("cpu:2")
    yield peer
    assert peer.close() == 0


_numbers = iter(range(1, 1000))


@pytest.fixture
def session(shared_peer: Peer) -> Iterator[Session]:
    made = Session(shared_peer, next(_numbers))
    for entry in ("gated", "add", "empty", "saxpy", "twice", "says", "traps", "reads"):
        shared_peer.measure(made.module, entry)
    yield made
    shared_peer.send(m.CloseArena(made.number))
    shared_peer.barrier()
    shared_peer.events.clear()
    assert [log for log in shared_peer.logs if log.level >= 40] == []


# -- memory --------------------------------------------------------------------------------------


def test_it_says_what_device_it_is(shared_peer: Peer) -> None:
    ready = shared_peer.ready
    assert (ready.kind, ready.sms, ready.capability) == ("cpu", 2, 90)
    assert ready.memory_bytes > 1 << 28


def test_an_array_is_shared_with_kernels_both_ways(session: Session) -> None:
    n = 1000
    floats = session.words.view(np.float32)
    floats[:n] = np.arange(n)
    floats[n : 2 * n] = 1
    parameters = struct.pack("<f4xQQi", 2, session.arena.address, session.arena.address + 4 * n, n)
    job = session.new_job()
    launch = row(session.module, "saxpy", 32, 32, parameters)
    session.peer.start(job, session.number, [launch], slices=2)
    ended = session.peer.ended(job)
    assert (ended.error, ended.complete, ended.done, ended.total) == (None, True, 32, 32)
    assert np.array_equal(floats[n : 2 * n], 2 * np.arange(n, dtype=np.float32) + 1)


def test_arenas_lie_where_the_front_wants_them_and_do_not_overlap(shared_peer: Peer) -> None:
    size = 1 << 20
    bases = [0x1000_0000_0000 + index * size for index in range(3)]
    arenas = [shared_peer.arena(900 + index, size, base) for index, base in enumerate(bases)]
    assert [arena.address for arena in arenas] == bases
    for index, arena in enumerate(arenas):
        arena.words[:] = index
    assert [set(arena.words) for arena in arenas] == [{0}, {1}, {2}]
    with pytest.raises(InvalidArgument, match=r"mapped there: the memory of session 901$"):
        shared_peer.arena(903, size, bases[1])
    shared_peer.send(m.CloseArena(901))
    assert shared_peer.arena(904, size, bases[1]).address == bases[1]
    for number in (900, 902, 904):
        shared_peer.send(m.CloseArena(number))


def test_a_second_arena_of_a_session_is_refused(session: Session) -> None:
    with pytest.raises(InvalidArgument, match="has its arena already"):
        session.peer.arena(session.number)


def test_an_arena_without_its_file_is_refused(shared_peer: Peer) -> None:
    with pytest.raises(InvalidArgument, match="without a file descriptor"):
        shared_peer.ask(lambda ticket: m.OpenArena(ticket, 999, 0, 4096))


def test_a_file_smaller_than_its_arena_is_refused(shared_peer: Peer) -> None:
    descriptor = os.memfd_create("small")
    try:
        with pytest.raises(InvalidArgument, match="has 0 bytes, its mapping 4096"):
            shared_peer.ask(lambda ticket: m.OpenArena(ticket, 999, 0, 4096), [descriptor])
    finally:
        os.close(descriptor)


# -- resizing ------------------------------------------------------------------------------------


def test_shrinking_says_when_the_blocks_have_left(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=4)
    session.until_started(4)
    peer.send(m.ResizeJob(JobId(job), 0, 1, 1))
    # Nothing has left yet: the epoch is confirmed with what the job still holds.
    first = peer.take(m.SlicesHeld)
    assert first == m.SlicesHeld(job, 1, 4, exhausted=False)
    session.open(4)
    # The fourth to start is let go last; one block stays and is held up at the gate.
    assert peer.left(job, 1, 1).exhausted is False
    session.open()
    ended = peer.ended(job)
    assert (ended.error, ended.complete) == (None, True)
    assert ended.release_ns > 0
    assert ended.first_block_ns > 0
    assert np.array_equal(session.words[RUNS : RUNS + TOTAL], np.ones(TOTAL))


def test_stopping_and_going_on(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=2)
    session.until_started(2)
    peer.send(m.ResizeJob(JobId(job), 0, 0, 1))
    peer.barrier()
    session.open(2)
    assert peer.left(job, 1, 0).exhausted is False
    [[number, done, total, first_ns, release_ns]] = peer.ask(
        lambda t: m.ReadProgress(t, (job, 12345))
    )
    assert (number, done, total) == (job, 2, TOTAL)
    assert min(first_ns, release_ns) > 0
    peer.send(m.ResizeJob(JobId(job), 0, 3, 2))
    grown = peer.take(m.SlicesHeld, lambda event: event.epoch == 2)
    assert (grown.held, grown.exhausted) == (3, False)
    session.open()
    assert peer.ended(job).complete
    assert np.array_equal(session.words[RUNS : RUNS + TOTAL], np.ones(TOTAL))


def test_a_job_that_starts_with_nothing_waits(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=0)
    session.open()
    peer.send(m.ResizeJob(JobId(job), 0, 2, 1))
    assert peer.ended(job).complete


def test_epochs_of_quick_resizes_are_all_confirmed_in_order(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=4)
    for epoch in range(1, 20):
        peer.send(m.ResizeJob(JobId(job), 0, epoch % 5, epoch))
    peer.barrier()
    session.open()
    peer.ended(job)
    epochs = [e.epoch for e in peer.events if isinstance(e, m.SlicesHeld) and e.job == job]
    assert epochs == sorted(epochs)
    assert set(epochs) == set(range(1, 20))


def test_the_tail_frees_room_as_blocks_leave(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated(4)], slices=4)
    session.until_started(4)
    session.open(3)
    assert peer.left(job, 0, 1).exhausted is True
    session.open()
    assert peer.ended(job).complete


# -- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [0, 2], ids=["stopped", "running"])
def test_a_job_that_is_ended(session: Session, slices: int) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=slices)
    session.until_started(slices)
    peer.send(m.EndJob(JobId(job), 0))
    peer.send(m.EndJob(JobId(job), 0))
    peer.barrier()
    session.open()
    ended = peer.ended(job)
    assert (ended.error, ended.complete, ended.done) == (None, False, slices)


def test_a_job_that_is_ended_while_it_shrinks(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()], slices=3)
    session.until_started(3)
    peer.send(
        m.ResizeJob(JobId(job), 0, 1, 1), m.EndJob(JobId(job), 0), m.ResizeJob(JobId(job), 0, 2, 2)
    )
    peer.barrier()
    session.open()
    ended = peer.ended(job)
    assert (ended.error, ended.complete, ended.done) == (None, False, 3)


def test_commands_for_a_job_that_has_ended_are_ignored(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [row(session.module, "empty")])
    peer.ended(job)
    peer.send(m.ResizeJob(JobId(job), 0, 1, 1), m.EndJob(JobId(job), 0))
    assert peer.ask(lambda t: m.ReadProgress(t, (job,))) == []
    assert not [e for e in peer.events if not isinstance(e, m.Log)]


def test_the_memory_of_a_session_with_a_job_stays_mapped(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    peer.start(job, session.number, [session.gated()])
    session.until_started(1)
    peer.send(m.CloseArena(session.number))
    assert f"has jobs [{job}]: its arena stays mapped" in peer.take(m.Log).text
    peer.logs.clear()
    session.open()
    assert peer.ended(job).complete


# -- chains --------------------------------------------------------------------------------------


def test_launches_of_a_chain_run_one_after_the_other(session: Session) -> None:
    peer, job = session.peer, session.new_job()
    word = session.pointer(0)
    session.words[:64] = 1
    rows = []
    for _ in range(5):
        rows.append(row(session.module, "twice", 2, 32, word))
        rows.append(row(session.module, "add", 1, 64, word + struct.pack("<I", 1)))
    peer.measure(session.module, "add", 64)
    peer.start(job, session.number, rows, slices=2)
    ended = peer.ended(job)
    assert (ended.error, ended.complete, ended.total) == (None, True, 15)
    expected = 1
    for _ in range(5):
        expected = 2 * expected + 64
    assert session.words[0] == expected
    assert set(session.words[1:64]) == {32}


def test_a_chain_can_be_started_again_and_again(session: Session) -> None:
    peer = session.peer
    session.words[0] = 0
    rows = [row(session.module, "add", 2, 32, session.pointer(0) + struct.pack("<I", 1))] * 3
    jobs = [session.new_job() for _ in range(20)]
    for job in jobs:
        peer.start(job, session.number, rows, online=True)
    assert all(peer.ended(job).complete for job in jobs)
    assert session.words[0] == 20 * 3 * 2 * 32


# -- what cannot be done -------------------------------------------------------------------------


def test_a_shape_that_fits_no_sm(session: Session) -> None:
    with pytest.raises(LaunchConfigError) as caught:
        session.peer.measure(session.module, "empty", 32, shared=1 << 20)
    assert (caught.value.parameter, caught.value.limit) == ("shared", 227 * 1024)


def test_a_kernel_that_is_not_there(session: Session) -> None:
    with pytest.raises(KernelNotFound, match="nowhere"):
        session.peer.measure(session.module, "nowhere")


def test_ptx_that_is_none(shared_peer: Peer) -> None:
    with pytest.raises(PTXSyntaxError) as caught:
        shared_peer.ask(
            lambda ticket: m.LoadModule(ticket, 7000, 1, ".version 8.0\n.target sm_90\n?")
        )
    assert caught.value.line == 3


def test_modules_that_are_not_there(session: Session) -> None:
    peer = session.peer
    peer.load(7001, session.number)
    peer.send(m.UnloadModule(7001))
    with pytest.raises(UnknownName, match="no module 7001"):
        peer.measure(7001, "empty")
    job = session.new_job()
    peer.start(job, session.number, [row(7001, "empty")])
    error = peer.ended(job).error
    assert error is not None
    assert isinstance(from_wire(error), UnknownName)


@pytest.mark.parametrize("packed", [b"", b"\x90", b"\x91\x92\x01\x02", b"\xc1", b"\x05"])
def test_launches_that_are_none(session: Session, packed: bytes) -> None:
    job = session.new_job()
    session.peer.send(m.StartRun(job, session.number, packed, 32, 1, 0, online=False))
    error = session.peer.ended(job).error
    assert error is not None
    assert isinstance(from_wire(error), ProtocolError)


def test_symbols(session: Session) -> None:
    peer, module, job = session.peer, session.module, session.new_job()
    values = np.arange(4, dtype=np.float32)
    peer.ask(lambda t: m.WriteVariable(t, module, "coefficient", 0, values.tobytes()))
    peer.ask(lambda t: m.WriteVariable(t, module, "coefficient", 8, b"\0\0\0\0"))
    launch = row(module, "reads", 1, 4, session.pointer(0))
    peer.measure(module, "reads", 4)
    peer.start(job, session.number, [launch])
    peer.ended(job)
    assert list(session.words.view(np.float32)[:4]) == [0, 1, 0, 3]
    assert peer.ask(lambda t: m.ReadVariable(t, module, "counter", 0, 4)) == b"\x08\0\0\0"
    for offset, size in ((0, 5), (4, 1), (1 << 62, 4)):
        with pytest.raises(InvalidArgument, match="which has 4"):
            peer.ask(lambda t, o=offset, s=size: m.ReadVariable(t, module, "counter", o, s))  # type: ignore[misc]
    with pytest.raises(InvalidArgument, match="which has 16"):
        peer.ask(lambda t: m.WriteVariable(t, module, "coefficient", 13, b"1234"))
    with pytest.raises(UnknownName, match="no variable 'absent'"):
        peer.ask(lambda t: m.ReadVariable(t, module, "absent", 0, 1))
