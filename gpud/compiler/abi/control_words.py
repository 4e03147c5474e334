"""The words in device memory through which a launch, its job and the host talk.

Problem: persistent blocks of several launches share one job's grid; the host tells launches to
release blocks and watches progress; kernels need block coordinates without dividing.

Approach: records of fixed layout, little-endian, naturally aligned. The hidden last parameter
of a rewritten kernel (``u64 ctl``) is the address of its launch record, which points to the job
record that all launches of a job share. The same bytes serve every device.

Terms: a *task block* is a block of the user's grid, number ``z * gx * gy + y * gx + x``; a
*persistent block* is one that was launched; its index is its raw ``%ctaid.x``; a block *leaves*
when it runs no further task block. SMs are *named* by a bitmap, in which bit s stands for the SM
whose ``%smid`` is s. A *divider* is a multiplier and a shift: see
`gpud.compiler.abi.fast_division`.

Launch record, at a multiple of 8. Of its last two words there is a pair for each 32 persistent
blocks, one behind the other; a block reads its pair at once:

====== ===== ======== ===========================================================================
offset type  name     meaning
====== ===== ======== ===========================================================================
0      u64   job      address of the job record
8      u64   status   address of the status record
16     u32   base     sliced form: number of this sub-grid's first task block
20     4 B            reserved, 0
24     u32   stays    at 24 + 8 (i / 32), bit i % 32: persistent block i stays; where it is 0 the
                      block releases. Written by the host
28     u32   named    distance from the job record to the 32 bytes that name SMs: persistent blocks
                      on one of them release; 0: none is named. Written by the host, in all pairs
====== ===== ======== ===========================================================================

Status record, at a multiple of 8: what blocks tell of themselves, and one word for them, in memory
that the host sees, wherever the launch record is:

====== ===== ======== ===========================================================================
offset type  name     meaning
====== ===== ======== ===========================================================================
0      u32   live     persistent blocks that have not left; the host sets it to their number
                      before the launch, each leaver subtracts 1; unused in slices. What they
                      wrote can be seen when the launch is over, not when this is 0
4      u32   begun    not 0: the first block of a launch that is not in persistent form has begun
8      u32   halt     not 0: all persistent blocks release; written by the host. It is read now
                      and then, where the launch record is not in the host's memory
12     u16   sm       persistent form: 1 + ``%smid`` of block i, at 12 + 2 i; 0: it has not begun.
                      These three on the CUDA device only: `gpud.device.cuda.program`,
                      ``report_starts`` and ``host_poll``
====== ===== ======== ===========================================================================

Job record, 128 bytes:

====== ===== ============ =======================================================================
offset type  name         meaning
====== ===== ============ =======================================================================
0      u32   next         the task block that the next claim gets; may pass ``total`` by
                          `MOST_CLAIMED` for each persistent block that there was, never wraps
4      u32   total        gx * gy * gz, at most 2**31 - 1
8      u32   grid_x       the user's grid
12     u32   grid_y
16     u32   grid_z
20     u32   flags        bit 0 (`ONE_DIMENSIONAL`): gy = gz = 1
24     u32   done         task blocks that every thread has finished
28     u32   kill         written by the host: not 0 tells blocks to leave at their next poll
32     u32   x_multiplier divider by grid_x
36     u32   x_shift
40     u32   y_multiplier divider by grid_y
44     u32   y_shift
48     u32   chunk        task blocks that a block claims at once if it holds none, 1 to
                          `MOST_CLAIMED`
52     u32   ahead        task blocks that a block claims as it begins with the last one that it
                          holds, to have them when it is done; 0: it claims nothing then
56     2 u32 grid_sync    0 at first; the workspace of cooperative groups' ``grid.sync()``, which
                          the program writes as it likes: `gpud.compiler.passes.forms.grid_sync`
64     56 B  fault        what went wrong first: `gpud.compiler.abi.fault_record`
120    u64   output       distance from this record to the run's output record
                          (`gpud.compiler.abi.print_buffer`); 0: nobody listens
====== ===== ============ =======================================================================

Each word is read and written whole, by host and device, with one access of its own size: between
accesses of different sizes the memory model of PTX promises nothing (PTX ISA 9.0, chapter 8).
What blocks do not change and the host sets before a launch, blocks read as constants
(``ld.global.nc``): ``job``, ``status``, ``base``, ``total`` to ``flags``, the dividers, ``chunk``,
``ahead``.

Properties:
* the NumPy dtypes made of `LAUNCH_RECORD`, for 32 persistent blocks, `STATUS_RECORD`, for one, and
  `JOB_RECORD` have exactly these offsets and sizes;
* claimed = min(next, total) and done <= claimed at all times;
* ``never_wraps``: ``next`` stays below 2**32. A persistent block claims nothing more after it has
  found nothing, so it takes ``next`` at most `MOST_CLAIMED` beyond ``total``; and a device holds
  fewer than 2**31 / `MOST_CLAIMED` = 8 million of them at once, all launches of a job together.
  None is begun when nothing is left to claim.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from math import prod
from typing import Final, NamedTuple

from gpud.compiler.abi.fast_division import LARGEST, divider

__all__ = [
    "AHEAD",
    "BASE",
    "BEGUN",
    "BLOCKS_A_PAIR",
    "CHUNK",
    "DONE",
    "FAULT",
    "FLAGS",
    "GRID",
    "GRID_SYNC",
    "GRID_SYNC_BYTES",
    "HALT",
    "JOB",
    "JOB_BYTES",
    "JOB_RECORD",
    "KILL",
    "LAUNCH_RECORD",
    "LIVE",
    "MAX_TASK_BLOCKS",
    "MOST_CLAIMED",
    "MOST_SMS",
    "NAMED",
    "NAMED_BYTES",
    "NEXT",
    "NOTHING",
    "ONE_AT_A_TIME",
    "ONE_DIMENSIONAL",
    "ORDERS",
    "ORDER_BYTES",
    "OUTPUT",
    "SM",
    "STATUS",
    "STATUS_RECORD",
    "STAYS",
    "TOTAL",
    "X_DIVIDER",
    "Y_DIVIDER",
    "Claims",
    "job_record",
    "launch_bytes",
    "launch_record",
    "named_at",
    "named_sms",
    "status_bytes",
    "status_record",
]

# Byte offsets in the launch record.
JOB: Final = 0
STATUS: Final = 8
BASE: Final = 16
ORDERS: Final = 24
STAYS: Final = ORDERS
NAMED: Final = ORDERS + 4
ORDER_BYTES: Final = 8
"""Of the pair that is for `BLOCKS_A_PAIR` persistent blocks; pairs are at multiples of it."""

BLOCKS_A_PAIR: Final = 32

# Byte offsets in the status record.
LIVE: Final = 0
BEGUN: Final = 4
HALT: Final = 8
SM: Final = 12

NAMED_BYTES: Final = 32
"""Of the bitmap that names SMs."""

MOST_SMS: Final = 8 * NAMED_BYTES
"""The SMs that can be named; what lies above is named with the one of the same last bits."""

# Byte offsets in the job record.
NEXT: Final = 0
TOTAL: Final = 4
GRID: Final = 8
FLAGS: Final = 20
DONE: Final = 24
KILL: Final = 28
X_DIVIDER: Final = 32
Y_DIVIDER: Final = 40
CHUNK: Final = 48
AHEAD: Final = 52
GRID_SYNC: Final = 56
GRID_SYNC_BYTES: Final = 8
FAULT: Final = 64
OUTPUT: Final = 120
JOB_BYTES: Final = 128

ONE_DIMENSIONAL: Final = 1
"""Bit of ``flags``: the grid's y and z are 1."""

