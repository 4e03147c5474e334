"""The protocol between the front and the compile process.

It has the codec of the client protocol (`gpud.wire`), over a socket pair that only the two
processes share. Every `CompileJob` is answered by exactly one `CompileDone` or `CompileFailed` with
its ticket, in the order in which they were sent; a process that dies leaves jobs unanswered.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import (  # noqa: TID251  (a link, not a stage)
    blob,
    choice,
    flag,
    listed,
    optional,
    pair,
    plain,
    text,
    uint,
)
from gpud.wire.message_table import MessageTable, Sender  # noqa: TID251

__all__ = [
    "COMPILE_PROTOCOL",
    "MAX_FRAME_BYTES",
    "CompileDone",
    "CompileFailed",
    "CompileJob",
    "CompileReady",
]

COMPILE_PROTOCOL = MessageTable("compile", 1)
"""Every message of the protocol by code and by class."""

MAX_FRAME_BYTES = 1 << 28
"""The largest frame: a result has two PTX texts and a description of the kernels."""

_front = COMPILE_PROTOCOL.message(Sender.CLIENT)
_process = COMPILE_PROTOCOL.message(Sender.DAEMON)

Ticket = Annotated[int, uint(32), "chosen by the front; the answer carries it"]


@_front(1)
class CompileJob(NamedTuple):
    """Compile and rewrite a program: the arguments of `gpud.compiler.pipeline.compile_program`."""

    ticket: Ticket
    source: Annotated[str, text(1 << 24), "CUDA C++ or PTX; empty with ``images``"]
    names: Annotated[tuple[str, ...], listed(text(4096), 0, 256), "kernels to instantiate"] = ()
    options: Annotated[tuple[str, ...], listed(text(4096), 0, 256), "further NVRTC options"] = ()
    arch: Annotated[
        str | None, optional(text(64)), "to compile CUDA C++ for; nil: the newest that ``sm`` runs"
    ] = None
    form: Annotated[
        str | None,
        optional(choice("persistent", "sliced", "whole")),
        "bring every kernel into this form; nil: gpud chooses",
    ] = None
    sm: Annotated[
        int | None,
        optional(uint(16)),
        "compute capability times ten: refuse PTX for a newer one; nil: not known",
    ] = None
    cache_dir: Annotated[
        str | None,
        optional(text(4096)),
        "folder of compiled programs; nil: the default one; empty: keep none",
    ] = None
    bounds_checks: Annotated[bool, flag(), "check every access to memory"] = True
    progress: Annotated[
        str | None,
        optional(choice("independent", "blocks")),
        "what the program says of its kernels' blocks; nil: nothing",
    ] = None
    check: Annotated[bool, flag(), "compile for the checking mode of the CPU device"] = False
    images: Annotated[
        tuple[bytes, ...], listed(blob(1 << 26), 0, 1024), "instead of a source: to be linked"
    ] = ()
    trusted: Annotated[
        bool, flag(), "the source is of the daemon's user, or of root, who may read all its files"
    ] = False
    only: Annotated[bool, flag(), "rewrite the kernels of ``names`` and no others"] = False
    headers: Annotated[
        tuple[tuple[str, str], ...],
        listed(pair(text(4096), text(1 << 24)), 0, 1024),
        "names in ``#include``, and texts",
    ] = ()


@_process(64)
class CompileDone(NamedTuple):
    """A program is ready."""

    ticket: Ticket
    ptx: Annotated[str, text(1 << 26), "the rewritten program"]
    kernels: Annotated[
        bytes, blob(1 << 26), "`PackedRows`: [`KernelInfo` without parameters, their bytes]"
    ]
    descriptions: Annotated[bytes, blob(1 << 26), "`PackedRows`: those of `Compiled.kernels`"]
    sites: Annotated[bytes, blob(1 << 27), "`PackedRows`: the fields of each fault site"]
    entries: Annotated[dict[str, int], plain(), "the index of each kernel by its name in the PTX"]
    names: Annotated[dict[str, int], plain(), "that of `Compiled.names`"]
    symbols: Annotated[dict[str, int], plain(), "the size of each variable in bytes"]
    variables: Annotated[list[str], plain(), "those of its own that kernels can write"]
    block: Annotated[
        list[Any], plain(), "`gpud.compiler.variables.Block`: size, offsets, pieces, relocations"
    ]
    has_heap: Annotated[bool, flag(), "whether its kernels call ``malloc``"]
    log: Annotated[str, text(1 << 24), "the compiler's log"]


@_process(65)
class CompileFailed(NamedTuple):
    """A program could not be compiled."""

    ticket: Ticket
    error: Annotated[dict[str, Any], plain(), "`gpud.errors.GpudError.to_wire`"]


@_process(66)
class CompileReady(NamedTuple):
    """The process is ready for jobs; sent once, before all other messages."""

    confined: Annotated[bool, flag(), "whether it can open no files but those that it needs"]
