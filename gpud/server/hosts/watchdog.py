"""Watches one device host, and ends it if it hangs: as it starts, compiles, maps, or at any time.

Problem: a host has threads that can be stuck one without the other, and things that it may be at
for long by right.

Approach: each thread has a `Heartbeat`. The one that reads answers at once, whatever else the host
does. The one that maps memory answers in its turn, and may be kept waiting by the driver for as
long as kernels run, where arrays lie in the device's own memory. Starting and each compilation have
limits of their own, counted in the first watch's beats.

Properties:
    named: the reason says what took too long, and how long it may take;
    no_false_blame: `memory_stuck` tells that neither a job nor a program is the reason.
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
"""Sends the host a command with a ticket and gives its answer on."""


class Watchdog:
    """Over one host, from its start to its end.

    Args:
        loop: the event loop.
        limits: how long it may take for what.
        ask: puts a question to the host; answered at once while the host starts.
        compiling: what it is at, the first of them now; a view that changes.
        waits_for_kernels: whether its memory may have to wait for what runs, at this moment.
        end: ends the host, for a reason.

    Attributes:
        memory_stuck: whether it was ended because its thread for memory was stuck.
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
        self._beats = 0  # since the host was started, or has been at one compilation
        self._at: int | None = None  # that compilation
        self.memory_stuck = False
        self._reading = self._heartbeat(_read_nothing, self._on_silent, self._on_beat)
        self._mapping = self._heartbeat(hm.Ping, self._on_memory_silent)

    def started(self) -> None:
        """The host has become ready."""
        self._started = True
        self._beats = 0

    def stop(self) -> None:
        """The host is gone."""
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
        if self._reading.missed > BEATS // 2:  # nothing of it answers: it was stopped, say
            self._on_silent()
        elif self._waits_for_kernels():
            self._mapping = self._heartbeat(hm.Ping, self._on_memory_silent)
        else:
            self.memory_stuck = True
            limit_s = self._limits.silent
            self._end(f"hung: what maps its memory has been at one thing for {limit_s:g} s")

    def _on_beat(self) -> None:
        at = next(iter(self._compiling), None)
        self._beats = self._beats + 1 if at == self._at else 1
        self._at = at
        spent_s = (self._beats - 1) * self._reading.beat_s
        if not self._started and spent_s > self._limits.start:
            self._end(f"hung: it has not started within {self._limits.start:g} s")
        elif self._started and at is not None and spent_s > self._limits.compile:
            case = self._compiling[at]
            self._end(f"hung: it was {case} for more than {self._limits.compile:g} s")


def _read_nothing(ticket: int) -> hm.ReadProgress:
    return hm.ReadProgress(ticket, ())