NOTHING: Final = 0xFFFFFFFF
"""The claim that means "leave"; no task block has this number."""

MAX_TASK_BLOCKS: Final = LARGEST
"""The most task blocks of one job: claims must not wrap, and dividers take no more."""

MOST_CLAIMED: Final = 256
"""The most task blocks that a block claims at once."""

LAUNCH_RECORD: Final = [
    ("job", "<u8"), ("status", "<u8"), ("base", "<u4"), ("reserved0", "V4"), ("stays", "<u4"),
    ("named", "<u4"),
]  # fmt: skip
"""The launch record as `numpy.dtype` takes it; the compiler itself does without NumPy."""

STATUS_RECORD: Final = [("live", "<u4"), ("begun", "<u4"), ("halt", "<u4"), ("sm", "<u2")]
"""The status record as `numpy.dtype` takes it."""

JOB_RECORD: Final = [
    ("next", "<u4"), ("total", "<u4"), ("grid_x", "<u4"), ("grid_y", "<u4"), ("grid_z", "<u4"),
    ("flags", "<u4"), ("done", "<u4"), ("kill", "<u4"), ("x_multiplier", "<u4"),
    ("x_shift", "<u4"), ("y_multiplier", "<u4"), ("y_shift", "<u4"), ("chunk", "<u4"),
    ("ahead", "<u4"), ("grid_sync", "<u4", 2),
    ("fault_state", "<u4"), ("fault_kind", "<u4"), ("fault_site", "<u4"), ("fault_claim", "<u4"),
    ("fault_thread", "<u4", 3), ("fault_line", "<u4"), ("fault_address", "<u8"),
    ("fault_file", "<u8"), ("fault_function", "<u8"), ("output", "<u8"),
]  # fmt: skip
"""The job record as `numpy.dtype` takes it."""

