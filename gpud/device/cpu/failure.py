"""Why a block was ended, read from its header: from words in memory to the error of its job.

Problem: the block has left its seat's memory as it was when a thread failed; what it says of the
task block depends on the form of the launch, and its strings are pointers of a kernel.

Approach: the header's fields become a `gpud.compiler.fault_record.FaultRecord`, the same that a
device without headers reads from the job's record, and `gpud.device.faults` makes the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.compiler import control_words as cw
from gpud.compiler.dividers import coordinates
from gpud.compiler.fault_record import FaultKind, FaultRecord
from gpud.device.cpu.codegen.calls import FRAMES_BYTES
from gpud.device.cpu.codegen.layout import HEADER, Failure, Space
from gpud.device.cpu.records import NONE
from gpud.device.cpu.seat import Seat, word_of
from gpud.device.faults import error_of
from gpud.device.reach import Reach
from gpud.errors import IllegalAddress, KernelTrap

if TYPE_CHECKING:
    from gpud.device.cpu.chain import Chain

__all__ = ["failure_of"]

_KINDS = {
    Failure.TRAP: FaultKind.TRAP,
    Failure.ASSERT: FaultKind.ASSERT,
    Failure.ADDRESS: FaultKind.ADDRESS,
    Failure.MISALIGNED: FaultKind.MISALIGNED,
    Failure.BREAKPOINT: FaultKind.BREAKPOINT,
    Failure.TARGET: FaultKind.TARGET,
}
_SPACES = {
    Space.GLOBAL: "global",
    Space.SHARED: "shared",
    Space.LOCAL: "local",
    Space.CONST: "const",
    Space.PARAM: "param",
}
_DEADLOCK = (
    "deadlock: every thread of a block waits at a barrier or a warp collective that others of the "
    "block will never reach"
)
_STACK = (
    f"stack exhausted: calls inside each other need more than {FRAMES_BYTES} bytes for their local "
    "variables; end the recursion earlier, or keep less in each call"
)


def failure_of(seat: Seat, chain: Chain) -> IllegalAddress | KernelTrap | None:
    """What a job fails with whose block in ``seat`` was ended; None if it was told to end."""
    error, stage = _read(seat, "error"), _read(seat, "stage")
    if error == Failure.KILLED:
        return None
    launched = chain.launches[stage]
    launch = stage if len(chain.launches) > 1 else None
    claim = _claim(seat, launched.form, launched.grid)
    place = None if claim is None else coordinates(claim, launched.grid)
    if error == Failure.DEADLOCK:
        return KernelTrap(_DEADLOCK, kernel=launched.name, launch=launch, task_block=place)
    line = _read(seat, "error_line")
    thread = _thread(_read(seat, "error_thread"), chain.blocks[stage])
    if error == Failure.STACK:
        return KernelTrap(
            _STACK,
            kernel=launched.name,
            launch=launch,
            task_block=place,
            thread=thread,
        )
    kind = _KINDS.get(error, FaultKind.TRAP)
    site = _read(seat, "error_site")
    record = FaultRecord(
        kind,
        -1 if site == NONE else site,
        claim,
        thread,
        line,
        _read(seat, "error_address"),
        _read(seat, "error_file"),
        _read(seat, "error_function"),
    )
    return error_of(
        record,
        Reach(chain.reach(stage, seat.block)),
        kernel=launched.name,
        grid=launched.grid,
        launch=launch,
        space=_SPACES.get(_read(seat, "error_space"), "global"),
        line=None if kind == FaultKind.ASSERT else line or None,
    )


def _read(seat: Seat, name: str) -> int:
    """A field of the seat or of its block's header, as an unsigned number."""
    at = word_of(name)
    value: int = seat.words[at]
    if name in HEADER and HEADER[name][1] == "i64":
        value |= seat.words[at + 1] << 32
    return value


def _claim(seat: Seat, form: str, grid: tuple[int, int, int]) -> int | None:
    """The number of the task block; None if nobody knows."""
    claim = _read(seat, "error_claim")
    if _read(seat, "error") not in (Failure.DEADLOCK, Failure.NONE) and claim != cw.NOTHING:
        return claim
    if form == "persistent":
        claim = _read(seat, "claim")
        return None if claim == cw.NOTHING else claim
    x, y, z = (_read(seat, f"ctaid_{axis}") for axis in "xyz")
    return x if form == "sliced" else (z * grid[1] + y) * grid[0] + x


def _thread(number: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    """The coordinates of a thread from its number, x fastest."""
    rows, x = divmod(number, block[0])
    z, y = divmod(rows, block[1])
    return x, y, z
