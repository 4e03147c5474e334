"""Interleaved timing of several variants on a shared machine.

Problem: on a shared machine the speed drifts by more than the differences to be measured.

Approach: the variants (*sides*) take turns, one sample each a round, in an order that rotates from
round to round. Two samples of one round saw nearly the same machine, so ratios are taken within
rounds; reported is the median ratio, with the quartiles as its spread.

Beside wall-clock time the processor time of all threads of the process is recorded. It does not
grow while other processes have the core, so it shows whether a difference is caused by the code or
by other processes.

Terms: a *sample* is the mean of one call over ``batch`` calls in a row, in seconds; a *round* is
one sample of every side.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "Samples",
    "Spread",
    "batch_for",
    "cores_used",
    "geometric_mean",
    "interleave",
    "load",
    "percentile_us",
    "ratios",
    "spread",
]


@dataclass(frozen=True)
class Spread:
    """Median, quartiles and minimum of some numbers, in their unit."""

    median: float
    low: float
    high: float
    least: float

    def plain(self) -> dict[str, float]:
        """For JSON, to five significant digits."""
        return {name: float(f"{value:.5g}") for name, value in vars(self).items()}


@dataclass(frozen=True)
class Samples:
    """One side's samples, in seconds a call; index i is from round i.

    Attributes:
        wall: wall-clock time.
        cpu: processor time, summed over the process's threads.
    """

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, list[float]]:
        """For JSON, to four significant digits."""
        return {name: [float(f"{x:.4g}") for x in values] for name, values in vars(self).items()}


def cores_used(samples: Iterable[Samples]) -> float:
    """Cores that the process used on average: fewer than available if others were busy."""
    some = list(samples)
    return round(sum(sum(s.cpu) for s in some) / sum(sum(s.wall) for s in some), 2)


def interleave(
    sides: Mapping[str, Callable[[], None]], rounds: int, batch: int = 1
) -> dict[str, Samples]:
    """Take samples of each side, interleaved; ``batch`` calls a sample."""
    samples = {name: Samples() for name in sides}
    names = list(sides)
    for index in range(rounds):
        first = index % len(names)
        for name in names[first:] + names[:first]:
            call = sides[name]
            began, used = time.perf_counter(), time.process_time()
            for _ in range(batch):
                call()
            samples[name].cpu.append((time.process_time() - used) / batch)
            samples[name].wall.append((time.perf_counter() - began) / batch)
    return samples


def batch_for(calls: Iterable[Callable[[], None]], seconds: float) -> int:
    """How many calls make a sample of about ``seconds`` for the fastest of ``calls``."""
    return max(1, math.ceil(seconds / min(_once(call) for call in calls)))


def _once(call: Callable[[], None]) -> float:
    best = math.inf
    for _ in range(3):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def spread(numbers: Sequence[float]) -> Spread:
    """Median and quartiles; all are the number itself if there is only one."""
    if len(numbers) < 2:
        return Spread(numbers[0], numbers[0], numbers[0], numbers[0])
    low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return Spread(middle, low, high, min(numbers))


def percentile_us(times_ns: Sequence[int], percent: int) -> float:
    """Return a percentile of times in nanoseconds, in microseconds; not interpolated."""
    ordered = sorted(times_ns)
    return round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] / 1e3, 1)


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Return the ratios above / below within each round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the n-th root of the product."""
    return statistics.geometric_mean(numbers)


def load() -> dict[str, Any]:
    """Return the machine's load average of the last minute: runnable threads."""
    return {"load_1min": round(os.getloadavg()[0], 2)}
