"""Where a fuzzer's decisions come from: one generator of messages, three engines.

* `Dice`: a seeded pseudo-random source; quick, for the millions.
* `Drawn`: Hypothesis draws each decision, so that what fails is shrunk.
* `Steered`: a coverage-guided engine's bytes decide; bytes that lead to new code are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")


class Choices(Protocol):
    """Decisions."""

    def below(self, most: int) -> int:
        """0 to ``most`` - 1; ``most`` is at most 2^64."""

    def pick(self, options: Sequence[_T]) -> _T:
        """One of these."""

    def data(self, most: int) -> bytes:
        """At most so many bytes."""


class Dice:
    """Decisions of a seed."""

    def __init__(self, seed: int | str) -> None:
        source = Random(seed)
        self._random = source.random
        self._bits = source.getrandbits
        self._bytes = source.randbytes

    def below(self, most: int) -> int:
        if most < 1 << 32:
            return int(self._random() * most)
        return self._bits(64) % most

    def pick(self, options: Sequence[_T]) -> _T:
        return options[int(self._random() * len(options))]

    def data(self, most: int) -> bytes:
        return self._bytes(int(self._random() * (most + 1)))


class Drawn:
    """Decisions of Hypothesis.

    Args:
        draw: of a composite strategy, or ``data.draw``.
    """

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        from hypothesis import strategies

        self._draw = draw
        self._integers = strategies.integers
        self._binary = strategies.binary

    def below(self, most: int) -> int:
        found: int = self._draw(self._integers(0, most - 1))
        return found

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def data(self, most: int) -> bytes:
        found: bytes = self._draw(self._binary(max_size=most))
        return found


class Steered:
    """Decisions of a string of bytes; zeroes when it is used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def used_up(self) -> bool:
        return self._at >= len(self._data)

    def below(self, most: int) -> int:
        size = (most - 1).bit_length() + 7 >> 3
        found = int.from_bytes(self._data[self._at : self._at + size], "little")
        self._at += size
        return found % most

    def pick(self, options: Sequence[_T]) -> _T:
        return options[self.below(len(options))]

    def data(self, most: int) -> bytes:
        size = self.below(min(most, 255) + 1)
        found = self._data[self._at : self._at + size]
        self._at += size
        return found
