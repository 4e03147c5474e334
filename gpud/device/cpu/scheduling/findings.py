"""Reads what a run's kernels have written to their session's board in the checking mode.

The board is memory that the client can write, too: its numbers are checked, and any of them gives
a finding.
"""

from __future__ import annotations

import ctypes

import numpy as np

from gpud.checked_memory import (
    CURRENT,
    FINDING,
    FINDING_BYTES,
    FINDINGS,
    FINDINGS_AT,
    MAGIC,
    MOST_ARRAYS,
    ROW,
    ROW_BYTES,
    ROWS_AT,
    STARTS_AT,
    TABLE_BYTES,
)
from gpud.compiler.abi.check_calls import READS, WRITES
from gpud.compiler.abi.fast_division import coordinates
from gpud.device.cpu.abi.records import NONE
from gpud.device.cpu.scheduling.failure import thread_of
from gpud.device.cpu.scheduling.layout import SequenceLayout
from gpud.device.faults import printable
from gpud.errors import CheckFailed, GpudError
from gpud.errors.findings import Finding, FindingKind

__all__ = ["check_result"]

_FORMATS = {"i32": "<u4", "i64": "<u8"}
_FINDING = np.dtype(
    {
        "names": list(FINDING),
        "offsets": [at for at, _ in FINDING.values()],
        "formats": [_FORMATS[type_] for _, type_ in FINDING.values()],
        "itemsize": FINDING_BYTES,
    }
)


def check_result(
    layout: SequenceLayout, number: int, parameters: list[bytes], error: GpudError | None
) -> GpudError | None:
    """Return the error of a run that is over: what was found in its kernels, or ``error``.

    Args:
        layout: of its sequence; findings are looked for if its modules are checked.
        number: that of the run's first launch.
        parameters: the buffer of each launch.
        error: what the run failed with, if it did.
    """
    arena = layout.owner
    if arena is None or not layout.checked:
        return error
    board, _ = arena
    if int.from_bytes(ctypes.string_at(board, 8), "little") != MAGIC:
        return error
    raw = ctypes.string_at(board + FINDINGS_AT, FINDINGS * FINDING_BYTES)
    findings = []
    for slot, row in enumerate(np.frombuffer(raw, _FINDING)):
        launch = int(row["launch"]) - number
        if row["state"] and 0 <= launch < len(layout.launches):
            ctypes.memset(board + FINDINGS_AT + slot * FINDING_BYTES, 0, FINDING_BYTES)
            findings.append(_finding(layout, board, row, launch, parameters[launch]))
    if not findings:
        return error
    return CheckFailed(findings, None if error is None else str(error))


def _finding(
    layout: SequenceLayout, board: int, row: np.void, launch: int, parameters: bytes
) -> Finding:
    info = layout.launches[launch]
    total = layout.totals[launch]
    start, size, how = int(row["start"]), int(row["size"]), int(row["how"])
    kind, address = int(row["kind"]), int(row["address"])
    known = kind if kind in list(FindingKind) else FindingKind.OUT_OF_BOUNDS
    array = (start, size) if size else None
    label, itemsize = _label(board, start) if array is not None else (None, 0)
    both = how & READS and how & WRITES
    access = "atomic access" if both else "write" if how & WRITES else "read"

    def block(name: str) -> tuple[int, int, int] | None:
        claim = int(row[name])
        return coordinates(claim, info.grid) if claim < total else None

    def thread(name: str) -> tuple[int, int, int]:
        return thread_of(int(row[name]), layout.block_shapes[launch])

    other = int(row["other_site"])
    found = other != NONE
    return Finding(
        kind=FindingKind(known).word,
        access="shuffle" if known == FindingKind.SHUFFLE else access,
        bytes=int(row["bytes"]),
        address=address,
        space="global" if array is not None or address >= 1 << 32 else "shared",
        array=array,
        label=label,
        itemsize=itemsize,
        argument=_argument(layout, launch, parameters, array),
        kernel=info.name,
        launch=launch if len(layout.launches) > 1 else None,
        task_block=block("task_block"),
        thread=thread("thread"),
        site=int(row["site"]),
        instruction=None,
        line=None,
        file=None,
        file_line=None,
        other_task_block=block("other_block") if found else None,
        other_thread=thread("other_thread") if found else None,
        other_site=other if found else None,
        other_line=None,
        times=int(row["times"]),
    )


def _label(board: int, start: int) -> tuple[str | None, int]:
    """Return an array's description and the bytes of its elements."""
    current = ctypes.string_at(board + CURRENT, 8)
    table = int.from_bytes(current[:4], "little") & 1
    count = min(int.from_bytes(current[4:], "little"), MOST_ARRAYS)
    if not count:
        return None, 0
    starts = np.frombuffer(
        ctypes.string_at(board + STARTS_AT + table * TABLE_BYTES, 8 * count), np.uint64
    )
    index = int(np.searchsorted(starts, np.uint64(start)))
    if index == count or starts[index] != start:
        return None, 0
    at = board + ROWS_AT + (table * MOST_ARRAYS + index) * ROW_BYTES
    row = ctypes.string_at(at, ROW_BYTES)
    begin = ROW["itemsize"][0]
    itemsize = int.from_bytes(row[begin : begin + 4], "little")
    text = printable(row[ROW["label"][0] :].partition(b"\0")[0])
    return text or None, itemsize


def _argument(
    layout: SequenceLayout, launch: int, parameters: bytes, array: tuple[int, int] | None
) -> int | None:
    """Return the first parameter that points into an array, or just behind it."""
    if array is None:
        return None
    start, size = array
    for number, parameter in enumerate(layout.parameters(launch)):
        # A struct may hold several pointers.
        for at in range(parameter.offset, parameter.offset + parameter.size - 7, 8):
            value = int.from_bytes(parameters[at : at + 8], "little")
            if start <= value <= start + size:
                return number
    return None
