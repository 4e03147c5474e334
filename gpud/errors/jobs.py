"""Errors of accepted jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, ClassVar

from gpud.errors.base import CallerError, DeviceError, GpudError, shorten
from gpud.errors.findings import Finding

__all__ = [
    "CheckFailed",
    "DeviceLost",
    "IllegalAddress",
    "JobCancelled",
    "JobError",
    "JobTimeout",
    "KernelTrap",
    "PredecessorFailed",
]

Dim3 = tuple[int, int, int]

_NULL_BYTES = 1 << 16
"""Lower addresses are offsets from a null pointer: no device has memory there."""


class JobError(GpudError):
    """An accepted job did not complete. Its output arrays hold unspecified values."""

    code = "job"
    fields: ClassVar[Mapping[str, str]] = {"kernel": "name of the kernel that was running"}
    kernel: str | None


_PLACE_FIELDS = {
    **JobError.fields,
    "launch": "index of the launch in a sequence, from 0; null for a job of one launch",
    "task_block": "coordinates (x, y, z) of the task block in the user's grid",
    "thread": "coordinates (x, y, z) of the thread in its block",
    "instruction": "the PTX instruction",
    "line": "its line in the PTX text before rewriting, from 1",
    "file": "the source file, if the PTX names it",
    "file_line": "the line in that file, from 1",
    "site": "number of the instruction in the program's table of sites; internal",
}


class IllegalAddress(JobError, CallerError):
    """A task block accessed memory outside its session's arena; the block was ended there.

    No byte outside the arena was read or written. On the CPU device, accesses outside a block's
    shared, local, constant or parameter memory fail with this error too.
    """

    code = "illegal-address"
    fields: ClassVar[Mapping[str, str]] = {
        **_PLACE_FIELDS,
        "address": "the device address, in bytes; in state spaces other than global, the offset",
        "space": "the state space: global (or generic), shared, local, const or param",
        "misaligned": "whether the address is legal but not aligned as the access requires",
        "array": "address and size in bytes of the session's array nearest to the address",
        "distance": "bytes from that array's nearest byte to the address, 0 inside the array",
    }
    address: int
    space: str | None
    misaligned: bool | None
    array: tuple[int, int] | None
    distance: int | None
    launch: int | None
    task_block: Dim3 | None
    thread: Dim3 | None
    instruction: str | None
    line: int | None
    file: str | None
    file_line: int | None
    site: int | None

    def __init__(
        self,
        address: int,
        *,
        space: str | None = None,
        misaligned: bool = False,
        array: tuple[int, int] | None = None,
        distance: int | None = None,
        kernel: str | None = None,
        launch: int | None = None,
        task_block: Dim3 | None = None,
        thread: Dim3 | None = None,
        instruction: str | None = None,
        line: int | None = None,
        file: str | None = None,
        file_line: int | None = None,
        site: int | None = None,
    ) -> None:
        place = _place(kernel, launch, task_block, thread)
        at = _instruction(instruction, line, file, file_line)
        what, advice = _what_address(address, space, misaligned, array, distance)
        super().__init__(
            f"{', '.join((what, *place, *at))}; {advice}",
            address=address,
            space=space,
            misaligned=misaligned,
            array=array,
            distance=distance,
            kernel=kernel,
            launch=launch,
            task_block=task_block,
            thread=thread,
            instruction=instruction,
            line=line,
            file=file,
            file_line=file_line,
            site=site,
        )


class KernelTrap(JobError, CallerError):
    """A task block executed ``trap`` or ``brkpt``, or an ``assert`` in the kernel failed."""

    code = "kernel-trap"
    fields: ClassVar[Mapping[str, str]] = {
        **_PLACE_FIELDS,
        "cause": "'trap', 'brkpt', the text of the failed assertion, or what else ended the block",
        "function": "the function whose assertion failed, by its name in the source",
    }
    cause: str
    function: str | None
    launch: int | None
    task_block: Dim3 | None
    thread: Dim3 | None
    instruction: str | None
    line: int | None
    file: str | None
    file_line: int | None
    site: int | None

    def __init__(
        self,
        cause: str = "trap",
        *,
        function: str | None = None,
        kernel: str | None = None,
        launch: int | None = None,
        task_block: Dim3 | None = None,
        thread: Dim3 | None = None,
        instruction: str | None = None,
        line: int | None = None,
        file: str | None = None,
        file_line: int | None = None,
        site: int | None = None,
    ) -> None:
        what = f"the kernel stopped itself ({shorten(cause, 400)})"
        function_ = () if function is None else (f"function {shorten(function)}",)
        place = _place(kernel, launch, task_block, thread)
        # The text of a trap instruction adds nothing to its cause.
        at = _instruction(None, line, file, file_line)
        super().__init__(
            ", ".join((what, *function_, *place, *at)),
            cause=cause,
            function=function,
            kernel=kernel,
            launch=launch,
            task_block=task_block,
            thread=thread,
            instruction=instruction,
            line=line,
            file=file,
            file_line=file_line,
            site=site,
        )


class CheckFailed(JobError, CallerError):
    """The checking mode has found something wrong in a kernel, which has run to its end.

    Accesses outside of arrays were not made; loads among them gave unspecified values.
    """

    code = "check-failed"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "rows": "what was found, each with the fields of `gpud.errors.findings.Finding` in order",
        "then": "what the job failed with besides, if it did",
    }
    rows: tuple[Any, ...]
    then: str | None

    def __init__(self, findings: Sequence[Finding], then: str | None = None) -> None:
        first = findings[0]
        texts = [str(one) for one in findings]
        texts[0] += f"; {first.advice}"
        if len(texts) > 1:
            texts[0] += f"; {len(texts) - 1} more finding{'s' * (len(texts) > 2)}:"
        if then is not None:
            texts.append(f"then the job failed: {then}")
        rows = tuple(tuple(one) for one in findings)
        super().__init__("\n  ".join(texts), kernel=first.kernel, rows=rows, then=then)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, in the order in which it was found."""
        return tuple(Finding(*row) for row in self.rows or ())


