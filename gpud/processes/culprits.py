"""Whom to blame when a process ends before its answer: try again, then blame.

Problem: compilers loop for ever, crash and exhaust memory on some inputs, so each runs in a process
that may end. But a process also ends for reasons that are not its input's: a signal from outside,
or a machine on which it cannot run at all. Refusing an input is for good, so it must not be hasty.

Approach: what a process was given, its *case*, is tried on `MOST_TRIES` processes before it is
blamed. A time limit is exceeded by the case alone, and is not tried again. A process that ends
before it has a case says nothing about any; `MOST_STARTS` such in a row say that none can run.

Properties:
    no_false_blame: a case is blamed only for processes that ended while they had it;
    bounded: a case costs `MOST_TRIES` processes, and a machine without working ones `MOST_STARTS`;
    not_again: a case that is refused stays refused, until `MOST_KEPT` later ones were;
    small: of a case its key is kept: give a digest if it is large.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum, auto
from typing import Generic, TypeVar

from gpud.errors import GpudError

__all__ = ["MOST_KEPT", "MOST_TRIES", "Culprits", "Verdict"]

MOST_TRIES = 2
"""Processes that try one case: something else may have ended the first."""

MOST_STARTS = 3
MOST_KEPT = 256

Case = TypeVar("Case", bound=Hashable)


class Verdict(Enum):
    """What follows from the end of a process."""

    TRY_AGAIN = auto()
    BLAME = auto()
    CANNOT_RUN = auto()


class Culprits(Generic[Case]):
    """The cases during which processes of one kind have ended. Not thread-safe."""

    def __init__(self) -> None:
        self._tries: OrderedDict[Case, int] = OrderedDict()
        self._refused: OrderedDict[Case, GpudError] = OrderedDict()
        self._starts = 0  # processes in a row that ended without a case

    def ended(self, case: Case | None, *, too_long: bool = False) -> Verdict:
        """Count a process that has ended.

        Args:
            case: what it had been given; None: it ended before that.
            too_long: whether it was ended because it exceeded a time limit.

        Returns:
            TRY_AGAIN: with another process; BLAME: the case is the reason, and is forgotten here
            unless it is refused; CANNOT_RUN: it is no case's fault, but trying again is no use.
        """
        if case is None:
            self._starts += 1
            if not too_long and self._starts < MOST_STARTS:
                return Verdict.TRY_AGAIN
            self._starts = 0
            return Verdict.CANNOT_RUN
        self._starts = 0
        tries = self._tries.pop(case, 0) + 1
        if too_long or tries >= MOST_TRIES:
            return Verdict.BLAME
        self._tries[case] = tries
        if len(self._tries) > MOST_KEPT:
            self._tries.popitem(last=False)
        return Verdict.TRY_AGAIN

    def answered(self, case: Case) -> None:
        """Forget a case: a process has answered it, or nobody wants it any more."""
        self._starts = 0
        self._tries.pop(case, None)

    def refuse(self, case: Case, error: GpudError) -> None:
        """Remember that a case is answered with ``error`` from now on."""
        self._refused[case] = error
        if len(self._refused) > MOST_KEPT:
            self._refused.popitem(last=False)

    def refusal(self, case: Case) -> GpudError | None:
        """Return what a case is refused with, None if it is not."""
        return self._refused.get(case)

    def __bool__(self) -> bool:
        """Whether any case is refused."""
        return bool(self._refused)
