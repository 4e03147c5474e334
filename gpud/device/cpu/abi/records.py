"""The layout of the records in memory that Python and the native SM loop share.

Six kinds, all little-endian and naturally aligned.

* `SM`: one for each virtual SM: its slots, the persistent blocks to add, those that have left.
* `RUN`: one for each run: the current launch, the run's slices, whether it must stop; then its
  `SHARE` of each SM, then the launches' records, then their parameters.
* `LAUNCH`: one for each launch of the sequence: the job record that the kernel reads
  (`gpud.compiler.abi.control_words`), and what a persistent block needs to run this launch.
* `LANE`: one for each lane: what was read of its ring, and the launch that runs.
* `BLOCK`: one for each resident block, `BLOCK_BYTES` in front of the block's header: its current
  launch, and the control words that the kernel reads.

Offsets are bytes.
"""

from __future__ import annotations

from typing import Final

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import align_up

__all__ = [
    "BLOCK",
    "BLOCK_BYTES",
    "CONTROL",
    "LANE",
    "LANE_BYTES",
    "LANE_COPY",
    "LANE_LAUNCHES",
    "LAUNCH",
    "LAUNCH_BYTES",
    "MAX_SLOTS",
    "NONE",
    "RUN",
    "RUN_BYTES",
    "SHARE",
    "SHARE_BYTES",
    "SM",
    "SM_BYTES",
    "SM_GONE",
    "SM_INBOX",
    "SM_SHARES",
    "SM_SLOTS",
    "STATUS",
    "BlockState",
    "ClaimMode",
    "ExitReason",
    "Lent",
    "Standby",
    "launches_at",
]

Fields = dict[str, tuple[int, str]]

NONE: Final = 0xFFFFFFFF
"""No launch, no index, no offset."""

MAX_SLOTS: Final = 64
"""Slots of one SM, a power of two; no real SM holds more than 32 blocks."""


class ClaimMode:
    """What claims a launch's task blocks."""

    KERNEL = 0
    """The kernel itself: persistent form."""
    LOOP = 1
    """The SM loop: all other forms."""


class BlockState:
    """The state of a persistent block."""

    IDLE = 0
    """It is in no kernel."""
    RUNS = 1
    """It makes progress."""
    POLLS = 2
    """It waits in a loop for another block."""


class ExitReason:
    """Why a persistent block has left its SM."""

    OVER = 0
    """Nothing is left to run, or it was released."""
    FAILED = 1
    """It failed or was killed."""


def _fields(*fields: tuple[str, str]) -> tuple[Fields, int]:
    offsets, at = {}, 0
    for name, type_ in fields:
        size = 4 if type_ == "i32" else 8
        at = align_up(at, size)
        offsets[name] = (at, type_)
        at += size
    return offsets, align_up(at, 64)


SM, _sm_head = _fields(
    ("next_turn_ns", "i64"),
    ("turn_since_ns", "i64"),
    ("virtual_ns", "i64"),
    ("processor_ns", "i64"),
    ("short_ns", "i64"),
    ("shares", "i32"),
    ("doorbell", "i32"),
    ("sleeping", "i32"),
    ("closing", "i32"),
    ("index", "i32"),
    ("count", "i32"),
    ("gone", "i32"),
    ("spinning", "i32"),
    ("begins", "i32"),
    ("kept", "i32"),
    ("inbox_head", "i32"),
    ("inbox_tail", "i32"),
)
"""``doorbell``: set when a block is added or the SM must end; ``sleeping``: whether the SM's thread
waits for it. ``count``: slots in use; ``gone``: blocks that have left and are not reported yet.
``spinning``: a block here has been still for long (`gpud.device.cpu.sm.stillness`).
``begins``: for so many rounds Python does not hear of blocks that have left, as a lane's block
begins; ``kept``: for how many it has not. The inbox is a ring buffer.
``next_turn_ns``: when a released block may have its next turn beside others;
``turn_since_ns``: when the turn of a released block began, 0 if none has one. ``shares``: how many
runs have blocks here; ``virtual_ns``: the SM's virtual time, see
`gpud.device.cpu.sm.fair_turns`; ``processor_ns``: what the thread had had of a core when that was
read last, ``short_ns``: the turns since then."""

