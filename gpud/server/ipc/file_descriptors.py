"""How many descriptors there are, and for how much they suffice.

Problem: a daemon that runs out of descriptors cannot accept, hand out memory or start a host any
more, and a loop that waits for connections would spin.

Approach: take all that the system lets us have, keep some for the daemon itself, and refuse the
connection or the arena for which the rest would not suffice, while there still are some to do it.
"""

from __future__ import annotations

import resource

__all__ = ["PER_ARENA", "raise_limit", "remaining"]

PER_ARENA = 3
"""The file of a session's memory, which is duplicated until client and host have taken it."""

_OWN = 128
"""For the daemon itself: log, cache, hosts, compile workers, and connections being refused."""


def raise_limit() -> int:
    """Have as many descriptors as the system allows; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def remaining(connections: int, arenas: int) -> int:
    """How many descriptors are left for clients when they have so much; may be negative."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return 1 << 30
    return most - _OWN - connections - PER_ARENA * arenas
