"""The daemon's event loop, which notices its own stalls.

Problem: all clients are served by one thread. Whatever keeps it in one callback keeps everybody
waiting, and neither uvloop nor asyncio says which callback that was.

Approach: the loop's methods that take a callback time it. A callback of more than `LIMIT_S` is a
*stall*: it is counted, the longest is kept, and the log names what was handled.

Properties:
    every_callback: readers, timers, tasks' steps and calls from other threads are timed;
    bounded: one line a second is logged at most, whatever clients do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

__all__ = ["LIMIT_S", "STALLS", "Stalls", "loop_factory"]

_LOG = logging.getLogger(__name__)
_LOG_EVERY_S = 1.0

LIMIT_S = 0.05
"""A callback that takes longer is a stall."""


class Stalls:
    """The stalls of this process's event loop.

    Attributes:
        handling: what the current callback handles, such as the class of a message; whoever
            dispatches sets it, as it is a part of what the log says.
        count: how many stalls there were.
        longest_s: the longest callback so far, stall or not.
        longest: what it was.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget what there was."""
        self.handling: type | None = None
        self.count = 0
        self.longest_s = 0.0
        self.longest = ""
        self._logged_s = -_LOG_EVERY_S

    def record(self, callback: Callable[..., Any], began_s: float, took_s: float) -> None:
        """Record the longest callback so far, or a stall.

        Args:
            callback: what the loop called.
            began_s: when, on the monotonic clock.
            took_s: how long it took.
        """
        what = _name(callback)
        if self.handling is not None:
            what += f" of {self.handling.__name__}"
        if took_s > self.longest_s:
            self.longest_s, self.longest = took_s, what
        if took_s <= LIMIT_S:
            return
        self.count += 1
        if began_s + took_s - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = began_s + took_s
            _LOG.warning(
                "everybody waited %.0f ms for %s; %d stalls so far", took_s * 1e3, what, self.count
            )


STALLS = Stalls()
"""Those of this process: it has one event loop."""


def timed(callback: Callable[..., Any], *args: Any) -> None:
    """Call a callback of the loop, and record how long it took if that is worth it."""
    stalls = STALLS
    stalls.handling = None
    began_s = time.monotonic()
    try:
        callback(*args)
    finally:
        took_s = time.monotonic() - began_s
        if took_s > stalls.longest_s or took_s > LIMIT_S:
            stalls.record(callback, began_s, took_s)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes the loop: uvloop's where it is installed, asyncio's otherwise."""
    base: Any
    try:
        import uvloop
    except ImportError:
        base, timer = asyncio.SelectorEventLoop, "call_at"  # call_later calls it
    else:
        base, timer = uvloop.Loop, "call_later"  # call_at calls it

    class Loop(base):  # type: ignore[misc]
        """A loop whose callbacks are timed."""

        kind = base.__module__.partition(".")[0]

        def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_soon(timed, callback, *args, context=context)

        def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:
            return super().call_soon_threadsafe(timed, callback, *args, context=context)

        def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:
            super().add_reader(fd, timed, callback, *args)

        def add_writer(self, fd: Any, callback: Any, *args: Any) -> None:
            super().add_writer(fd, timed, callback, *args)

    def later(self: Any, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        return getattr(super(Loop, self), timer)(when, timed, callback, *args, context=context)

    setattr(Loop, timer, later)
    return Loop


def _name(callback: Callable[..., Any]) -> str:
    """Return the name of a callback: for a task's step that of its coroutine."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        coroutine = owner.get_coro()
        return str(getattr(coroutine, "__qualname__", coroutine))
    inner = getattr(callback, "func", callback)  # a partial's
    return str(getattr(inner, "__qualname__", type(inner).__name__))
