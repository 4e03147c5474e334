"""Executes the commands of sessions on one thread, in steps; sessions take turns.

Problem: copying a large array takes seconds, and another session's small one must not wait so long.

Approach: the order is that of `gpud.processes.fair_order`, and its parties are sessions. A command
is executed in steps, and after each step it waits again. A handler that is a generator ends a step
with ``yield``; any other is one step.

Properties:
    in_order: the commands of a session are executed one after the other, in the order in which they
        came;
    fair: between two steps of a command at most one step of each other session is executed;
    dropped: a dropped command is not executed any further; it is returned by `CommandThread.drop`
        or, if it had begun, passed to ``dropped``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpud.processes.fair_order import FairOrder

__all__ = ["CommandThread"]

Handler = Callable[[Any], Iterator[None] | None]


class _Work:
    """A command and the state of its execution."""

    def __init__(self, handler: Handler, command: Any) -> None:
        self.command = command
        self.begun = False
        self.over = False
        self.dropped = False
        self._handler = handler
        self._steps: Iterator[None] | None = None

    def advance(self, _: Any) -> None:
        """Execute one step; the command is over unless its handler yields."""
        self.over = True
        if self._steps is None:
            self._steps = iter(self._handler(self.command) or ())
        for _ in self._steps:
            self.over = False
            return


class CommandThread:
    """Executes commands on its own thread.

    Args:
        guarded: called with a function and a command; calls the function with the command and
            handles what it raises.
        dropped: called on the thread with a command that was dropped between two steps.
    """

    def __init__(
        self,
        name: str,
        guarded: Callable[[Callable[[Any], Any], Any], None],
        dropped: Callable[[Any], None],
    ) -> None:
        self._guarded = guarded
        self._dropped = dropped
        self._order: FairOrder[int, _Work] = FairOrder()
        self._current: tuple[int, _Work] | None = None  # whose step is being executed
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, key: int, handler: Handler, command: Any) -> None:
        """Queue ``handler(command)`` behind all commands of the session ``key``."""
        with self._changed:
            self._order.put(key, _Work(handler, command))
            self._changed.notify()

    def drop(self, key: int, which: Callable[[Any], bool]) -> list[Any]:
        """Drop the commands of a session that ``which`` selects; returns those not begun yet."""
        unbegun = []
        with self._changed:
            if self._current is not None and self._current[0] == key:
                current = self._current[1]
                current.dropped = current.dropped or which(current.command)
            for work in self._order.waiting(key):
                if which(work.command):
                    work.dropped = True
                    if not work.begun:
                        self._order.remove(work, key)
                        unbegun.append(work.command)
        return unbegun

    def waiting(self, which: Callable[[Any], bool]) -> Callable[[], bool]:
        """Return what tells whether any of the commands that wait now still does.

        Args:
            which: selects the commands.
        """
        with self._changed:
            works = [work for work in self._order.all_waiting() if which(work.command)]
        return lambda: any(not (work.over or work.dropped) for work in works)

    def _run(self) -> None:
        while True:
            with self._changed:
                while (turn := self._order.take()) is None:
                    self._changed.wait()
                self._current = key, work = turn
                work.begun = True
            self._step(work)
            with self._changed:
                self._current = None
                if work.over:
                    self._order.done(key)
                else:
                    self._order.put_back(key, work)

    def _step(self, work: _Work) -> None:
        if work.dropped:
            work.over = True
            self._guarded(self._dropped, work.command)
        else:
            self._guarded(work.advance, work.command)
