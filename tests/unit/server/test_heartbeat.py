"""Heartbeats: hosts that do not answer are reported; slow ones are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpud.errors import GpudError
from gpud.server.hosts.heartbeat import BEATS, Heartbeat


class Loop:
    """Timers that fire when the test says."""

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def call_later(self, delay_s: float, what: Callable[[], None]) -> Loop:
        self.delay_s = delay_s
        self.timers.append(what)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def beat(self, times: int = 1) -> None:
        for _ in range(times):
            if self.timers:
                self.timers.pop(0)()


class Case:
    def __init__(self) -> None:
        self.loop = Loop()
        self.asked: list[Callable[[object, GpudError | None], None]] = []
        self.silent = self.beats = 0
        self.heartbeat = Heartbeat(self.loop, 30.0, self.asked.append, self.on_silent, self.on_beat)  # type: ignore[arg-type]

    def on_silent(self) -> None:
        self.silent += 1

    def on_beat(self) -> None:
        self.beats += 1


def test_patient() -> None:
    case = Case()
    assert case.loop.delay_s == 30.0 / BEATS
    for _ in range(50):
        case.loop.beat(BEATS)  # it answers at the very last moment
        case.asked.pop()(None, None)
        assert not case.asked, "and is not asked again before it has"
    assert case.silent == 0
    assert case.beats == 50 * BEATS


def test_noticed() -> None:
    case = Case()
    case.loop.beat(1 + BEATS)
    assert case.silent == 1
    assert not case.loop.timers, "once"


def test_an_error_is_no_answer() -> None:
    case = Case()
    case.loop.beat()
    case.asked.pop()(None, GpudError("the link is gone"))
    case.loop.beat(BEATS)
    assert case.silent == 1


def test_a_watch_that_is_stopped_does_nothing() -> None:
    case = Case()
    case.heartbeat.stop()
    case.heartbeat.stop()
    case.loop.beat(100)
    assert not case.asked


def test_a_watch_that_is_stopped_by_its_beat_stays_so() -> None:
    case = Case()
    case.heartbeat._on_beat = case.heartbeat.stop
    case.loop.beat()
    assert not case.loop.timers
