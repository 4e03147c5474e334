"""Watchdog of one device host: kills it if it hangs, in general, or while it starts or compiles.

Problem: each of a host's threads can get stuck on its own, and some operations rightly take long.

Approach: each thread has a `Heartbeat`. The thread that reads messages answers at once, whatever
else the host does. The one that maps memory answers in its turn, and where arrays lie in the
device's own memory the driver may keep it waiting for as long as kernels run. Starting, and each
compilation, have limits of their own, counted in beats of the first heartbeat.

Properties:
    named: the reason says what took too long, and its limit;
    no_false_blame: `memory_stuck` is set if neither a job nor a program is the cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gpud.device.host import messages as hm
from gpud.server.hosts.heartbeat import BEATS, Heartbeat
from gpud.server.hosts.interface import HostLimits
from gpud.server.ipc.child_process import OnReply

__all__ = ["Ask", "Watchdog"]

Ask = Callable[[Callable[[int], Any], OnReply], None]
"""Sends the host a command with a ticket and passes its reply on."""


class Watchdog:
    """Monitors one host from its start to its end.

    Args:
        loop: the event loop.
        limits: the time limits.
        ask: sends the host a command; while the host starts, it is answered at once.
        compiling: a live view of the host's pending compilations, the current one first.
        waits_for_kernels: whether mapping memory may have to wait for running kernels now.
        end: kills the host, with a reason.

    Attributes:
        memory_stuck: whether the host was killed because its memory thread was stuck.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: HostLimits,
        ask: Ask,
        compiling: Mapping[int, object],
        waits_for_kernels: Callable[[], bool],
        end: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._ask = ask
        self._compiling = compiling
        self._waits_for_kernels = waits_for_kernels
        self._end = end
        self._started = False
        self._beats = 0  # since the host was started, or since `_current` began
        self._current: int | None = None  # ticket of the current compilation
        self.memory_stuck = False
        self._reading = self._heartbeat(_read_nothing, self._on_silent, self._on_beat)
        self._mapping = self._heartbeat(hm.Ping, self._on_memory_silent)

    def started(self) -> None:
        """Note that the host has become ready."""
        self._started = True
        self._beats = 0

    def stop(self) -> None:
        """Stop watching: the host is gone."""
        self._reading.stop()
        self._mapping.stop()

    def _heartbeat(
        self,
        make: Callable[[int], Any],
        on_silent: Callable[[], None],
        on_beat: Callable[[], None] = lambda: None,
    ) -> Heartbeat:
        ask = partial(self._ask, make)
        return Heartbeat(self._loop, self._limits.silent, ask, on_silent, on_beat)

    def _on_silent(self) -> None:
        self._end(f"hung: it has not answered for {self._limits.silent:g} s")

    def _on_memory_silent(self) -> None:
        if self._reading.missed > BEATS // 2:  # no thread answers: the process may be stopped
            self._on_silent()
        elif self._waits_for_kernels():
            self._mapping = self._heartbeat(hm.Ping, self._on_memory_silent)
        else:
            self.memory_stuck = True
            limit_s = self._limits.silent
            self._end(f"hung: what maps its memory has been at one thing for {limit_s:g} s")

    def _on_beat(self) -> None:
        current = next(iter(self._compiling), None)
        self._beats = self._beats + 1 if current == self._current else 1
        self._current = current
        spent_s = (self._beats - 1) * self._reading.beat_s
        if not self._started and spent_s > self._limits.start:
            self._end(f"hung: it has not started within {self._limits.start:g} s")
        elif self._started and current is not None and spent_s > self._limits.compile:
            case = self._compiling[current]
            self._end(f"hung: it was {case} for more than {self._limits.compile:g} s")


def _read_nothing(ticket: int) -> hm.ReadProgress:
    return hm.ReadProgress(ticket, ())
