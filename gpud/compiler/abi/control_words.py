"""The control words: records in device memory that a rewritten kernel shares with the host.

Problem: persistent blocks of several launches share one job's grid; the host tells launches to
release blocks and watches progress; kernels need block coordinates without dividing.

Approach: records of fixed layout, little-endian, naturally aligned. The hidden last parameter
of a rewritten kernel (``u64 ctl``) is the address of its launch record, which points to the job
record that all launches of a job share. The layout is the same on every device.

Terms: a *task block* is a block of the user's grid, number ``z * gx * gy + y * gx + x``; a
*persistent block* is one that was launched; its index is its raw ``%ctaid.x``; a block *leaves*
when it stops claiming task blocks and ends. SMs are *named* by a bitmap, in which bit s stands for
the SM whose ``%smid`` is s. A *divider* is a multiplier and a shift: see
`gpud.compiler.abi.fast_division`.

Launch record, at a multiple of 8. It ends with an array of pairs of words, ``stays`` and ``named``,
one pair for every 32 persistent blocks; a block reads its pair with one load:

====== ===== ======== ===========================================================================
offset type  name     meaning
====== ===== ======== ===========================================================================
0      u64   job      address of the job record
8      u64   status   address of the status record
16     u32   base     sliced form: number of this sub-grid's first task block
20     4 B            reserved, 0
24     u32   stays    at 24 + 8 (i / 32), bit i % 32: 1: persistent block i stays, 0: it releases.
                      Written by the host
28     u32   named    distance from the job record to the 32-byte bitmap that names SMs: persistent
                      blocks on a named SM release; 0: no SM is named. Written by the host, in all
                      pairs
====== ===== ======== ===========================================================================

Status record, at a multiple of 8: what blocks report:

====== ===== ======== ===========================================================================
offset type  name     meaning
====== ===== ======== ===========================================================================
0      u32   live     persistent blocks that have not left; the host sets it to their number
                      before the launch, each block that leaves subtracts 1; unused in sliced form.
                      Their writes are visible when the launch is over, not when this is 0
4      u32   begun    not 0: the first block of a launch that is not in persistent form has begun
8      u16   sm       persistent form: 1 + ``%smid`` of block i, at 8 + 2 i; 0: it has not begun
10     u8    left     persistent form: 1: block i has left, at 8 + 2 n + i of n blocks; else 0
====== ===== ======== ===========================================================================

``begun``, ``sm`` and ``left`` are used on the CUDA device only
(`gpud.device.cuda.program.report_blocks`), and ``live`` on the CPU device only: there blocks share
memory with the host, here a bus.

Job record, 128 bytes:

====== ===== ============ =======================================================================
offset type  name         meaning
====== ===== ============ =======================================================================
0      u32   next         the first task block of the next claim; may exceed ``total`` by
                          `MOST_CLAIMED` for each persistent block of the job, never wraps
4      u32   total        gx * gy * gz, at most 2**31 - 1
8      u32   grid_x       the user's grid
12     u32   grid_y
16     u32   grid_z
20     u32   flags        bit 0 (`ONE_DIMENSIONAL`): gy = gz = 1
24     2 u32 grid_sync    0 at first; the workspace of cooperative groups' ``grid.sync()``, written
                          by the user's program: `gpud.compiler.passes.forms.grid_sync`
32     u32   x_multiplier divider by grid_x
36     u32   x_shift
40     u32   y_multiplier divider by grid_y
44     u32   y_shift
48     u32   chunk        task blocks that a block claims at once when it holds none, 1 to
                          `MOST_CLAIMED`
52     u32   ahead        task blocks that a block claims in advance, when it begins the last one
                          that it holds; 0: it claims none in advance
56     u32   done         task blocks that every thread has finished
60     u32   kill         written by the host: not 0: blocks leave at their next kill poll
64     56 B  fault        the job's first fault: `gpud.compiler.abi.fault_record`
120    u64   output       distance from this record to the run's output record
                          (`gpud.compiler.abi.print_buffer`); 0: output is not collected
====== ===== ============ =======================================================================

``done`` and ``kill`` lie in another sector of 32 bytes than ``next``: a GPU makes atomics on one
sector one after the other.

Host and device read and write each word whole, with one access of its own size: the memory model
of PTX guarantees nothing between accesses of different sizes (PTX ISA 9.0, chapter 8).
Words that the host sets before a launch and blocks never change are read as constants
(``ld.global.nc``): ``job``, ``status``, ``base``, ``total`` to ``flags``, the dividers, ``chunk``,
``ahead``.

Properties:
* the NumPy dtypes made of `LAUNCH_RECORD`, for 32 persistent blocks, `STATUS_RECORD`, for one, and
  `JOB_RECORD` have exactly these offsets and sizes;
* claimed = min(next, total) and done <= claimed at all times;
* ``never_wraps``: ``next`` stays below 2**32. A persistent block claims no more after a claim
  beyond ``total``, so it takes ``next`` at most `MOST_CLAIMED` beyond ``total``; and a device holds
  fewer than 2**31 / `MOST_CLAIMED` = 8 million of them at once, all launches of a job together.
  No persistent block is launched when nothing is left to claim.
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
    "left_at",
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
"""Size of a pair of ``stays`` and ``named``, and the distance between pairs."""

BLOCKS_A_PAIR: Final = 32
"""The persistent blocks that share a pair."""

# Byte offsets in the status record.
LIVE: Final = 0
BEGUN: Final = 4
SM: Final = 8

NAMED_BYTES: Final = 32
"""Size of the bitmap that names SMs."""

MOST_SMS: Final = 8 * NAMED_BYTES
"""How many SMs can be named; an SM s beyond them is named if s modulo `MOST_SMS` is."""

# Byte offsets in the job record.
NEXT: Final = 0
TOTAL: Final = 4
GRID: Final = 8
FLAGS: Final = 20
GRID_SYNC: Final = 24
GRID_SYNC_BYTES: Final = 8
X_DIVIDER: Final = 32
Y_DIVIDER: Final = 40
CHUNK: Final = 48
AHEAD: Final = 52
DONE: Final = 56
KILL: Final = 60
FAULT: Final = 64
OUTPUT: Final = 120
JOB_BYTES: Final = 128

ONE_DIMENSIONAL: Final = 1
"""Bit of ``flags``: the grid's y and z are 1."""