class JobTimeout(JobError, CallerError, TimeoutError):
    """The job ran longer than the timeout that its submitter gave, and was ended."""

    code = "job-timeout"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "timeout_ns": "the timeout, in nanoseconds",
    }
    timeout_ns: int

    def __init__(self, timeout_ns: int, *, kernel: str | None = None) -> None:
        message = (
            f"the job was ended after its timeout of {timeout_ns / 1e9:g} s"
            f"{'' if kernel is None else f' in {kernel}'}; give it a larger share or a longer "
            "timeout"
        )
        super().__init__(message, kernel=kernel, timeout_ns=timeout_ns)


class JobCancelled(JobError, CallerError, CancelledError):
    """The job was cancelled by its owner or by an administrator of the daemon.

    Also a `concurrent.futures.CancelledError`, as a cancelled future raises it.
    """

    code = "job-cancelled"


class PredecessorFailed(JobError, CallerError):
    """The job was not run: one before it in its stream has failed, whose error nobody had seen.

    That job's error is the ``__cause__``. What is submitted to the stream after it was seen runs.
    """

    code = "predecessor-failed"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "job": 'name of the job that has failed, such as "3.17"',
    }
    job: str | None


class DeviceLost(JobError, DeviceError):
    """The device host crashed, hung or lost its context while the job ran."""

    code = "device-lost"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "device": "the device, as in --device",
        "culprit": 'name of the job that is known to have caused the loss, such as "3.17"',
    }
    device: str | None
    culprit: str | None


def _what_address(
    address: int,
    space: str | None,
    misaligned: bool,
    array: tuple[int, int] | None,
    distance: int | None,
) -> tuple[str, str]:
    """Return what is wrong with an address, and what to do about it."""
    where = "" if space in (None, "global") else f" in {space} memory"
    near = _near(address, array, distance)
    if misaligned:
        return (
            f"misaligned address {address:#x}{where}{near}",
            "vector and wide accesses need an address that is a multiple of their size",
        )
    what = f"illegal address {address:#x}{where}"
    if where:
        return what, "check the index against the size of what was declared there"
    if address < _NULL_BYTES:
        return what, "it is next to null: check that the pointer was passed and set"
    return f"{what}{near}", "check the index against the array's size"


def _near(address: int, array: tuple[int, int] | None, distance: int | None) -> str:
    if array is None or distance is None:
        return ""
    start, size = array
    said = f"array {start:#x} of {size} bytes"
    if not distance:
        return f", inside {said}"
    return f", {distance} bytes {'before' if address < start else 'after'} {said}"


def _place(
    kernel: str | None, launch: int | None, task_block: Dim3 | None, thread: Dim3 | None
) -> tuple[str, ...]:
    """Describe where in a job a fault happened, in parts."""
    parts = (
        None if kernel is None else f"in {kernel}",
        None if launch is None else f"launch {launch}",
        None if task_block is None else f"task block {task_block}",
        None if thread is None else f"thread {thread}",
    )
    return tuple(part for part in parts if part is not None)


def _instruction(
    instruction: str | None, line: int | None, file: str | None, file_line: int | None
) -> tuple[str, ...]:
    """Describe the instruction of a fault, as one part or none."""
    source = None if file is None else file if file_line is None else f"{file}:{file_line}"
    lines = [text for text in (line and f"PTX line {line}", source) if text]
    if instruction is None:
        return (", ".join(lines),) if lines else ()
    said = f"at {shorten(instruction).rstrip(';')}"
    return (f"{said} ({', '.join(lines)})",) if lines else (said,)
