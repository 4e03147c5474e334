"""The messages between a CPU device's host and its compiler process.

The process sends `Ready` first. Then it answers each `Make` by one `Made` or `NotMade`; the host
sends the next only after that.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, listed, optional, plain, text, uint
from gpud.wire.message_table import MessageTable, Sender

__all__ = ["MAX_FRAME_BYTES", "NATIVE_PROTOCOL", "Made", "Make", "NotMade", "Ready"]

NATIVE_PROTOCOL = MessageTable("native", 1)
"""Every message of the link by code and by class."""

MAX_FRAME_BYTES = 1 << 28

_host = NATIVE_PROTOCOL.message(Sender.CLIENT)
_process = NATIVE_PROTOCOL.message(Sender.DAEMON)

_Memory = optional(listed(uint(64), 2, 2))


@_host(1)
class Make(NamedTuple):
    """Compile a kernel: a `gpud.device.cpu.program.compile_request.CompileRequest`."""

    text: Annotated[str, text(1 << 27), "the program, PTX"]
    entry: Annotated[str, text(1 << 16), "the kernel's name"]
    block: Annotated[tuple[int, ...], listed(uint(32), 3, 3), "threads in x, y and z"]
    arena: Annotated[tuple[int, ...] | None, _Memory, "alignment and size of what may be accessed"]
    heap: Annotated[tuple[int, ...] | None, _Memory, "alignment and size of the heap of ``malloc``"]


@_process(64)
class Made(NamedTuple):
    """The kernel is compiled."""

    generated: Annotated[
        dict[str, Any],
        plain(),
        "`gpud.device.cpu.codegen.artifact.GeneratedKernel`, without ``ir``",
    ]
    code: Annotated[bytes, blob(1 << 27), "an object file"]


@_process(65)
class NotMade(NamedTuple):
    """The kernel could not be compiled."""

    error: Annotated[dict[str, Any], plain(), "`gpud.errors.GpudError.to_wire`"]


@_process(66)
class Ready(NamedTuple):
    """The process has loaded its libraries and takes requests."""