NOTHING: Final = 0xFFFFFFFF
"""The claim that tells a block to leave; no task block has this number."""

MAX_TASK_BLOCKS: Final = LARGEST
"""The most task blocks of one job: ``next`` must not wrap, and dividers divide no larger number."""

MOST_CLAIMED: Final = 256
"""The most task blocks that a block claims at once."""

LAUNCH_RECORD: Final = [
    ("job", "<u8"), ("status", "<u8"), ("base", "<u4"), ("reserved0", "V4"), ("stays", "<u4"),
    ("named", "<u4"),
]  # fmt: skip
"""The launch record as fields for `numpy.dtype`; the compiler itself does not need NumPy."""

STATUS_RECORD: Final = [
    ("live", "<u4"),
    ("begun", "<u4"),
    ("sm", "<u2"),
    ("left", "<u1"),
]
"""The status record as fields for `numpy.dtype`."""

JOB_RECORD: Final = [
    ("next", "<u4"), ("total", "<u4"), ("grid_x", "<u4"), ("grid_y", "<u4"), ("grid_z", "<u4"),
    ("flags", "<u4"), ("grid_sync", "<u4", 2), ("x_multiplier", "<u4"),
    ("x_shift", "<u4"), ("y_multiplier", "<u4"), ("y_shift", "<u4"), ("chunk", "<u4"),
    ("ahead", "<u4"), ("done", "<u4"), ("kill", "<u4"),
    ("fault_state", "<u4"), ("fault_kind", "<u4"), ("fault_site", "<u4"), ("fault_claim", "<u4"),
    ("fault_thread", "<u4", 3), ("fault_line", "<u4"), ("fault_address", "<u8"),
    ("fault_file", "<u8"), ("fault_function", "<u8"), ("output", "<u8"),
]  # fmt: skip
"""The job record as fields for `numpy.dtype`."""

_LAUNCH = struct.Struct("<QQI4x")
_PAIR = struct.Struct("<II")
_ALL_STAY = 0xFFFFFFFF
_JOB = struct.Struct("<6I8x4I2I8x56xQ")


