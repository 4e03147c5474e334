"""A fair queue and the thread that empties it: each session's commands in order, sessions in turn.

Problem: to copy a large array takes seconds, and another session's small one must not wait so long.

Approach: each session has a *queue* of its commands. A command is carried out in steps, and
after each step it is the next queue's turn. A handler that is a generator says by ``yield`` where a
step ends; any other is one step.

Properties:
* the commands of a queue are carried out one after the other, in the order in which they came;
* between two steps of a command at most one step of each other queue is taken;
* what is dropped is not carried out any further, and is told to whoever dropped it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["FairQueue"]

Handler = Callable[[Any], Iterator[None] | None]


class _Work:
    """A command and how far it is."""

    def __init__(self, handler: Handler, command: Any) -> None:
        self.command = command
        self.begun = False
        self.over = False
        self.dropped = False
        self._handler = handler
        self._steps: Iterator[None] | None = None

    def advance(self, _: Any) -> None:
        """Take a step; it is over unless it says that there is more."""
        self.over = True
        if self._steps is None:
            self._steps = iter(self._handler(self.command) or ())
        for _ in self._steps:
            self.over = False
            return


class FairQueue:
    """Carries out commands on a thread of its own.

    Args:
        name: of the thread.
        guarded: called with something to call and a command; sees to what is raised.
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
        self._turns: deque[int] = (
            deque()
        )  # keys of queues with commands, but for the one whose turn it is
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, key: int, handler: Handler, command: Any) -> None:
        """Have ``handler(command)`` called after all that was put into the queue before."""
        with self._changed:
            queue = self._queues.get(key)
            if queue is None:
                queue = self._queues[key] = deque()
                self._turns.append(key)
                self._changed.notify()
            queue.append(_Work(handler, command))

    def drop(self, key: int, which: Callable[[Any], bool]) -> list[Any]:
        """Carry out no more of those commands of a queue; returns those that had not begun."""
        with self._changed:
            queue = self._queues.get(key, deque())
            going = [work for work in queue if which(work.command)]
            for work in going:
                work.dropped = True
            return [work.command for work in going if not work.begun]

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