SM_SLOTS: Final = _sm_head
SM_INBOX: Final = SM_SLOTS + 8 * MAX_SLOTS
SM_GONE: Final = SM_INBOX + 8 * MAX_SLOTS
SM_SHARES: Final = SM_GONE + 8 * MAX_SLOTS
SM_BYTES: Final = SM_SHARES + 8 * MAX_SLOTS

RUN, RUN_BYTES = _fields(
    ("first_ns", "i64"),
    ("grid_id", "i64"),
    ("current", "i32"),
    ("launches", "i32"),
    ("slices", "i32"),
    ("occupancy", "i32"),
    ("max_occupancy", "i32"),
    ("fixed", "i32"),
    ("stop", "i32"),
    ("launches_at", "i32"),
    ("kill", "i32"),
    ("watched_bytes", "i32"),
    ("lane", "ptr"),
)
"""``first_ns``: when the first block began, on the monotonic clock. ``current``: the launch whose
task blocks may run, of ``launches``. ``occupancy`` is M of the sequence, ``max_occupancy`` the
largest M of a launch. ``fixed``: blocks that no resize takes away, the most that a launch in form
whole needs.
``stop``: no block begins another task block. ``launches_at``: bytes to the first launch's record.
``kill``: blocks get no further turn, and those with kill polls end at their next one.
``watched_bytes``: memory of a block in which changes are looked for, 0 for none.
``lane``: the `LANE` whose launches it runs; 0: it runs its own."""

SHARE, SHARE_BYTES = _fields(
    ("virtual_ns", "i64"),
    ("paid_ns", "i64"),
    ("busy", "i32"),
    ("blocks", "i32"),
    ("throttled", "i32"),
    ("standby", "i32"),
    ("rate", "i32"),
)
"""What a run has of one SM, in a cache line of its own, written by that SM's thread alone except
for ``standby``, a `Standby`, and ``rate``: the most of the SM's time, 0: all of it. ``paid_ns``:
when the turns that it had are paid, see `gpud.device.cpu.sm.quotas`.
``blocks``: its persistent blocks there; ``busy``: how many of them are in state `RUNS`.
``virtual_ns``: the time that these had, weighted, see `gpud.device.cpu.sm.fair_turns`.
``throttled``: whether its last turn was refused because the block is released."""

LAUNCH, _launch_rest = _fields(
    ("template", "i64"),
    ("params", "i64"),
    ("mode", "i32"),
    ("fixed", "i32"),
    ("occupancy", "i32"),
    ("params_bytes", "i32"),
    ("control_at", "i32"),
    ("width", "i32"),
    ("height", "i32"),
    ("params_at", "i32"),
    ("locals_at", "i32"),
    ("shared_at", "i32"),
    ("users", "i32"),
    ("number", "i32"),
)
"""``users``: in a lane, the blocks that may read or write the record, and in a launch site the size
of the parameters; ``number``: in a lane, that of the launch. ``template``: address of the beginning
of a block's header; ``params``: bytes from the run's record to the launch's parameters, with the
hidden one at offset ``control_at``. ``mode``: a `ClaimMode`. ``width`` and ``height``: x and y of
the grid that the kernel reads. ``params_at``, ``locals_at``, ``shared_at``: offsets of a block's
parameters, local and shared memory from its address."""

LAUNCH = {
    **{name: (cw.JOB_BYTES + at, type_) for name, (at, type_) in LAUNCH.items()},
    "next": (cw.NEXT, "i32"),
    "total": (cw.TOTAL, "i32"),
    "done": (cw.DONE, "i32"),
}
LAUNCH_BYTES: Final = cw.JOB_BYTES + _launch_rest


class Standby:
    """Whether a lane's block may begin that stays on its SM while the lane lends its share."""

    NO = 0
    """It is one like all others."""
    WAITS = 1
    """It has no room, or none that is known."""
    READY = 2
    """It has room once the take-back plan was carried out, and blocks have left because of it."""
    LEAVING = 3
    """It has room once the blocks have left that are to leave its SM."""


class Lent:
    """What becomes of a lane's share. Python and native code change it, by exchanges."""

    NO = 0
    """The lane has it."""
    OPEN = 1
    """It is lent, and Python takes it back: there is no plan, or it is just being changed."""
    PLANNED = 2
    """It is lent, and whoever sees a record takes it back: ``rows`` has the plan."""
    TAKING = 3
    """Somebody carries the plan out."""
    TAKEN = 4
    """The plan was carried out, and Python has not taken up the lane yet."""