class Claims(NamedTuple):
    """How many task blocks the blocks of a job claim at once; the fields are the job record's.

    Kernels whose blocks wait for others ignore it and claim one at a time: see
    `gpud.compiler.passes.forms.claim`.
    """

    chunk: int = 1
    ahead: int = 0

    @property
    def most(self) -> int:
        """The most task blocks that a block claims after it was told to release.

        A block that has just checked may claim a chunk, and, as it runs that, claim in advance.
        """
        return self.chunk + self.ahead


ONE_AT_A_TIME: Final = Claims()
"""No claims in advance: a released block only finishes the task block that it runs."""


def job_record(
    grid: tuple[int, int, int], claims: Claims = ONE_AT_A_TIME, *, output: int = 0
) -> bytes:
    """Encode the job record of a new job, nothing claimed and nothing done: `JOB_BYTES` bytes.

    Args:
        grid: task blocks in x, y, z.
        claims: how many its blocks claim at once.
        output: distance from the job record to the output record in bytes, 0 if there is none.

    Raises:
        ValueError: a dimension is below 1, there are more than `MAX_TASK_BLOCKS`, ``chunk`` is not
            in 1..`MOST_CLAIMED`, or ``ahead`` not in 0..`MOST_CLAIMED`.
    """
    total = prod(grid)
    if min(grid) < 1 or total > MAX_TASK_BLOCKS:
        raise ValueError(f"a grid has 1 to {MAX_TASK_BLOCKS} task blocks, not {grid}")
    if not (1 <= claims.chunk <= MOST_CLAIMED and 0 <= claims.ahead <= MOST_CLAIMED):
        raise ValueError(f"a block claims 1 to {MOST_CLAIMED} task blocks at once, not {claims}")
    x, y, z = grid
    flags = ONE_DIMENSIONAL if y == z == 1 else 0
    return _JOB.pack(0, total, x, y, z, flags, *divider(x), *divider(y), *claims, output)


def launch_bytes(blocks: int) -> int:
    """Return the size of a launch record for ``blocks`` persistent blocks, 0 in other forms."""
    return ORDERS + ORDER_BYTES * -(-blocks // BLOCKS_A_PAIR)


def status_bytes(blocks: int) -> int:
    """Return the size of a status record for ``blocks`` persistent blocks, a multiple of 8."""
    return -(-(left_at(blocks) + blocks) // 8) * 8


def left_at(blocks: int) -> int:
    """Return the offset of the first ``left`` in a status record for ``blocks`` blocks."""
    return SM + 2 * blocks


def launch_record(job: int, status: int, blocks: int, *, base: int = 0, named: int = 0) -> bytes:
    """Encode a launch record, `launch_bytes` long, that tells no block to release.

    Args:
        job: device address of the job record.
        status: device address of the status record.
        blocks: persistent blocks; 0 in other forms.
        base: sliced form: the sub-grid's first task block.
        named: device address of a bitmap as `named_sms` makes it, 0: no SM is named.

    Raises:
        ValueError: as `named_at`.
    """
    pair = _PAIR.pack(_ALL_STAY, named_at(job, named))
    return _LAUNCH.pack(job, status, base) + pair * -(-blocks // BLOCKS_A_PAIR)


def status_record(blocks: int) -> bytes:
    """Encode the status record, `status_bytes` long, of a launch that has not begun.

    Args:
        blocks: persistent blocks; 0 in other forms.
    """
    return blocks.to_bytes(4, "little").ljust(status_bytes(blocks), b"\0")


def named_at(job: int, named: int) -> int:
    """Return a launch record's ``named``, from the addresses of job record and bitmap.

    Args:
        job: device address of the job record.
        named: device address of the bitmap, 0: no SM is named.

    Raises:
        ValueError: the bitmap is not above the job record, or is 4 GiB above it or more.
    """
    if not named:
        return 0
    if not job < named < job + 2**32:
        raise ValueError(f"the bitmap at {named:#x} is not behind the job record at {job:#x}")
    return named - job


def named_sms(sms: Iterable[int]) -> bytes:
    """Encode the bitmap that names ``sms``: `NAMED_BYTES` bytes.

    Raises:
        ValueError: a number is not in 0..`MOST_SMS` - 1.
    """
    bits = 0
    for number in sms:
        if not 0 <= number < MOST_SMS:
            raise ValueError(f"SMs 0 to {MOST_SMS - 1} can be named, not {number}")
        bits |= 1 << number
    return bits.to_bytes(NAMED_BYTES, "little")
