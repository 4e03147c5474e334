"""Recognises packed launches by their beginning, all but the parameters.

Problem: a program launches the same kernels again and again, with other arguments each time. To
decode and check each launch anew takes longer than all else that is done for it.

Approach: in a packed launch the parameters come last, behind their length. Two that begin alike up
to there, and are equally long, differ in their parameters alone. What was found out about the first
is kept by these bytes.

Properties:
    same: what is found was kept for bytes that differ in the parameters alone;
    bounded: there are at most ``most``; the next one drops all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

__all__ = ["Beginnings", "is_short"]

_T = TypeVar("_T")
_SHORT_BYTES = 4096


def is_short(packed: bytes) -> bool:
    """Whether a launch is short enough to be kept for others: few kernels have more parameters."""
    return len(packed) <= _SHORT_BYTES


class Beginnings(Generic[_T]):
    """What is known of launches, by how they begin.

    Args:
        most: how many are kept.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._known: dict[tuple[Hashable, bytes], _T] = {}
        # By the length of a launch: where its parameters may begin.
        self._places: dict[int, tuple[int, ...]] = {}

    def find(self, key: Hashable, packed: bytes) -> tuple[_T, bytes] | None:
        """Return what is known of launches that begin like this one, and its parameters.

        Args:
            key: what it was kept with.
            packed: the launch.
        """
        for place in self._places.get(len(packed), ()):
            known = self._known.get((key, packed[:place]))
            if known is not None:
                return known, packed[place:]
        return None

    def keep(self, key: Hashable, packed: bytes, parameter_bytes: int, known: _T) -> None:
        """Keep what is known of launches that differ from this one in their parameters alone.

        Args:
            key: what else it depends on.
            packed: a valid launch, which ends with its parameters.
            parameter_bytes: how many they are.
            known: what is to be found.
        """
        if len(self._known) >= self._most:
            self._known.clear()
            self._places.clear()
        size = len(packed)
        place = size - parameter_bytes
        self._known[key, packed[:place]] = known
        places = self._places.get(size, ())
        if place not in places:
            self._places[size] = (*places, place)

    def drop(self, gone: Callable[[_T], bool]) -> None:
        """Drop all of which ``gone`` says so."""
        for key in [key for key, known in self._known.items() if gone(known)]:
            del self._known[key]