LANE, _lane_head = _fields(
    ("ring", "ptr"),
    ("sites", "ptr"),
    ("sms", "ptr"),
    ("rows", "ptr"),
    ("accepted_ns", "i64"),
    ("job_ns", "i64"),
    ("tail", "i32"),
    ("number", "i32"),
    ("site_count", "i32"),
    ("sm_count", "i32"),
    ("current", "i32"),
    ("next_launch", "i32"),
    ("pulling", "i32"),
    ("retire", "i32"),
    ("error", "i32"),
    ("wrong", "i32"),
    ("printed", "i32"),
    ("unreported", "i32"),
    ("skip", "i32"),
    ("skipped", "i32"),
    ("broken", "i32"),
    ("failures", "i32"),
    ("limit_ms", "i32"),
    ("slices", "i32"),
    ("site", "i32"),
    ("woken", "i32"),
    ("lent", "i32"),
    ("row_count", "i32"),
)
"""``ring``: the memory shared with the client, see `gpud.wire.lane_ring`; ``sites``: a `LAUNCH` for
each of ``site_count`` launch sites, complete but for the grid; ``sms``: the addresses of all
``sm_count`` `SM` records. ``tail``: slots that were read; ``number``: of the next launch.
``current``: the run's `LAUNCH` that may be claimed, `NONE` without one; ``site``: its site;
``next_launch``: where the next is put. ``pulling``: whether a thread reads the ring. ``retire``:
nothing more is read, and blocks leave once the present launch is over. ``error``: a `RingError`,
and ``wrong`` what was read. ``printed``: the present launch has output, so Python reports its end:
``unreported``. ``skip``: 1 + the number of a launch that is not to begin, 0 without one;
``skipped``: whether the last one that was read did not. ``broken``: the present job's launches do
not begin, as one of them was not done, or the client has not seen all of the ``failures`` of jobs
before, counted as `gpud.wire.lane_ring.flags` does. ``job_ns``: when that job's first launch was
accepted; ``limit_ms``: how long it may run, 0 without a limit. ``slices``: that the lane has.
``woken``: the value of the ring's ``wanted`` for which the client was woken last. ``lent``: a
`Lent`; ``rows``: addresses of the ``row_count`` blocks that leave when the share is taken back."""

LANE_COPY: Final = _lane_head
"""Offset of the copy of the slot that is being checked."""

LANE_BYTES: Final = _lane_head + 128

LANE_LAUNCHES: Final = 8
"""`LAUNCH` records of a lane's run, used in turn."""


BLOCK, _block_rest = _fields(
    ("run", "ptr"),
    ("share", "ptr"),
    ("spent_ns", "i64"),
    ("checksum", "i64"),
    ("still_ns", "i64"),
    ("seen_ns", "i64"),
    ("polled", "i32"),
    ("found", "i32"),
    ("claimed", "i32"),
    ("index", "i32"),
    ("launch", "i32"),
    ("loaded", "i32"),
    ("state", "i32"),
    ("reason", "i32"),
    ("number", "i32"),
)
"""``index``: its number in the run, `NONE` once it is released. ``launch``: its current launch;
``loaded``: the launch whose header it has. ``state`` is a `BlockState`, ``reason`` an
`ExitReason`. ``share``: the run's `SHARE` of the block's SM. ``claimed``: the launch's claim
counter when this block last saw it change; ``spent_ns``: how long the block has run since.
``polled``: its turns that ended in a polling loop; ``checksum`` of its memory in one of these, and
whether it was ``found`` again; ``still_ns``: since when it was, each time that was looked, 0 if
not; ``seen_ns``: when it was last. ``number``: that of the lane's launch whose
header it has."""

CONTROL: Final = _block_rest
"""Offset of the launch record that the kernel reads, of one block with index 0."""

STATUS: Final = CONTROL + cw.launch_bytes(1)
"""Offset of the status record, which follows it."""

BLOCK_BYTES: Final = 192
assert STATUS + cw.status_bytes(1) <= BLOCK_BYTES


def launches_at(sms: int) -> int:
    """Return how many bytes a run's record lies before its first launch's."""
    return RUN_BYTES + SHARE_BYTES * sms
