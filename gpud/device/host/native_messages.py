"""The link between a CPU device's host and the process that makes its machine code.

`Ready` comes first. Then each `Make` is answered by one `Made` or `Failed`, before the next is
sent.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, listed, optional, plain, text, uint
from gpud.wire.message_table import MessageTable, Sender

__all__ = ["MAX_FRAME_BYTES", "MOST_TRIES", "NATIVE_PROTOCOL", "Failed", "Made", "Make", "Ready"]

NATIVE_PROTOCOL = MessageTable("native", 1)
"""Every message of the link by code and by class."""

MAX_FRAME_BYTES = 1 << 28

MOST_TRIES = 2
"""Processes that are given one kernel: they may have been ended by somebody else."""

_host = NATIVE_PROTOCOL.message(Sender.CLIENT)
_worker = NATIVE_PROTOCOL.message(Sender.DAEMON)

_Range = optional(listed(uint(64), 2, 2))


@_host(1)
class Make(NamedTuple):
    """Make machine code: a `gpud.device.cpu.program.compile_request.CompileRequest`."""

    text: Annotated[str, text(1 << 27), "the program, PTX"]
    entry: Annotated[str, text(1 << 16), "the kernel's name"]
    block: Annotated[tuple[int, ...], listed(uint(32), 3, 3), "threads in x, y and z"]
    arena: Annotated[tuple[int, ...] | None, _Range, "address and size of what may be accessed"]
    heap: Annotated[tuple[int, ...] | None, _Range, "address and size of what malloc gives"]


@_worker(64)
class Made(NamedTuple):
    """Machine code is made."""

    generated: Annotated[
        dict[str, Any],
        plain(),
        "`gpud.device.cpu.codegen.artifact.GeneratedKernel`, without ``ir``",
    ]
    code: Annotated[bytes, blob(1 << 27), "an object file"]


@_worker(65)
class Failed(NamedTuple):
    """It could not be made."""

    error: Annotated[dict[str, Any], plain(), "`gpud.errors.GpudError.to_wire`"]


@_worker(66)
class Ready(NamedTuple):
    """The process has loaded what it needs."""
