"""The fault record: a description of the first fault in a job, written by its kernels.

It is part of the job record (`gpud.compiler.abi.control_words`), 56 bytes from offset 64 on. Only
the thread that changes ``state`` from 0 to 1 writes it:

====== ===== ============ =======================================================================
offset type  name         meaning
====== ===== ============ =======================================================================
64     u32   state        0 none (`NO_FAULT`), 1 being written, 2 complete (`COMPLETE`)
68     u32   kind         a `FaultKind`
72     u32   site         number of the instruction in `gpud.compiler.program.Program.sites`
76     u32   claim        number of the task block, `NOTHING` if it is not known
80     u32   thread_x     coordinates of the thread in its block
84     u32   thread_y
88     u32   thread_z
92     u32   line         assertions: line in the source
96     u64   address      the address that was accessed; assertions: address of the message
104    u64   file         assertions: address of the file's name
112    u64   function     assertions: address of the function's name
====== ===== ============ =======================================================================

Property ``first_wins``: of all faults of a job at most one is recorded, completely or not at all.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from gpud.compiler.abi.control_words import FAULT, NOTHING

__all__ = [
    "ADDRESS",
    "CLAIM",
    "COMPLETE",
    "FILE",
    "FUNCTION",
    "KIND",
    "LINE",
    "NO_FAULT",
    "SITE",
    "SIZE_BYTES",
    "STATE",
    "THREAD",
    "FaultKind",
    "FaultRecord",
    "fault_of",
]

# Byte offsets in the job record.
STATE: Final = FAULT
KIND: Final = FAULT + 4
SITE: Final = FAULT + 8
CLAIM: Final = FAULT + 12
THREAD: Final = FAULT + 16
LINE: Final = FAULT + 28
ADDRESS: Final = FAULT + 32
FILE: Final = FAULT + 40
FUNCTION: Final = FAULT + 48

_RECORD = struct.Struct("<8I3Q")
SIZE_BYTES: Final = _RECORD.size

NO_FAULT: Final = 0
"""The state of a fault record that has not been written."""

COMPLETE: Final = 2
"""The state of a fault record that can be read."""


class FaultKind(IntEnum):
    """The kind of a fault."""

    ADDRESS = 1
    """An access outside the session's memory, or to an invalid address."""
    TRAP = 2
    BREAKPOINT = 3
    ASSERT = 4
    MISALIGNED = 5
    """The address is in the session's memory, but not aligned as the access demands."""
    TARGET = 6
    """A jump or call to none of its legal targets; ``address`` is its index or pointer."""


class FaultRecord(NamedTuple):
    """A complete fault record; the fields are those of the table above.

    ``claim`` is None where the record says `NOTHING`.
    """

    kind: FaultKind
    site: int
    claim: int | None
    thread: tuple[int, int, int]
    line: int
    address: int
    file: int
    function: int


def fault_of(job: bytes | bytearray | memoryview) -> FaultRecord | None:
    """Decode the fault in a job record; None if there is none, or it is not complete yet.

    Args:
        job: `JOB_BYTES` bytes or more that begin with the job record.

    Raises:
        ValueError: the fault record is not valid: the kernel has overwritten it.
    """
    state, kind, site, claim, x, y, z, line, *rest = _RECORD.unpack_from(job, FAULT)
    if state != COMPLETE:
        return None
    address, file, function = rest
    known = None if claim == NOTHING else claim
    return FaultRecord(FaultKind(kind), site, known, (x, y, z), line, address, file, function)
