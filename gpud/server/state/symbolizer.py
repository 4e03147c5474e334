"""Symbolizes kernel faults: adds the source instruction and the array to a device host's error.

Problem: a device host reports where a kernel failed as a number (a site) and an address. Only the
front knows the instruction in the program as its owner wrote it, and which array was meant.

Approach: when a job ends with such an error, look up the site in its module's table and the
address in the ledger of arrays, and build the error anew with both. No program's text is read.

Properties:
* fields that cannot be found stay None; no value from a host makes this fail;
* arrays that wait to be freed, and modules that were unloaded while the job ran, are found.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from gpud.errors import (
    CheckFailed,
    GpudError,
    IllegalAddress,
    KernelTrap,
    from_wire,
)
from gpud.errors.findings import Finding
from gpud.server.state.modules import CompiledProgram, Kernel, Module
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.submitted_job import SubmittedJob

_NO_SHAPE = (-1, (1, 1, 1), 0, False)

__all__ = ["NearestArray", "symbolized", "symbolized_in"]

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
    return symbolized(error, launched, nearest_array)


def _reworded(
    error: IllegalAddress | KernelTrap, job: SubmittedJob, nearest_array: NearestArray
) -> GpudError:
    fields: dict[str, Any] = {name: getattr(error, name) for name in error.fields}
    program = _program(job, error.launch)
    kernel = None if program is None else program.kernel_of(error.kernel)
    if program is not None:
        fields["kernel"] = error.kernel if kernel is None else kernel.name
        fields.update(_place(error, program))
    if isinstance(error, IllegalAddress) and error.space in (None, "global"):
        array = nearest_array(job.session, job.device, error.address)
        if array is not None:
            fields["array"], fields["distance"] = array, _distance(error.address, *array)
    symbolized = type(error)(**fields)
    if (
        kernel is not None
        and kernel.info.launch_shared
        and isinstance(symbolized, IllegalAddress)
        and symbolized.space == "shared"
    ):
        return _with_shared_size(symbolized, job, kernel)
    return symbolized


def _with_lines(found: Finding, job: SubmittedJob) -> Finding:
    """Return a finding of the checking mode with its instruction and the source lines."""
    program = _program(job, found.launch)
    if program is None:
        return found
    kernel = program.kernel_of(found.kernel)
    if kernel is not None:
        found = found._replace(kernel=kernel.name)
    site, other = program.site(found.site), program.site(found.other_site)
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


def _with_shared_size(error: IllegalAddress, job: SubmittedJob, kernel: Kernel) -> GpudError:
    """Name ``shared=``: the kernel uses memory of which the launch gave the size, maybe none."""
    module = job.sequence.modules[error.launch or 0]
    sizes = {
        shape[2]
        for needed, shape in job.sequence.needs
        if needed is module and shape[0] >= 0 and module.program.kernel(shape[0]) is kernel
    }
    if len(sizes) != 1:  # a lane's, which are not known here, or launches of several sizes
        return error
    (size,) = sizes
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
    fields: dict[str, Any] = {}
    site = program.site(error.site)
    if site is not None:
        fields["instruction"], fields["line"] = site.instruction, site.line or None
        if error.file is None:  # an assertion's error has its source position already
            fields["file"], fields["file_line"] = site.file, site.file_line
    return fields


def _distance(address: int, start: int, size: int) -> int:
    """Bytes from the nearest byte of an array to an address."""
    return max(0, start - address, address - (start + size - 1))
