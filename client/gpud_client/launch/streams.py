"""Streams: jobs of one stream run in the order in which they were submitted."""

from __future__ import annotations

__all__ = ["Stream"]


class Stream:
    """A queue of jobs that run one after the other; made by `Session.stream`.

    Jobs of different streams may run at the same time. A stream without waiting jobs costs nothing,
    and need not be closed.
    """

    __slots__ = ("_core", "_number")

    def __init__(self, core: object, number: int) -> None:
        self._core = core
        self._number = number

    def __repr__(self) -> str:
        return f"<Stream {self._number}>"
