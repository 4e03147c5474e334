"""How many cores a GPU task needs: found by trying, window by window.

Problem: with too few cores a training program starves its GPU, with too many it takes them from
others. How many it needs is known by nobody; utilisation is noisy.

Approach: utilisation is linear in cores up to a knee, and flat above it. The search starts from
what is known (`first_cores`), goes down one core at a time while that does no harm, then, if it
could not go down, up while that helps. Whether a step did harm is a choice between two
expectations: from n cores to n - 1 utilisation stays as it is (above the knee) or falls to
(n - 1)/n (below it). The limit lies halfway, at 1 - 1/(2n), so it needs no parameter. A step is
turned down only if a second window says the same.

The source's literal rule goes down only "while utilisation improves", so that above the knee, where
nothing improves, it keeps cores that others could use; `CoreSearch` can do that, too.

Terms:
    window: a time in which utilisation is averaged, with a constant number of cores.
    reference [permille]: the mean utilisation of the steps that were accepted.

Properties (with utilisation as described, without noise):
    finds_the_knee: the search ends at the knee, or at ``most`` if that is less;
    literal_keeps: the literal rule ends at the start if that is above the knee;
    ends: after at most five windows more than the knee is cores away.

Source: the patent's steps 3 and 4; CODA (Zhao et al., ICDCS 2020), "adaptive CPU allocator".
"""

from __future__ import annotations

from fractions import Fraction

__all__ = ["CoreSearch", "first_cores"]


def first_cores(
    known: Fraction | None,
    gpus: Fraction,
    *,
    start_cores: int,
    fewer: int = 0,
    more: int = 0,
) -> int:
    """Return with how many cores a task starts, 1 or more.

    Args:
        known: cores for each GPU that tasks like it needed; None: nothing is known.
        gpus: how many GPUs the task has.
        start_cores: for each GPU if nothing is known; hints count only then, as a need that was
            found contains them.
        fewer: how many hints say that it needs one core less.
        more: how many say that it needs one more.
    """
    if known is not None:
        return max(1, _ceil(known * gpus))
    return max(1, _ceil(start_cores * gpus) - fewer + more)


def _ceil(value: Fraction) -> int:
    return -(-value.numerator // value.denominator)


class CoreSearch:
    """The search of one attempt of a task.

    Args:
        start: cores at first.
        most: cores that it may have.
        literal: the source's rule, see above.

    Attributes:
        cores: with how many the next window is to be measured.
        best: the fewest with which utilisation was as good as any; the result when `over`.
        over: whether the search has ended.
        windows: how many were measured.
    """

    def __init__(self, start: int, most: int, *, literal: bool = False) -> None:
        self.cores = self.best = start
        self.over = False
        self.windows = 0
        self._most = most
        self._literal = literal
        self._step = 0  # 0: the first window, at the start; then -1 or 1
        self._went_down = False
        self._reference: list[int] = []  # of accepted windows
        self._tried: list[int] = []  # of the step being tried

    def measured(self, utilisation_permille: int | None) -> None:
        """Take the utilisation of a window with `cores` cores; None ends the search."""
        if utilisation_permille is None:
            self._end()
            return
        self.windows += 1
        if not self._step:
            self._reference.append(utilisation_permille)
            self._try(-1 if self.cores > 1 else 1)
            return
        self._tried.append(utilisation_permille)
        if self._accepted():
            self._went_down = self._went_down or self._step < 0
            self.best = self.cores
            # What is below the old level is the new one if it is better, as above the knee.
            self._reference = self._tried if self._step > 0 else [*self._reference, *self._tried]
            self._try(self._step)
        elif not self._literal and len(self._tried) < 2:
            pass  # once more
        elif self._step < 0 and not self._went_down:
            self._try(1)
        else:
            self._end()

    def limit(self, most: int) -> None:
        """Say that no more than ``most`` cores can be had: a step up to more is given up."""
        self._most = max(most, self.best)
        if self.cores > self._most:
            self._end()

    def _accepted(self) -> bool:
        tried = Fraction(sum(self._tried), len(self._tried))
        reference = Fraction(sum(self._reference), len(self._reference))
        if self._literal:
            return tried > reference
        limit = reference * (1 + Fraction(self._step, 2 * self.best))
        return tried >= limit if self._step < 0 else tried > limit

    def _try(self, step: int) -> None:
        self._step, self._tried = step, []
        self.cores = self.best + step
        if not 1 <= self.cores <= self._most:
            if step < 0 and not self._went_down:
                self._try(1)
            else:
                self._end()

    def _end(self) -> None:
        self.over, self.cores = True, self.best
