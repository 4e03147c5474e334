"""Symbolizes kernel faults: adds the source instruction and the array to a device host's error.

Problem: a device host reports where a kernel failed as a number (a site) and an address. Only the
front knows the instruction in the program as its owner wrote it, and which array was meant.

Approach: when a job ends with such an error, look up the site in its module's program and the
address in the ledger of arrays, and build the error anew with both.

Properties:
* fields that cannot be found stay None; no value from a host makes this fail;
* arrays that wait to be freed, and modules that were unloaded while the job ran, are found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import copy
from typing import Any

from gpud.compiler.program import Site
from gpud.device.host import messages as hm
from gpud.errors import (
    CheckFailed,
    GpudError,
    IllegalAddress,
    KernelRejected,
    KernelTrap,
    from_wire,
)
from gpud.errors.findings import Finding
from gpud.server.state.modules import CompiledProgram, Module
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.submitted_job import SubmittedJob

_NO_SHAPE = (0, (1, 1, 1), 0, False)
_EXTERN_SHARED = re.compile(r"\.extern\s+\.shared\s[^;]*?([\w$]+)\[\]")

__all__ = ["NearestArray", "symbolized", "symbolized_in", "symbolized_rejection"]

NearestArray = Callable[[int, int, int], tuple[int, int] | None]
"""(session, device, address) to the address and size of the session's array nearest to it."""


def symbolized(error: GpudError, job: SubmittedJob, nearest_array: NearestArray) -> GpudError:
    """``error``; if it is a kernel's fault, with the instruction, source line and array filled in.

    Args:
        error: as the device host sent it.
        job: the job that failed with it; it still has its sequence.
        nearest_array: see `gpud.server.state.arenas.Arenas.nearest_array`.
    """
    if not isinstance(error, IllegalAddress | KernelTrap | CheckFailed):
        return error
    try:
        if isinstance(error, CheckFailed):
            return CheckFailed([_with_lines(one, job) for one in error.findings], error.then)
        return _reworded(error, job, nearest_array)
    except (TypeError, ValueError, AttributeError):
        return error  # a field is not of its type: the host's memory is damaged


def symbolized_in(
    error: GpudError, job: SubmittedJob, module: Module, nearest_array: NearestArray
) -> GpudError:
    """`symbolized` for a launch in a lane, of a kernel of ``module``."""
    launched = copy(job)
    launched.sequence = ValidatedSequence(b"", (), ((module, _NO_SHAPE),), (), 0)
    try:
        return symbolized(error, launched, nearest_array)
    except GpudError:  # the size of the launch's shared memory is not known here
        return error


def symbolized_rejection(error: GpudError, program: CompiledProgram) -> GpudError:
    """``error``; if a device rejects a kernel, with the instruction in place of its PTX line.

    Args:
        error: as the device host sent it in reply to a request to compile the kernel.
        program: the kernel's program.
    """
    if not isinstance(error, KernelRejected) or not isinstance(error.line, int):
        return error
    told = error.to_wire()
    told["message"] = error.message.replace(f" (PTX line {error.line})", "")
    told["fields"] |= {"instruction": _quoted(program, error.line), "line": None}
    return from_wire(told)


def _reworded(
    error: IllegalAddress | KernelTrap, job: SubmittedJob, nearest_array: NearestArray
) -> GpudError:
    fields: dict[str, Any] = {name: getattr(error, name) for name in error.fields}
    program = _program(job, error.launch)
    if program is not None:
        fields.update(_place(error, program))
    if isinstance(error, IllegalAddress) and error.space in (None, "global"):
        array = nearest_array(job.session, job.device, error.address)
        if array is not None:
            fields["array"], fields["distance"] = array, _distance(error.address, *array)
    symbolized = type(error)(**fields)
    if (
        program is not None
        and isinstance(symbolized, IllegalAddress)
        and symbolized.space == "shared"
    ):
        return _with_shared_size(symbolized, job, program)
    return symbolized


def _with_lines(found: Finding, job: SubmittedJob) -> Finding:
    """Return a finding of the checking mode with its instruction and the source lines."""
    program = _program(job, found.launch)
    if program is None:
        return found
    kernel = next((one.name for one in program.kernels if one.entry == found.kernel), found.kernel)
    found = found._replace(kernel=kernel)
    site, other = _site(program, found.site), _site(program, found.other_site)
    if site is not None:
        found = found._replace(
            instruction=site.instruction,
            line=site.line or None,
            file=site.file,
            file_line=site.file_line,
        )
    if other is not None:
        line = f"PTX line {other.line}"
        if other.file_line is not None:
            line = f"{other.file or 'source'}:{other.file_line}"
        found = found._replace(other_line=line)
    return found


def _with_shared_size(
    error: IllegalAddress, job: SubmittedJob, program: CompiledProgram
) -> GpudError:
    """Name ``shared=`` if the kernel uses memory of which the launch gave the size, maybe none."""
    entry = next((one.entry for one in program.kernels if one.name == error.kernel), None)
    names = _EXTERN_SHARED.findall(program.ptx)
    _, _, body = program.ptx.partition(f".entry {entry}(")
    body = body.partition("\n.visible .entry ")[0]
    if not any(re.search(rf"(?<![\w$]){re.escape(name)}(?![\w$])", body) for name in names):
        return error
    launches = hm.HOST_PROTOCOL.decode_records(hm.HostLaunch, job.packed)
    size = launches[error.launch or 0].shared
    told = error.to_wire()
    told["message"] += "; the kernel declares extern __shared__ memory, and " + (
        f"the launch gives each block {size} bytes of it (shared={size})"
        if size
        else "the launch gives none: pass shared=, in bytes a block"
    )
    return from_wire(told)


def _program(job: SubmittedJob, launch: int | None) -> CompiledProgram | None:
    """Return the program of a launch."""
    modules, index = job.sequence.modules, launch or 0
    return modules[index].program if 0 <= index < len(modules) else None


def _place(error: IllegalAddress | KernelTrap, program: CompiledProgram) -> dict[str, Any]:
    """Return the fields that say where in the program an error happened."""
    name = next((one.name for one in program.kernels if one.entry == error.kernel), error.kernel)
    fields: dict[str, Any] = {"kernel": name}
    site = _site(program, error.site)
    if site is not None:
        fields["instruction"], fields["line"] = site.instruction, site.line or None
        if error.file is None:  # an assertion's error has its source position already
            fields["file"], fields["file_line"] = site.file, site.file_line
    elif error.line is not None:
        fields["instruction"], fields["line"] = _quoted(program, error.line), None
    return fields


def _quoted(program: CompiledProgram, line: int) -> str | None:
    """Return the instruction in a line of the rewritten program, which users do not see."""
    lines = program.ptx.splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else None


def _site(program: CompiledProgram, number: int | None) -> Site | None:
    sites = program.sites
    return sites[number] if number is not None and 0 <= number < len(sites) else None


def _distance(address: int, start: int, size: int) -> int:
    """Bytes from the nearest byte of an array to an address."""
    return max(0, start - address, address - (start + size - 1))
