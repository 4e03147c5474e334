"""The layout of a lane's ring: memory that a client and a device's process share.

Problem: a launch must travel from a client to the device without passing an event loop.

Approach: one memory file for each lane, created and sealed by the daemon. The client writes launch
records in it and the device completions; each counts what it has written in a word that only it
writes. No word has two writers: what one side clears, the other could have just set. A side with
nothing to do sleeps on the other's word, as a futex.

Little-endian; offsets are bytes. Words are 32 bits wide and counts wrap at 2**32:

====== ================== ========= ================================================================
offset name               writer    meaning
====== ================== ========= ================================================================
0      ``head``           client    slots written; the client stores it after the slots
64     ``tail``           device    slots copied, which the client may use again
128    ``completed``      device    launches that have ended
132    ``begun``          device    launches that have begun, or ended without
136    ``ended``          device    not 0: the lane has ended, and takes no more records
192    ``listening``      device    threads that sleep on ``head`` or are about to
256    ``wanted``         client    the value of ``completed`` at which to wake who sleeps on it
4096                      client    `SLOTS` slots of `SLOT_BYTES` bytes
135168                    device    `SLOTS` completions of `COMPLETION_BYTES` bytes
====== ================== ========= ================================================================

A *launch record* is a slot, and as many of the following ones as its parameters need:

====== ===== ================== ====================================================================
offset type  name               meaning
====== ===== ================== ====================================================================
0      u32   ``number``         of the launch: 0, 1, 2 ... in the lane
4      u32   ``site``           launch site: kernel, block shape and shared memory; from the daemon
8      3 u32 ``grid``           task blocks in x, y, z
20     u32   ``size``           of the parameters, which the site fixes
24     u32   ``limit_ms``       how long the job may run that the launch belongs to; 0: no limit
28     u32   ``flags``          bit 0: it belongs to the same job as the launch before: it does not
                                begin if that was not done. The rest: how many jobs of the lane have
                                failed by themselves that the client has seen; if that is less than
                                have, it does not begin. `EVERY`: it begins whatever has failed
32           ``parameters``     the first 96 bytes of the kernel's parameter buffer; the rest
                                follows in the next slots, 128 bytes in each
====== ===== ================== ====================================================================

A *completion* is that of launch n at n modulo `SLOTS`:

====== ===== ================== ====================================================================
offset type  name               meaning
====== ===== ================== ====================================================================
0      u32   ``number``         of the launch
4      u8    ``status``         0: done; 1: see the message `gpud.wire.messages.LaunchEnded`
5      u24   ``slices``         that the lane had when it ended, of 1/`SLICES` SM
8      u64   ``accepted_ns``    when its record was accepted, monotonic; valid from its beginning on
16     u64   ``began_ns``       when its first task block began, 0 if none has
24     u64   ``ended_ns``       when it had ended
====== ===== ================== ====================================================================

The client has at most `SLOTS` launches that have not ended, so that no completion is overwritten
that it has not read. The device checks whatever it reads, and has its own copies of all counts: a
client that breaks the rules ends its own lane.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "BEGUN",
    "COMPLETED",
    "COMPLETIONS_AT",
    "COMPLETION_BYTES",
    "DONE",
    "ENDED",
    "EVERY",
    "FLAGS_AT",
    "HEAD",
    "INLINE_AT",
    "INLINE_BYTES",
    "LIMIT_AT",
    "LISTENING",
    "MOST_SITES",
    "RING_BYTES",
    "SEE_MESSAGE",
    "SLICES",
    "SLICES_SHIFT",
    "SLOTS",
    "SLOTS_AT",
    "SLOT_BYTES",
    "TAIL",
    "WANTED",
    "flags",
    "slots_of",
]

HEAD: Final = 0
TAIL: Final = 64
COMPLETED: Final = 128
BEGUN: Final = 132
ENDED: Final = 136
LISTENING: Final = 192
WANTED: Final = 256

SLOTS: Final = 1024
"""Slots, and the most launches that have not ended; a power of two."""

SLOT_BYTES: Final = 128
SLOTS_AT: Final = 4096
LIMIT_AT: Final = 24
FLAGS_AT: Final = 28
INLINE_AT: Final = 32
INLINE_BYTES: Final = SLOT_BYTES - INLINE_AT

COMPLETIONS_AT: Final = SLOTS_AT + SLOTS * SLOT_BYTES
COMPLETION_BYTES: Final = 32
RING_BYTES: Final = COMPLETIONS_AT + SLOTS * COMPLETION_BYTES

SLICES: Final = 32
SLICES_SHIFT: Final = 8

DONE: Final = 0
SEE_MESSAGE: Final = 1

MOST_SITES: Final = 1024
"""Launch sites of a lane."""


EVERY: Final = (1 << 31) - 1
"""Of a launch record's failures that were seen: it does not matter how many there are."""


def flags(seen: int | None) -> int:
    """Return the flags of a launch that begins a job, given the failures seen; None: `EVERY`."""
    return (EVERY if seen is None else seen % EVERY) << 1


def slots_of(parameter_bytes: int) -> int:
    """Return how many slots a launch with so many bytes of parameters takes."""
    return 1 + max(0, -(-(parameter_bytes - INLINE_BYTES) // SLOT_BYTES))
