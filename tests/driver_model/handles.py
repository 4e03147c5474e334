"""Handles that were created and not destroyed, of the bindings' own types."""

from __future__ import annotations

from collections import Counter
from typing import Any

from cuda.bindings import driver as real

KINDS: dict[str, Any] = {
    "context": real.CUcontext,
    "described": real.CUdevResourceDesc,
    "event": real.CUevent,
    "function": real.CUfunction,
    "graph": real.CUgraph,
    "graph_exec": real.CUgraphExec,
    "green": real.CUgreenCtx,
    "link": real.CUlinkState,
    "module": real.CUmodule,
    "piece": real.CUmemGenericAllocationHandle,
    "stream": real.CUstream,
}
"""The bindings' type of each kind of handle."""


class Misuse(AssertionError):
    """A use of the driver that its documentation forbids."""


class Handles:
    """Handles and the objects behind them.

    Attributes:
        alive: how many of each kind exist; memory and mappings are counted here, too.
    """

    def __init__(self) -> None:
        self.alive: Counter[str] = Counter()
        self._there: dict[int, tuple[str, Any]] = {}
        self._next = 0x1000

    def new(self, kind: str, value: Any, *, counts: bool = True) -> Any:
        """A new handle for ``value``; ``counts``: it has to be destroyed."""
        self._next += 0x10
        self._there[self._next] = kind, value
        self.alive[kind] += counts
        return KINDS[kind](self._next)

    def of(self, kind: str, handle: Any) -> Any:
        """The object behind a handle.

        Raises:
            Misuse: it is of another kind, or was destroyed.
        """
        if not isinstance(handle, (KINDS[kind], int)):
            raise Misuse(f"{handle!r} is no {kind}")
        found = self._there.get(int(handle))
        if found is None or found[0] != kind:
            raise Misuse(f"{handle!r} is no {kind}, or none any more")
        return found[1]

    def drop(self, kind: str, handle: Any, *, counts: bool = True) -> Any:
        """Destroy a handle; returns the object behind it.

        Raises:
            Misuse: as for `of`.
        """
        value = self.of(kind, handle)
        del self._there[int(handle)]
        self.alive[kind] -= counts
        return value

    def all(self, kind: str) -> list[Any]:
        """The objects behind all handles of a kind, oldest first."""
        there = list(self._there.values())  # other threads make and drop handles meanwhile
        return [value for is_of, value in there if is_of == kind]
