"""Heartbeat of a device host: sends pings periodically and counts the unanswered ones.

Problem: a process that is stopped, or one of whose threads is stuck, does not end and sends
nothing: its jobs would wait for ever. A machine that is busy, or was suspended, must not look like
that.

Approach: every tenth of the limit the host is sent a request that one of its threads answers at
once: the thread that reads messages, or the one that maps memory. Beats without an answer are
counted, not time: if this process, or the whole machine, was stopped, only one beat passes. The
same beats measure how long the host has been starting, or compiling one kernel.

Properties:
    patient: a host that answers once within each limit is left alone;
    noticed: one that does not is reported, once, at most one beat after the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpud.errors import GpudError

__all__ = ["BEATS", "Heartbeat"]

BEATS = 10
"""Beats in one limit."""


class Heartbeat:
    """Monitors one thread of one host.

    Args:
        loop: the event loop.
        limit_s: how long it may go without an answer.
        ask: sends a ping; its argument is the callback for the reply.
        on_silent: called once when the limit is exceeded; the heartbeat stops then.
        on_beat: called on every beat before that.

    Attributes:
        missed: beats in a row without an answer.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limit_s: float,
        ask: Callable[[Callable[[object, GpudError | None], None]], None],
        on_silent: Callable[[], None],
        on_beat: Callable[[], None],
    ) -> None:
        self._loop = loop
        self.beat_s = limit_s / BEATS
        self._ask = ask
        self._on_silent = on_silent
        self._on_beat = on_beat
        self._asked = False
        self.missed = 0
        self._timer: asyncio.TimerHandle | None = loop.call_later(self.beat_s, self._beat)

    def stop(self) -> None:
        """Stop the timer; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self) -> None:
        self._timer = self._loop.call_later(self.beat_s, self._beat)
        if self._asked:
            self.missed += 1
            if self.missed >= BEATS:
                self.stop()
                self._on_silent()
                return
        else:
            self._asked = True
            self._ask(self._answered)
        if self._timer is not None:
            self._on_beat()

    def _answered(self, _: object, error: GpudError | None) -> None:
        # An error means that the host is gone, of which its owner is notified elsewhere.
        if error is None:
            self._asked = False
            self.missed = 0
