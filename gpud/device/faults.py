"""Converts fault records into the errors that jobs fail with.

Problem: a block that was ended by a fault leaves a record of numbers: a kind, a site, an address,
pointers to strings. A kernel can write any of them, so none can be trusted. The record is the same
on every device.

Approach: `error_of` converts a `gpud.compiler.abi.fault_record.FaultRecord` into an error. What
only the front knows (the instruction at the site, the nearest array) is added there, by
`gpud.server.state.symbolizer`.

Properties:
* strings of assertions are read through a `gpud.device.readable.ReadableRanges` only, and are made
  printable;
* any record gives an error, whatever its numbers are.
"""

from __future__ import annotations

from typing import Any

from gpud.compiler.abi.fast_division import coordinates
from gpud.compiler.abi.fault_record import FaultKind, FaultRecord
from gpud.device.readable import UNREADABLE, ReadableRanges
from gpud.errors import IllegalAddress, KernelRejected, KernelTrap, from_wire

__all__ = ["error_of", "line_of", "printable", "without_line"]

_TEXT_BYTES = 4096
"""Longest string of an assertion that is read."""

_CAUSES = {FaultKind.TRAP: "trap", FaultKind.BREAKPOINT: "brkpt"}

Dim3 = tuple[int, int, int]


def error_of(
    record: FaultRecord,
    reach: ReadableRanges,
    *,
    kernel: str,
    grid: Dim3,
    launch: int | None = None,
    space: str = "global",
    text: str = "",
    line: int | None = None,
) -> IllegalAddress | KernelTrap:
    """Return the error for a fault.

    Args:
        record: what the block recorded; a negative ``site`` means that none is known.
        reach: reads an assertion's strings.
        kernel: the kernel's name, as in the user's source.
        grid: the grid as the user gave it.
        launch: the launch's index in the job, None if the job has only one.
        space: the state space of ``record.address``.
        text: the loaded PTX, and
        line: a line of it, if no site is known: the error quotes the instruction.
    """
    place: dict[str, Any] = {
        "kernel": kernel,
        "launch": launch,
        "task_block": _task_block(record.claim, grid),
        "thread": record.thread,
        "site": None if record.site < 0 else record.site,
        "instruction": None if line is None or record.site >= 0 else line_of(text, line),
    }
    if record.kind in (FaultKind.ADDRESS, FaultKind.MISALIGNED):
        misaligned = record.kind == FaultKind.MISALIGNED
        return IllegalAddress(record.address, space=space, misaligned=misaligned, **place)
    if record.kind == FaultKind.TARGET:
        cause = f"a jump or call to {record.address:#x}, which is none of its targets"
        return KernelTrap(cause, **place)
    if record.kind != FaultKind.ASSERT:
        return KernelTrap(_CAUSES.get(record.kind, "trap"), **place)
    message, file, function = (
        printable(reach.text_at(address, _TEXT_BYTES))
        for address in (record.address, record.file, record.function)
    )
    return KernelTrap(
        f"assertion `{message}' failed",
        function=function,
        file=file,
        file_line=record.line,
        **place,
    )


def line_of(text: str, line: int) -> str | None:
    """Return a line of a program, which users do not see: they are told the instruction."""
    lines = text.split("\n", line)
    return lines[line - 1].strip() if 0 < line <= len(lines) else None


def without_line(error: KernelRejected, text: str) -> KernelRejected:
    """Return the error with the instruction in place of its line in the loaded PTX, ``text``."""
    if error.line is None:
        return error
    told = error.to_wire()
    told["message"] = error.message.replace(f" (PTX line {error.line})", "")
    quoted, named = line_of(text, error.line), error.instruction
    if named is not None and (quoted is None or named not in quoted):
        quoted = named  # the line is that of the kernel which has it
    told["fields"] |= {"instruction": quoted, "line": None}
    made = from_wire(told)
    assert isinstance(made, KernelRejected)
    return made


def printable(text: bytes | None) -> str:
    """Text from a kernel, made safe to show: on one line, with "?" for unprintable characters."""
    line = " ".join((UNREADABLE if text is None else text).decode(errors="replace").split())
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _task_block(claim: int | None, grid: Dim3) -> Dim3 | None:
    """Return the coordinates of a task block; None if the number is not within the grid."""
    x, y, z = grid
    return coordinates(claim, grid) if claim is not None and claim < x * y * z else None
