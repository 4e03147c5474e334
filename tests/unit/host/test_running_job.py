"""The events that the front receives about a job, whatever happens at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gpud.device.host import messages as m
from gpud.device.host.running_job import RunningJob
from gpud.errors import GpudError, InternalError, KernelTrap, from_wire

TIMEOUT_S = 10.0


class FakeRun:
    """A run whose state the test sets."""

    def __init__(self) -> None:
        self.held = 0
        self.exhausted = False
        self.error: GpudError | None = None
        self.output = b"out"
        self.progress = (3, 2, 9)
        self.first_block_ns = 4
        self.release_ns = 5
        self.ways = {"graph": 2}
        self.ended = self.killed = 0
        self.sizes: list[int] = []
        self.forgotten: list[int] = []
        self.during_resize: Callable[[], None] = lambda: None

    def resize(self, slices: int) -> None:
        self.sizes.append(slices)
        self.held = slices
        self.during_resize()

    def forget_taken(self, slices: int) -> None:
        self.forgotten.append(slices)

    def end(self) -> None:
        self.ended += 1

    def kill(self) -> None:
        self.killed += 1


class Case:
    """A running job with a fake run, and what it sent."""

    def __init__(self, slices: int = 3) -> None:
        self.sent: list[Any] = []
        self.forgotten: list[RunningJob] = []
        self.run = FakeRun()
        command = m.StartRun(7, 1, b"", 1, slices, 0, online=False)
        self.running = RunningJob(command, self.send, self.forgotten.append)

    def send(self, event: Any) -> None:
        self.sent.append(event)

    def start(self) -> None:
        self.running.start(self.run)

    def leave(self, held: int) -> None:
        self.run.held = held
        self.running.on_left()

    def finish(self) -> None:
        self.run.held, self.run.progress = 0, (9, 9, 9)
        self.running.on_over()


ENDED = m.RunEnded(7, None, True, b"out", 9, 9, 4, 5, {"graph": 2})


def test_each_block_that_leaves_is_reported() -> None:
    case = Case()
    case.start()
    case.run.exhausted = True
    case.leave(2)
    case.leave(1)
    assert case.sent == [m.SlicesHeld(7, 0, held, exhausted=True) for held in (2, 1)]


def test_the_last_blocks_are_reported_by_the_end_alone() -> None:
    case = Case()
    case.start()
    case.run.exhausted = True
    case.leave(0)
    case.finish()
    assert case.sent == [ENDED]
    assert case.forgotten == [case.running]


def test_nothing_follows_the_end() -> None:
    case = Case()
    case.start()
    case.finish()
    case.leave(0)
    case.running.resize(2, 1)
    case.finish()
    assert case.sent == [ENDED]


def test_blocks_that_leave_during_a_resize_are_reported_once_with_its_epoch() -> None:
    case = Case()
    case.start()
    case.run.during_resize = lambda: case.leave(1)
    case.running.resize(1, 1)
    assert case.sent == [m.SlicesHeld(7, 1, 1, exhausted=False)]


@pytest.mark.parametrize("during", ["start", "resize"])
def test_a_job_that_ends_during_a_command(during: str) -> None:
    case = Case()
    if during == "start":
        case.run.during_resize = case.finish
        case.start()
    else:
        case.start()
        case.run.during_resize = case.finish
        case.running.resize(1, 1)
    assert case.sent == [ENDED]


def test_a_job_that_cannot_start_sends_nothing() -> None:
    case = Case()

    def fails() -> None:
        raise MemoryError

    case.run.during_resize = fails
    with pytest.raises(MemoryError):
        case.start()
    case.finish()
    assert case.sent == []


def test_a_resize_that_fails_is_still_confirmed() -> None:
    case = Case()
    case.start()

    def fails() -> None:
        raise MemoryError

    case.run.during_resize = fails
    with pytest.raises(MemoryError):
        case.running.resize(1, 1)
    assert [event.epoch for event in case.sent] == [1]


def test_an_ending_job_is_not_resized() -> None:
    case = Case()
    case.start()
    case.running.end()
    case.running.resize(2, 1)
    assert (case.run.sizes, case.run.ended) == ([3], 1)
    assert case.sent[-1].epoch == 1


def test_the_reason_for_an_end_is_reported() -> None:
    case = Case()
    case.start()
    case.running.end(InternalError("it broke", stage="here", reproducer=None))
    case.finish()
    error = from_wire(case.sent[-1].error)
    assert isinstance(error, InternalError)
    case = Case()
    case.start()
    case.running.end(InternalError("later", stage="here", reproducer=None))
    case.run.error = KernelTrap("trap")
    case.finish()
    assert isinstance(from_wire(case.sent[-1].error), KernelTrap)


def test_an_end_that_cannot_be_sent_is_reported_as_such() -> None:
    case = Case()
    case.start()
    del case.run.output
    case.finish()
    (ended,) = case.sent
    assert isinstance(from_wire(ended.error), InternalError)


class Sending:
    """A case whose first report is being sent until `go_on`."""

    def __init__(self) -> None:
        self.case = Case(9)
        self.case.start()
        self.entered, self.opened = threading.Event(), threading.Event()
        self.case.running._send = self
        self.sender = threading.Thread(target=self.case.leave, args=(8,))
        self.sender.start()
        assert self.entered.wait(TIMEOUT_S)

    def __call__(self, event: Any) -> None:
        self.case.sent.append(event)
        self.entered.set()
        assert self.opened.wait(TIMEOUT_S)

    def go_on(self) -> list[Any]:
        """What was sent in the end."""
        self.opened.set()
        self.sender.join(TIMEOUT_S)
        return self.case.sent


def test_reports_that_come_while_one_is_sent_become_one() -> None:
    sending = Sending()
    for held in (7, 6, 5, 4):
        sending.case.leave(held)
    assert [event.held for event in sending.go_on()] == [8, 4]


def test_an_end_that_comes_while_a_report_is_sent_follows_it() -> None:
    sending = Sending()
    sending.case.finish()
    assert [type(event) for event in sending.go_on()] == [m.SlicesHeld, m.RunEnded]


def test_a_resize_waits_for_the_report_that_is_being_sent() -> None:
    sending = Sending()
    resizer = threading.Thread(target=sending.case.running.resize, args=(5, 1))
    resizer.start()
    sent = sending.go_on()
    resizer.join(TIMEOUT_S)
    assert {event.epoch for event in sent} == {0, 1}
    assert [event.epoch for event in sent] == sorted(event.epoch for event in sent)


def test_a_killed_job_is_not_resized() -> None:
    case = Case()
    case.start()
    case.running.kill()
    case.running.resize(5, 1)
    assert (case.run.killed, case.run.sizes) == (1, [3])
