"""From the numbers of a fault to the words that its owner can act on.

Problem: a device host says where a kernel failed as a number (a site) and an address. What stands
there in the program as its owner wrote it, and which array was meant, only the front knows.

Approach: when a job ends with such an error, look the site up in its module's program, and the
address in the ledger of arrays, and word the error anew.

Properties:
* what cannot be found out stays None; nothing that a host says makes this fail;
* arrays that wait to be freed, and modules that were unloaded while the job ran, are found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpud.compiler.program import Site
from gpud.errors import GpudError, IllegalAddress, KernelRejected, KernelTrap, from_wire
from gpud.server.compilation.modules import CompiledProgram
from gpud.server.scheduling.jobs import Job

__all__ = ["NearestArray", "symbolized", "symbolized_rejection"]

NearestArray = Callable[[int, int, int], tuple[int, int] | None]
"""(session, device, address) to the address and size of the session's array nearest to it."""


def symbolized(error: GpudError, job: Job, nearest_array: NearestArray) -> GpudError:
    """``error``, with all that the front knows about it if it is a fault of a kernel.

    Args:
        error: as the device host sent it.
        job: which ended with it, and has not been forgotten.
        nearest_array: see `gpud.server.arrays.arenas.Arenas.nearest_array`.
    """
    if not isinstance(error, IllegalAddress | KernelTrap):
        return error
    try:
        return _reworded(error, job, nearest_array)
    except (TypeError, ValueError, AttributeError):
        return error  # a field is not of its type: the host's memory is damaged


def symbolized_rejection(error: GpudError, program: CompiledProgram) -> GpudError:
    """``error``, with the instruction instead of its line if a device does not run a kernel.

    Args:
        error: as the device host sent it, when it was told to make the kernel ready.
        program: the kernel's.
    """
    if not isinstance(error, KernelRejected) or not isinstance(error.line, int):
        return error
    told = error.to_wire()
    told["message"] = error.message.replace(f" (PTX line {error.line})", "")
    told["fields"] |= {"instruction": _quoted(program, error.line), "line": None}
    return from_wire(told)


def _reworded(
    error: IllegalAddress | KernelTrap, job: Job, nearest_array: NearestArray
) -> GpudError:
    fields: dict[str, Any] = {name: getattr(error, name) for name in error.fields}
    program = _program(job, error.launch)
    if program is not None:
        fields.update(_place(error, program))
    if isinstance(error, IllegalAddress) and error.space in (None, "global"):
        array = nearest_array(job.session, job.device, error.address)
        if array is not None:
            fields["array"], fields["distance"] = array, _distance(error.address, *array)
    return type(error)(**fields)


def _program(job: Job, launch: int | None) -> CompiledProgram | None:
    """The program of a launch."""
    modules, index = job.chain.modules, launch or 0
    return modules[index].program if 0 <= index < len(modules) else None


def _place(error: IllegalAddress | KernelTrap, program: CompiledProgram) -> dict[str, Any]:
    """What the program says about where an error happened."""
    name = next((one.name for one in program.kernels if one.entry == error.kernel), error.kernel)
    found: dict[str, Any] = {"kernel": name}
    site = _site(program, error.site)
    if site is not None:
        found["instruction"], found["line"] = site.instruction, site.line or None
        if error.file is None:  # an assertion says itself where it stands
            found["file"], found["file_line"] = site.file, site.file_line
    elif error.line is not None:
        found["instruction"], found["line"] = _quoted(program, error.line), None
    return found


def _quoted(program: CompiledProgram, line: int) -> str | None:
    """What stands in a line of the rewritten program, which nobody sees."""
    lines = program.ptx.splitlines()
    return lines[line - 1].strip() if 0 < line <= len(lines) else None


def _site(program: CompiledProgram, number: int | None) -> Site | None:
    sites = program.sites
    return sites[number] if number is not None and 0 <= number < len(sites) else None


def _distance(address: int, start: int, size: int) -> int:
    """Bytes from the nearest byte of an array to an address."""
    return max(0, start - address, address - (start + size - 1))
