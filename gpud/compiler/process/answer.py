"""A compiled program as the front needs it: nothing of it has to be unpacked, or read, to keep it.

Problem: the front serves everybody on one thread, and a program may have thousands of kernels, tens
of thousands of fault sites and megabytes of PTX.

Approach: the compile process packs each part as it will be used: descriptions as they are sent to
clients, kernels and sites in rows that are unpacked one at a time. It also finds the kernels of the
requested names; the front compares no names.
"""

from __future__ import annotations

from dataclasses import asdict, astuple
from typing import Any

from gpud.compiler.abi.reserved_names import HEAP
from gpud.compiler.forms.form import Form
from gpud.compiler.process.messages import CompileDone
from gpud.compiler.program import KernelInfo, Program, rejection
from gpud.errors import KernelNotFound
from gpud.wire.packed_rows import PackedRows  # noqa: TID251

__all__ = ["answer"]


def answer(ticket: int, program: Program, names: tuple[str, ...]) -> CompileDone:
    """Return the answer for a program.

    Args:
        ticket: of the job.
        program: what was compiled.
        names: of the kernels that were requested.

    Raises:
        KernelNotFound: a name is that of no kernel.
    """
    lowered = program.lowered_names
    for name in names:
        if lowered.get(name, name) not in program.kernels:
            known = [kernel.name for kernel in program.kernels.values()]
            raise KernelNotFound(name, known, log=program.log)
    kernels = list(program.kernels.values())
    index = {kernel.entry: at for at, kernel in enumerate(kernels)}
    numbers = {name: index[entry] for name, entry in lowered.items()}
    numbers |= {name: index[lowered.get(name, name)] for name in names}
    symbols, block = program.symbols.values(), program.block
    return CompileDone(
        ticket,
        program.ptx,
        PackedRows.pack(map(_kernel, kernels)),
        PackedRows.pack(map(_description, kernels)),
        PackedRows.pack(map(astuple, program.sites)),
        index,
        numbers,
        {symbol.name: symbol.size for symbol in symbols},
        [s.name for s in symbols if s.space != "const" and s.offset is None],
        [block.size, block.offsets, block.pieces, block.relocations],
        f" {HEAP};" in program.ptx or f" {HEAP}[" in program.ptx,
        program.log,
    )


def _kernel(info: KernelInfo) -> list[Any]:
    """Return what the front needs of a kernel: see `gpud.server.state.modules.Kernel`."""
    last = info.parameters[-1] if info.parameters else None
    told = asdict(info) | {"parameters": (), "form": str(info.form), "capabilities": ()}
    told["why"] = [asdict(one) for at, one in enumerate(info.why) if at == 0 or _kept(one.code)]
    return [told, 0 if last is None else last.offset + last.size]


def _kept(code: str) -> bool:
    """Whether a reason that is not the first matters for launches."""
    return code == "grid-sync"


def _description(info: KernelInfo) -> dict[str, Any]:
    """Return a kernel's description in `gpud.wire.messages.Compiled`."""
    return {
        "name": info.name,
        "entry": info.entry,
        "form": str(info.form),
        "exit_aware": info.exit_aware,
        "why": [str(reason) for reason in info.why],
        "parameters": [[p.name, p.kind, p.size, p.align, p.offset] for p in info.parameters],
        "points_to": [p.points_to for p in info.parameters],
        "shared_bytes": info.shared_bytes,
        "max_threads": info.max_threads,
        "killable": info.killable,
        "cooperative": info.cooperative,
        "rejected": rejection(info).to_wire() if info.form is Form.REJECTED else None,
    }
