"""The functions with which a program announces what it does to the checking mode.

`gpud.compiler.passes.safety.checking` has what they mean; the CPU device implements them.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = [
    "ACCESS",
    "CHECK_CALLS",
    "CHECK_PREFIX",
    "READS",
    "SHARED",
    "SHUFFLE",
    "SHUFFLE_MODES",
    "STORED",
    "STRONG",
    "SYNC",
    "WRITES",
    "Sync",
]

CHECK_PREFIX: Final = "gpud_check_"
ACCESS: Final = "gpud_check_access"
SHARED: Final = "gpud_check_shared"
STORED: Final = "gpud_check_stored"
SHUFFLE: Final = "gpud_check_shuffle"
SYNC: Final = "gpud_check_sync"

SHUFFLE_MODES: Final = ("up", "down", "bfly", "idx")

CHECK_CALLS: Final = frozenset((ACCESS, SHARED, STORED, SHUFFLE, SYNC))

READS: Final = 1 << 8
WRITES: Final = 1 << 9
STRONG: Final = 1 << 10
"""Bits of ``how``, above the number of bytes."""


class Sync(IntEnum):
    """What orders accesses."""

    ARRIVE = 1
    """The thread comes to a barrier of its block."""
    PASS = 2
    """It has passed the barrier."""
    WARP_ARRIVE = 3
    WARP_PASS = 4
    """Likewise at a barrier of its warp."""
    RELEASE = 5
    """What its block has written becomes visible to others that `ACQUIRE` from now on."""
    ACQUIRE = 6
    """Its block sees what others have released before."""
