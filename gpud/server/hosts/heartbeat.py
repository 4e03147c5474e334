"""Is a device host still there? It is asked again and again, and its silences are counted.

Problem: a process that is stopped, or one of whose threads is stuck, ends nothing and says nothing:
its jobs would wait for ever. A machine that is busy, or was suspended, must not look like that.

Approach: every tenth of the limit the host is asked something that one of its threads answers at
once: the thread that reads, or that which maps memory. What is counted is how many of these moments
pass without an answer, not time: if this process was stopped itself, or the whole machine, only one
of them passes. The same beat counts how long the host has been starting, and how long it has been
at one compilation.

Properties:
    patient: a host that answers once in a limit is left alone;
    noticed: one that does not is reported, once, at most a beat after the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpud.errors import GpudError

__all__ = ["BEATS", "Heartbeat"]

BEATS = 10
"""In one limit."""


class Heartbeat:
    """Over one thread of one host.

    Args:
        loop: the event loop.
        limit_s: how long it may be silent.
        ask: have it asked; the function that this is given takes its answer.
        on_silent: called when it has been silent for too long.
        on_beat: called with each beat, after the host was found well.

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
        """Look no more; may be called twice."""
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
        # An error says that it is gone, which its owner hears of in another way.
        if error is None:
            self._asked = False
            self.missed = 0
