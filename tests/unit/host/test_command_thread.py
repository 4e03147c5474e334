"""The command thread: order, turns between sessions, and dropped commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpud.device.host.command_thread import CommandThread
from tests.support.waiting import until

WAIT_S = 30


class Case:
    """A thread that records what it runs; the first command blocks its thread until `open`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.errors: list[Exception] = []
        self.gone: list[str] = []
        self._gate = threading.Event()
        self._held = threading.Event()
        self.thread = CommandThread("test", self._guarded, self.gone.append)
        self.thread.put(0, self._hold, "gate")
        assert self._held.wait(WAIT_S)

    def _guarded(self, call: Callable[[Any], Any], command: Any) -> None:
        try:
            call(command)
        except Exception as error:  # noqa: BLE001 - as a host
            self.errors.append(error)

    def _hold(self, _: Any) -> None:
        self._held.set()
        assert self._gate.wait(WAIT_S)

    def plain(self, command: str) -> None:
        self.done.append(command)

    def steps(self, command: str) -> Iterator[None]:
        for index in range(3):
            self.done.append(f"{command}{index}")
            yield

    def fails(self, command: str) -> Iterator[None]:
        self.done.append(command)
        yield
        raise ZeroDivisionError(command)

    def drops(self, key: int) -> Callable[[str], Iterator[None]]:
        """A command that drops itself after its first step, as another thread could."""

        def steps(command: str) -> Iterator[None]:
            self.done.append(command)
            assert self.thread.drop(key, lambda one: one == command) == []
            yield
            self.done.append("it goes on")

        return steps

    def open(self) -> None:
        """Let the thread go on, and wait until nothing waits."""
        over = threading.Event()
        self._gate.set()
        self.thread.put(99, lambda _: over.set(), None)
        assert over.wait(WAIT_S)
        until(lambda: not self.thread._order)


def test_a_session_keeps_its_order_and_sessions_take_turns() -> None:
    case = Case()
    for key, handler, name in (
        (1, case.steps, "a"), (1, case.plain, "b"), (2, case.steps, "c"), (3, case.plain, "d"),
    ):  # fmt: skip
        case.thread.put(key, handler, name)
    case.open()
    assert case.done == ["a0", "c0", "d", "a1", "c1", "a2", "c2", "b"]


def test_a_command_that_fails_is_over_and_the_rest_goes_on() -> None:
    case = Case()
    case.thread.put(1, case.fails, "a")
    case.thread.put(1, case.plain, "b")
    case.open()
    assert case.done == ["a", "b"]
    assert [str(error) for error in case.errors] == ["a"]


def test_a_dropped_command_is_not_executed() -> None:
    case = Case()
    for name in ("a", "b", "c"):
        case.thread.put(1, case.plain, name)
    assert case.thread.drop(1, lambda one: one != "b") == ["a", "c"]
    assert case.thread.drop(7, lambda one: True) == []
    case.open()
    assert case.done == ["b"]
    assert case.gone == []


def test_a_command_dropped_between_two_steps_is_reported() -> None:
    case = Case()
    case.thread.put(1, case.drops(1), "a")
    case.thread.put(1, case.plain, "b")
    case.open()
    assert case.done == ["a", "b"]
    assert case.gone == ["a"]


def test_a_command_that_waits_for_its_next_turn_is_dropped() -> None:
    case = Case()
    case.thread.put(1, case.steps, "a")
    case.thread.put(2, case.drops(1), "a")
    case.open()
    assert case.done == ["a0", "a", "it goes on"]
    assert case.gone == ["a"]
