"""How a job that had been accepted can fail."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import ClassVar

from gpud.errors.base import CallerError, DeviceError, GpudError, shorten

__all__ = [
    "DeviceLost",
    "IllegalAddress",
    "JobCancelled",
    "JobError",
    "JobTimeout",
    "KernelTrap",
]


class JobError(GpudError):
    """A job that had been accepted did not complete. Its output arrays hold unspecified values."""

    code = "job"
    fields: ClassVar[Mapping[str, str]] = {"kernel": "name of the kernel that was running"}
    kernel: str | None


class IllegalAddress(JobError, CallerError):
    """A task block touched memory outside its session's arena; the block was ended there."""

    code = "illegal-address"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "address": "the device address, in bytes",
        "instruction": "the PTX instruction",
        "line": "its line in the PTX text, from 1",
        "task_block": "coordinates (x, y, z) of the task block in the user's grid",
    }
    address: int
    instruction: str | None
    line: int | None
    task_block: tuple[int, int, int] | None

    def __init__(
        self,
        address: int,
        *,
        kernel: str | None = None,
        instruction: str | None = None,
        line: int | None = None,
        task_block: tuple[int, int, int] | None = None,
    ) -> None:
        message = (
            f"illegal address {address:#x}{_place(kernel, task_block, instruction, line)}; check "
            "the index against the array's size"
        )
        super().__init__(
            message,
            kernel=kernel,
            address=address,
            instruction=instruction,
            line=line,
            task_block=task_block,
        )


class KernelTrap(JobError, CallerError):
    """A task block executed ``trap`` or ``brkpt``, or an ``assert`` in the kernel failed."""

    code = "kernel-trap"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "cause": "'trap', 'brkpt', or the text of the failed assertion",
        "line": "the instruction's line in the PTX text, from 1",
        "task_block": "coordinates (x, y, z) of the task block in the user's grid",
    }
    cause: str
    line: int | None
    task_block: tuple[int, int, int] | None

    def __init__(
        self,
        cause: str = "trap",
        *,
        kernel: str | None = None,
        line: int | None = None,
        task_block: tuple[int, int, int] | None = None,
    ) -> None:
        message = f"the kernel stopped itself ({cause}){_place(kernel, task_block, None, line)}"
        super().__init__(message, kernel=kernel, cause=cause, line=line, task_block=task_block)


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
            f"{_place(kernel, None, None, None)}; give it a larger share or a longer timeout"
        )
        super().__init__(message, kernel=kernel, timeout_ns=timeout_ns)


class JobCancelled(JobError, CallerError, CancelledError):
    """The job was cancelled by its owner or by an administrator of the daemon.

    It is what `concurrent.futures` raises for a future that was cancelled, too.
    """

    code = "job-cancelled"


class DeviceLost(JobError, DeviceError):
    """The device host crashed, hung or lost its context while the job ran."""

    code = "device-lost"
    fields: ClassVar[Mapping[str, str]] = {
        **JobError.fields,
        "device": "the device, as in --device",
    }
    device: str | None


def _place(
    kernel: str | None,
    task_block: tuple[int, int, int] | None,
    instruction: str | None,
    line: int | None,
) -> str:
    """Words where in a kernel something happened, with a leading space, or nothing."""
    parts = []
    if kernel is not None:
        parts.append(f"in {kernel}")
    if task_block is not None:
        parts.append(f"in task block {task_block}")
    if instruction is not None:
        parts.append(f"at {shorten(instruction)}")
    if line is not None:
        parts.append(f"(PTX line {line})")
    return "".join(f" {part}" for part in parts)