_LAUNCH = struct.Struct("<QQI4x")
_PAIR = struct.Struct("<II")
_ALL_STAY = 0xFFFFFFFF
_JOB = struct.Struct("<7I4x4I2I8x56xQ")


class Claims(NamedTuple):
    """How the blocks of a job claim; the fields are those of the job record.

    Kernels whose blocks wait for others take no notice of it: see
    `gpud.compiler.passes.forms.claim`.
    """

    chunk: int = 1
    ahead: int = 0

    @property
    def most(self) -> int:
        """Task blocks that a block may claim between two looks at whether it is released.

        One look may be followed by a claim of a chunk, and by one in advance while it runs that.
        """
        return self.chunk + self.ahead


ONE_AT_A_TIME: Final = Claims()
"""Nothing in advance: a released block runs the task block that it is in."""


def job_record(
    grid: tuple[int, int, int], claims: Claims = ONE_AT_A_TIME, *, output: int = 0
) -> bytes:
    """The job record of a fresh job, nothing claimed and nothing done: `JOB_BYTES` bytes.

    Args:
        grid: task blocks in x, y, z.
        claims: how its blocks claim.
        output: distance to the output record in bytes, 0 if there is none.

    Raises:
        ValueError: a dimension is below 1, there are more than `MAX_TASK_BLOCKS`, or claims are
            not of 1 to `MOST_CLAIMED`.
    """
    total = prod(grid)
    if min(grid) < 1 or total > MAX_TASK_BLOCKS:
        raise ValueError(f"a grid has 1 to {MAX_TASK_BLOCKS} task blocks, not {grid}")
    if not (1 <= claims.chunk <= MOST_CLAIMED and 0 <= claims.ahead <= MOST_CLAIMED):
        raise ValueError(f"a block claims 1 to {MOST_CLAIMED} task blocks at once, not {claims}")
    x, y, z = grid
    flags = ONE_DIMENSIONAL if y == z == 1 else 0
    return _JOB.pack(0, total, x, y, z, flags, 0, *divider(x), *divider(y), *claims, output)


def launch_bytes(blocks: int) -> int:
    """The size of the launch record of so many persistent blocks; 0: there are none."""
    return ORDERS + ORDER_BYTES * -(-blocks // BLOCKS_A_PAIR)


def status_bytes(blocks: int) -> int:
    """The size of the status record of so many persistent blocks, a multiple of 8."""
    return -(-(SM + 2 * blocks) // 8) * 8


def launch_record(job: int, status: int, blocks: int, *, base: int = 0, named: int = 0) -> bytes:
    """The launch record of a launch, none of whose blocks is told to release: `launch_bytes`.

    Args:
        job: device address of the job record.
        status: device address of the status record.
        blocks: persistent blocks; 0 in other forms.
        base: sliced form: the sub-grid's first task block.
        named: device address of a bitmap as `named_sms` makes it, 0: no SM is named.

    Raises:
        ValueError: the bitmap is not behind the job record.
    """
    pair = _PAIR.pack(_ALL_STAY, named_at(job, named))
    return _LAUNCH.pack(job, status, base) + pair * -(-blocks // BLOCKS_A_PAIR)


def status_record(blocks: int) -> bytes:
    """The status record of a launch that has not begun: `status_bytes`.

    Args:
        blocks: persistent blocks; 0 in other forms.
    """
    return blocks.to_bytes(4, "little").ljust(status_bytes(blocks), b"\0")


def named_at(job: int, named: int) -> int:
    """The word ``named`` of a launch record, from the addresses of job record and bitmap.

    Args:
        job: device address of the job record.
        named: device address of the bitmap, 0: no SM is named.

    Raises:
        ValueError: the bitmap is not behind the job record, or 4 GiB from it or more.
    """
    if not named:
        return 0
    if not job < named < job + 2**32:
        raise ValueError(f"the bitmap at {named:#x} is not behind the job record at {job:#x}")
    return named - job


def named_sms(sms: Iterable[int]) -> bytes:
    """The bitmap that names these SMs: `NAMED_BYTES` bytes.

    Raises:
        ValueError: a number is not in 0..`MOST_SMS` - 1.
    """
    bits = 0
    for number in sms:
        if not 0 <= number < MOST_SMS:
            raise ValueError(f"SMs 0 to {MOST_SMS - 1} can be named, not {number}")
        bits |= 1 << number
    return bits.to_bytes(NAMED_BYTES, "little")
