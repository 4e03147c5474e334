"""The limit on open file descriptors, and how many are left for clients.

Problem: a daemon that runs out of descriptors can neither accept connections nor create arenas nor
start a host, and an event loop that waits for connections would spin.

Approach: raise the limit as far as the system allows, reserve some for the daemon itself, and
refuse a connection or an arena that would need one of these.
"""

from __future__ import annotations

import resource

__all__ = ["PER_ARENA", "DescriptorBudget", "raise_limit"]

PER_ARENA = 3
"""An arena's file, and its duplicates until client and host have received them."""

_OWN = 128
"""For the daemon itself: log, cache, hosts, compile processes, and connections being refused."""


def raise_limit() -> int:
    """Raise the limit as far as the system allows; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class DescriptorBudget:
    """Counts the descriptors that clients use.

    Attributes:
        connections: how many are open.
        arenas: how many have a file.
    """

    def __init__(self, connections: int = 0, arenas: int = 0) -> None:
        self.connections = connections
        self.arenas = arenas

    @property
    def remaining(self) -> int:
        """How many descriptors are left for clients; may be negative."""
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most == resource.RLIM_INFINITY:
            return 1 << 30
        return most - _OWN - self.connections - PER_ARENA * self.arenas
