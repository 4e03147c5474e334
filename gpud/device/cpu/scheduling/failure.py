"""Converts the header of a failed block into the error of its job.

Problem: a block's memory is as it was when a thread failed; where it holds the task block's
number depends on the form of the launch, and its strings are pointers from a kernel.

Approach: the header's fields become a `gpud.compiler.abi.fault_record.FaultRecord`, as a GPU
leaves it in the job's record, and `gpud.device.faults` makes the error.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.fast_division import coordinates
from gpud.compiler.abi.fault_record import FaultKind, FaultRecord
from gpud.device.cpu.abi.layout import HEADER, Failure, Space
from gpud.device.cpu.abi.records import NONE
from gpud.device.cpu.codegen.emit.call_checks import STACK_BYTES
from gpud.device.cpu.scheduling.layout import SequenceLayout
from gpud.device.cpu.scheduling.persistent_block import PersistentBlock, word_of
from gpud.device.faults import error_of
from gpud.device.readable import ReadableRanges
from gpud.errors import IllegalAddress, KernelTrap

__all__ = ["failure_of", "spinning_error", "thread_of"]

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
    f"stack exhausted: calls inside each other need more than {STACK_BYTES} bytes for their local "
    "variables; end the recursion earlier, or keep less in each call"
)


def failure_of(
    block: PersistentBlock, layout: SequenceLayout
) -> IllegalAddress | KernelTrap | None:
    """Return the error of a job whose ``block`` failed; None if the block was killed."""
    error, number = _read(block, "error"), _read(block, "launch")
    if error == Failure.KILLED:
        return None
    launched = layout.launches[number]
    launch = number if len(layout.launches) > 1 else None
    claim = _claim(block, launched.form, launched.grid)
    place = None if claim is None else coordinates(claim, launched.grid)
    if error == Failure.DEADLOCK:
        return KernelTrap(_DEADLOCK, kernel=launched.name, launch=launch, task_block=place)
    line = _read(block, "error_line")
    thread = thread_of(_read(block, "error_thread"), layout.block_shapes[number])
    if error == Failure.STACK:
        return KernelTrap(
            _STACK,
            kernel=launched.name,
            launch=launch,
            task_block=place,
            thread=thread,
        )
    kind = _KINDS.get(error, FaultKind.TRAP)
    site = _read(block, "error_site")
    record = FaultRecord(
        kind,
        -1 if site == NONE else site,
        claim,
        thread,
        line,
        _read(block, "error_address"),
        _read(block, "error_file"),
        _read(block, "error_function"),
    )
    return error_of(
        record,
        ReadableRanges(layout.reach(number, block.address)),
        kernel=launched.name,
        grid=launched.grid,
        launch=launch,
        space=_SPACES.get(_read(block, "error_space"), "global"),
        text=layout.kernel_of(number).module.text,
        line=None if kind == FaultKind.ASSERT else line or None,
    )


def spinning_error(layout: SequenceLayout, launch: int, blocks: int, left: int) -> KernelTrap:
    """Return the error of a job whose blocks all wait in loops while others have not begun.

    Args:
        layout: of its sequence.
        launch: the index of its current launch.
        blocks: resident blocks.
        left: task blocks that have not begun.
    """
    launched = layout.launches[launch]
    if layout.fixed_launches[launch]:
        advice = "use no more than fit at once, or do not wait for later ones"
    else:
        advice = "if they wait for these, say progress='blocks', so that all are resident at once"
    who = "its resident block waits" if blocks == 1 else f"its {blocks} resident blocks wait"
    rest = f"{left} of its {layout.totals[launch]} task blocks have not begun"
    return KernelTrap(
        f"deadlock: {who} in loops that nothing in the job ends, and {rest}; {advice}",
        kernel=launched.name,
        launch=launch if len(layout.launches) > 1 else None,
    )


def _read(block: PersistentBlock, name: str) -> int:
    """Return a field of the block's record or header, as an unsigned number."""
    at = word_of(name)
    value: int = block.words[at]
    if name in HEADER and HEADER[name][1] == "i64":
        value |= block.words[at + 1] << 32
    return value


def _claim(block: PersistentBlock, form: str, grid: tuple[int, int, int]) -> int | None:
    """Return the number of the task block; None if it is unknown."""
    claim = _read(block, "error_claim")
    if _read(block, "error") not in (Failure.DEADLOCK, Failure.NONE) and claim != cw.NOTHING:
        return claim
    if form == "persistent":
        claim = _read(block, "claim")
        return None if claim == cw.NOTHING else claim
    x, y, z = (_read(block, f"ctaid_{axis}") for axis in "xyz")
    return x if form == "sliced" else (z * grid[1] + y) * grid[0] + x


def thread_of(number: int, block: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the coordinates of a thread from its number, x fastest."""
    rows, x = divmod(number, block[0])
    z, y = divmod(rows, block[1])
    return x, y, z
