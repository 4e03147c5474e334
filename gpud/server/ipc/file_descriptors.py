"""The limit on open file descriptors, and how many are left for clients.

Problem: a daemon that runs out of descriptors can neither accept connections nor create arenas nor
start a host, and an event loop that waits for connections would spin.

Approach: raise the limit as far as the system allows, reserve some for the daemon itself, and
refuse a connection or an arena that would need one of these.
"""

from __future__ import annotations

import resource

__all__ = ["PER_ARENA", "raise_limit", "remaining"]

PER_ARENA = 3
"""An arena's file, and its duplicates until client and host have received them."""

_OWN = 128
"""For the daemon itself: log, cache, hosts, compile workers, and connections being refused."""


def raise_limit() -> int:
    """Raise the limit as far as the system allows; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def remaining(connections: int, arenas: int) -> int:
    """How many descriptors are left beside so many connections and arenas; may be negative."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return 1 << 30
    return most - _OWN - connections - PER_ARENA * arenas
