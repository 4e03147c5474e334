"""What the checking mode finds in a kernel, in numbers and in words."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from gpud.errors.base import shorten

__all__ = ["Finding", "FindingKind"]

Dim3 = tuple[int, int, int]


class FindingKind(IntEnum):
    """What is wrong. The names in lower case, with dashes, are stable."""

    OUT_OF_BOUNDS = 1
    """An access outside of the array that its pointer came from, or outside of every array."""
    USE_AFTER_FREE = 2
    UNINITIALISED = 3
    """What is read was written neither by a kernel nor by the client."""
    WRITE_WRITE = 4
    """Two threads write different values, and nothing orders them."""
    READ_WRITE = 5
    """One thread writes what another one reads, and nothing orders them."""
    SHUFFLE = 6
    """A shuffle reads a lane that is not among its members."""

    @property
    def word(self) -> str:
        """The stable name."""
        return self.name.lower().replace("_", "-")


_READS, _WRITES = 1, 2


class Finding(NamedTuple):
    """One thing that is wrong in a kernel, and where it was found first.

    Attributes:
        kind: a `FindingKind` by its stable name.
        access: ``"read"``, ``"write"``, ``"atomic access"`` or ``"shuffle"``.
        bytes: of the access.
        address: its first; of shared memory the offset in it.
        space: ``"global"`` or ``"shared"``.
        array: address and size in bytes of the array, None if there is none.
        label: its type and shape.
        itemsize: bytes of its elements.
        argument: the parameter that points into it, from 0.
        kernel: its name.
        launch: the launch of a sequence, None if the job has only one.
        task_block: coordinates of the task block.
        thread: coordinates of the thread.
        site: number of the instruction; internal.
        instruction: the PTX instruction.
        line: its line in the PTX.
        file: the source file.
        file_line: the line there.
        other_task_block: the other access of a race.
        other_thread: likewise.
        other_site: likewise; internal.
        other_line: likewise, in the source file, or in the PTX if there is none.
        times: how often it was found.
    """

    kind: str
    access: str
    bytes: int
    address: int
    space: str
    array: tuple[int, int] | None
    label: str | None
    itemsize: int
    argument: int | None
    kernel: str
    launch: int | None
    task_block: Dim3 | None
    thread: Dim3 | None
    site: int
    instruction: str | None
    line: int | None
    file: str | None
    file_line: int | None
    other_task_block: Dim3 | None
    other_thread: Dim3 | None
    other_site: int | None
    other_line: str | None
    times: int

    @property
    def element(self) -> int | None:
        """The index of the first element that is accessed, as if the array had no shape."""
        if self.array is None or not self.itemsize:
            return None
        return (self.address - self.array[0]) // self.itemsize

    @property
    def advice(self) -> str:
        """What to do about it."""
        return _ADVICE[self.kind]

    def __str__(self) -> str:
        return _text(self)


def _text(found: Finding) -> str:
    parts = [_what(found), _where(found)]
    if found.other_thread is not None:
        parts.append(_other(found))
    times = f" ({found.times:,} times)" if found.times > 1 else ""
    return ", ".join(parts) + times


def _what(found: Finding) -> str:
    access = f"{found.access} of {found.bytes} byte{'s' * (found.bytes != 1)}"
    place = _place(found)
    match found.kind:
        case "out-of-bounds":
            if found.array is None:
                return f"{access} at {found.address:#x}, which is in no array"
            return f"{access} outside of its array: {place}"
        case "use-after-free":
            return f"{access} in an array that was freed: {place}"
        case "uninitialised":
            return f"{access} of what was never written: {place}"
        case "shuffle":
            return f"a shuffle reads lane {found.address}, which is not among its members"
    return f"a race: {access}, {place}"


def _place(found: Finding) -> str:
    if found.space == "shared":
        return f"byte {found.address} of shared memory"
    if found.array is None:
        return f"address {found.address:#x}"
    argument = "" if found.argument is None else f"argument {found.argument}, "
    label = found.label or f"array {found.array[0]:#x} of {found.array[1]} bytes"
    return f"index {found.element} of {argument}{label}"


def _where(found: Finding) -> str:
    launch = "" if found.launch is None else f", launch {found.launch}"
    return f"in {found.kernel}{launch}, {_thread(found.task_block, found.thread)}, {_source(found)}"


def _source(found: Finding) -> str:
    if found.file_line is not None:
        return f"{found.file or 'source'}:{found.file_line}"
    if found.instruction is None:
        return "at an unknown place"
    return f"at {shorten(found.instruction).rstrip(';')} (PTX line {found.line})"


def _other(found: Finding) -> str:
    verb = "wrote it" if found.access == "read" or found.kind == "write-write" else "accessed it"
    same = found.other_task_block == found.task_block
    who = _thread(None if same else found.other_task_block, found.other_thread)
    at = "" if found.other_line is None else f" at {found.other_line}"
    return f"and {who}{' of the same task block' * same} {verb}{at}"


def _thread(task_block: Dim3 | None, thread: Dim3 | None) -> str:
    parts = []
    if task_block is not None:
        parts.append(f"task block {task_block}")
    if thread is not None:
        parts.append(f"thread {thread}")
    return ", ".join(parts) or "in an unknown thread"


_ADVICE: dict[str, str] = {
    "out-of-bounds": "check the index against the array's size",
    "use-after-free": "keep the array until the job has ended",
    "uninitialised": "write it first, or make the array with zeros()",
    "write-write": "have one thread write it, or use an atomic operation",
    "read-write": "put a barrier between the two, or use an atomic operation",
    "shuffle": "name all lanes that take part in the mask, or read one of its members",
}
