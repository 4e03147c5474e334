"""Executes commands on one thread, round-robin over one queue for each session.

Problem: copying a large array takes seconds, and another session's small one must not wait so long.

Approach: each session has a *queue* of its commands. A command is executed in steps, and after each
step it is the next queue's turn. A handler that is a generator ends a step with ``yield``; any
other is one step.

Properties:
* the commands of a queue are executed one after the other, in the order in which they came;
* between two steps of a command at most one step of each other queue is executed;
* a dropped command is not executed any further; it is returned by `FairQueue.drop` or, if it had
  begun, passed to ``dropped``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["FairQueue"]

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


class FairQueue:
    """Executes commands on its own thread.

    Args:
        name: the thread's name.
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
        self._queues: dict[int, deque[_Work]] = {}
        # Keys of the queues with commands, except the one whose turn it is.
        self._turns: deque[int] = deque()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, key: int, handler: Handler, command: Any) -> None:
        """Queue ``handler(command)`` behind all commands of the queue ``key``."""
        with self._changed:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = deque()
                self._turns.append(key)
                self._changed.notify()
            queue.append(_Work(handler, command))

    def drop(self, key: int, which: Callable[[Any], bool]) -> list[Any]:
        """Drop the commands of a queue that ``which`` selects; returns those not begun yet."""
        with self._changed:
            queue = self._queues.get(key, deque())
            dropped = [work for work in queue if which(work.command)]
            for work in dropped:
                work.dropped = True
            return [work.command for work in dropped if not work.begun]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._turns:
                    self._changed.wait()
                key = self._turns.popleft()
                queue = self._queues[key]
                while queue and queue[0].dropped and not queue[0].begun:
                    queue.popleft()
                if not queue:
                    del self._queues[key]
                    continue
                work = queue[0]
                if not work.dropped:
                    work.begun = True
            self._step(work)
            with self._changed:
                if work.over:
                    queue.popleft()
                if queue:
                    self._turns.append(key)
                else:
                    del self._queues[key]

    def _step(self, work: _Work) -> None:
        if work.dropped:
            work.over = True
            self._guarded(self._dropped, work.command)
        else:
            self._guarded(work.advance, work.command)
