"""Co-location metrics: r99, harvest, Jain's fairness index, and bootstrap intervals.

Terms: *alone* is online or offline work by itself on the device; *together* is both at once; a
latency is from a request's arrival to its result, queueing included [s].

* r99 = p99 together / p99 alone, same arrival trace. 1: online work is not slowed down.
* b = offline work per second together / alone; u = the online work's busy share alone;
  harvest = b / (1 - u). 1: offline work got all that online work left over.
* Jain's index of n amounts = (sum)^2 / (n * sum of squares). 1: all are equal; 1/n: one has all.

Intervals come from a block bootstrap over runs of consecutive requests, because requests that queue
behind each other are not independent; both sides are resampled at the same indices, because both
have the same arrival trace.

Source: R. Jain et al., "A quantitative measure of fairness", DEC-TR-301 (1984); H. R. Kunsch, "The
jackknife and the bootstrap for general stationary observations" (1989), the moving blocks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

__all__ = ["Interval", "harvest", "interval_of_r99", "jain", "offline_rate", "percentile", "r99"]

Interval = tuple[float, float]
"""Lower and upper bound."""

_RUN = 8
"""Length of a resampled block of requests; about the number that a burst queues up."""


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of ``values``, linearly interpolated.

    Raises:
        ValueError: there are no values, or the percentage is outside 0 to 100.
    """
    if not values or not 0 <= percent <= 100:
        raise ValueError(f"no percentile {percent} of {len(values)} values")
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    lower = int(place)
    upper = min(lower + 1, len(ordered) - 1)
    return ordered[lower] + (ordered[upper] - ordered[lower]) * (place - lower)


def r99(together: Sequence[float], alone: Sequence[float]) -> float:
    """Return the p99 of the latencies together / alone."""
    return percentile(together, 99) / percentile(alone, 99)


def offline_rate(
    together: Mapping[str, float], alone: Mapping[str, float], work: Mapping[str, float]
) -> float:
    """Return b: offline work per second together / alone, over several kernels.

    Args:
        together: task blocks per second by kernel.
        alone: likewise.
        work: weight of a task block of each kernel, such as the time that an SM needs for it.

    Raises:
        ValueError: the kernels are not the same, or no work was done alone.
    """
    if not together.keys() == alone.keys() == work.keys():
        raise ValueError(f"no common kernels: {dict(together)}, {dict(alone)}, {dict(work)}")
    done, possible = (sum(rates[name] * work[name] for name in work) for rates in (together, alone))
    if possible <= 0:
        raise ValueError("no offline work was done alone: there is nothing to compare with")
    return done / possible


def harvest(rate: float, busy: float) -> float:
    """Return the harvest b / (1 - u), with b = ``rate`` and u = ``busy``.

    Raises:
        ValueError: ``busy`` is not in 0 to 1, 1 excluded.
    """
    if not 0 <= busy < 1:
        raise ValueError(f"an online load of {busy} leaves nothing to harvest")
    return rate / (1 - busy)


def jain(amounts: Sequence[float]) -> float:
    """Return Jain's fairness index of ``amounts``; 1 if all are 0.

    Raises:
        ValueError: there are no amounts, or one is negative.
    """
    if not amounts or min(amounts) < 0:
        raise ValueError("fairness is of one amount or more, none of them negative")
    squares = sum(amount * amount for amount in amounts)
    return 1.0 if squares == 0 else sum(amounts) ** 2 / (len(amounts) * squares)


def interval_of_r99(together: Sequence[float], alone: Sequence[float]) -> Interval:
    """Return the 90 % interval of r99 by bootstrap, deterministic in its arguments.

    Args:
        together: latencies in order of arrival.
        alone: likewise, of the same requests.

    Raises:
        ValueError: the numbers of requests differ, or are 0.
    """
    count = len(together)
    if count != len(alone) or not count:
        raise ValueError(f"{count} requests together and {len(alone)} alone are no pairs")
    rng = random.Random(1)  # noqa: S311 - statistics, not secrets
    run = min(_RUN, count)
    ratios = []
    for _ in range(400):
        picked: list[int] = []
        while len(picked) < count:
            first = rng.randrange(count - run + 1)
            picked.extend(range(first, first + run))
        del picked[count:]
        ratios.append(r99([together[i] for i in picked], [alone[i] for i in picked]))
    return percentile(ratios, 5), percentile(ratios, 95)
