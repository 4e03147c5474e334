"""Messages about programs: compiling them, their kernels, and their variables."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from gpud.wire.field_types import blob, choice, flag, listed, optional, pair, plain, text, uint
from gpud.wire.messages.protocol import Device, Dim3, Module, Request, from_client, from_daemon

__all__ = ["Compile", "Compiled", "Measure", "Measured", "ReadSymbol", "Unload", "WriteSymbol"]


@from_client(2)
class Compile(NamedTuple):
    """Compile and rewrite a program for a device; answered by `Compiled`."""

    request: Request
    device: Device
    source: Annotated[
        str,
        text(1 << 24),
        "CUDA C++, or PTX: text whose first word begins with a dot; empty with ``images``",
    ]
    names: Annotated[
        tuple[str, ...], listed(text(4096), 0, 256), "kernels to instantiate and look up"
    ]
    options: Annotated[tuple[str, ...], listed(text(4096), 0, 256), "further NVRTC options"] = ()
    form: Annotated[
        str | None,
        optional(choice("persistent", "sliced", "whole")),
        "bring every kernel into this form; nil: gpud chooses",
    ] = None
    progress: Annotated[
        str | None,
        optional(choice("independent", "blocks")),
        "of every kernel: no task block waits for one that has not begun, or they wait for one "
        "another; nil: gpud finds out",
    ] = None
    check: Annotated[
        bool,
        flag(),
        "for the checking mode of a CPU device; the session's arrays have shadows, see "
        "`gpud.checked_memory`",
    ] = False
    images: Annotated[
        tuple[bytes, ...],
        listed(blob(1 << 26), 0, 1024),
        "instead of a source, what the CUDA driver takes: PTX (with a NUL at its end or without), "
        "or fat binaries that hold PTX; several are linked",
    ] = ()
    only: Annotated[
        bool, flag(), "rewrite the kernels of ``names`` and no others; only they are described"
    ] = False
    headers: Annotated[
        tuple[tuple[str, str], ...],
        listed(pair(text(4096), text(1 << 24)), 0, 1024),
        "names as in ``#include``, and texts, beside the headers that the daemon has",
    ] = ()


@from_daemon(66)
class Compiled(NamedTuple):
    """A program has been compiled."""

    request: Request
    module: Module
    kernels: Annotated[
        list[dict[str, Any]],
        plain(),
        'maps: "name", "entry", "form", "exit_aware", "why" (texts), "parameters" (lists: name, '
        'kind, size, align, offset), "shared_bytes", "max_threads", "killable" (it has loops), '
        '"cooperative" (all of its blocks must be resident), "rejected" (an error, or nil)',
    ]
    names: Annotated[
        dict[str, int], plain(), "a map: the index of the kernel for each of the requested names"
    ]
    symbols: Annotated[dict[str, int], plain(), "a map: the size in bytes of each module variable"]
    log: Annotated[str, text(1 << 24), "the compiler's log"] = ""
    addresses: Annotated[
        dict[str, int],
        plain(),
        "a map: the address of each module variable in the session's arena; of a program that was "
        "sent as images",
    ] = {}  # noqa: RUF012


@from_client(3)
class Unload(NamedTuple):
    """Unload a module once the jobs that were submitted before have ended. Not answered."""

    module: Module


@from_client(4)
class Measure(NamedTuple):
    """Prepare a kernel for a block shape and return its occupancy; answered by `Measured`.

    A launch is accepted only for a shape that was measured before in the same session. Offline jobs
    with a timeout, and all jobs of a CPU device, run another entry of a kernel with loops, whose
    blocks can be killed in the middle of a task block. On a GPU that entry is prepared here if
    ``killable`` is set, otherwise by the first such job, at the expense of its time.
    """

    request: Request
    module: Module
    kernel: Annotated[int, uint(16), "index of the kernel in `Compiled`"]
    block: Dim3
    shared: Annotated[int, uint(32), "dynamic shared memory of a block, in bytes"]
    killable: Annotated[
        bool, flag(), "the entry that offline jobs with a timeout run, with kill polls"
    ] = False


@from_daemon(67)
class Measured(NamedTuple):
    """A kernel is prepared for a block shape."""

    request: Request
    occupancy: Annotated[int, uint(16), "M: blocks that fit on one SM"]
    form: Annotated[str, text(16), "the form for this block shape"]


@from_client(11)
class ReadSymbol(NamedTuple):
    """Read bytes of a module variable; `Answer` holds them. Does not wait for running jobs."""

    request: Request
    module: Module
    name: Annotated[str, text(4096), "as `Compiled` lists it"]
    offset: Annotated[int, uint(63), "in bytes"]
    size: Annotated[int, uint(63), "in bytes"]


@from_client(12)
class WriteSymbol(NamedTuple):
    """Write bytes of a module variable; answered by `Answer`. Does not wait for running jobs."""

    request: Request
    module: Module
    name: Annotated[str, text(4096), "as `Compiled` lists it"]
    offset: Annotated[int, uint(63), "in bytes"]
    data: Annotated[bytes, blob(1 << 24), "what to write"]
