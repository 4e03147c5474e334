"""Arrival times of requests: a Poisson process that is reproducible from its seed."""

from __future__ import annotations

import random

__all__ = ["poisson"]


def poisson(per_second: float, seconds: float, seed: int) -> list[float]:
    """Return arrival times in seconds from the start, ascending, all below ``seconds``.

    The times between arrivals are independent and exponential. The same arguments give the same
    times on every machine.

    Raises:
        ValueError: the rate or the length is not positive.
    """
    if not (per_second > 0 and seconds > 0):
        raise ValueError(f"{per_second} requests per second for {seconds} s is no process")
    rng = random.Random(seed)  # noqa: S311 - a workload, not secrets
    times = []
    at = rng.expovariate(per_second)
    while at < seconds:
        times.append(at)
        at += rng.expovariate(per_second)
    return times
