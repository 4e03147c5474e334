"""Waits for several replies: one callback when all have arrived, with the first error.

Properties:
    once: the callback is called once, not before `ReplyGroup.seal`, or in a group that fails fast
        not before the first error;
    first_error: it gets the error that arrived first, or None if there was none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpud.errors import GpudError
from gpud.server.ipc.child_process import OnReply

__all__ = ["ReplyGroup"]


class ReplyGroup:
    """The replies to requests that were made together.

    Args:
        on_done: called when all replies have arrived, with the first error or None.
        fail_fast: call it at the first error already.
    """

    def __init__(
        self, on_done: Callable[[GpudError | None], None], *, fail_fast: bool = False
    ) -> None:
        self._on_done = on_done
        self._fail_fast = fail_fast
        self._pending = 1  # `seal`
        self._error: GpudError | None = None
        self._done = False

    def add(self) -> OnReply:
        """Count one more reply; returns the callback for it."""
        self._pending += 1
        return self._replied

    def seal(self) -> None:
        """Add no more replies; if all have arrived, the callback is called before this returns."""
        self._replied(None, None)

    def _replied(self, _: Any, error: GpudError | None) -> None:
        self._pending -= 1
        self._error = self._error or error
        if self._done or (self._pending and not (self._fail_fast and self._error is not None)):
            return
        self._done = True
        self._on_done(self._error)
