"""Errors of programs, kernels and launches that are detected before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from math import prod
from typing import ClassVar

from gpud.errors.base import CallerError, GpudError, shorten

__all__ = [
    "REJECTIONS",
    "AdmissionError",
    "CompileError",
    "EmptySource",
    "ImageError",
    "KernelNotFound",
    "KernelRejected",
    "LaunchConfigError",
    "LinkError",
    "OutOfMemory",
    "PTXSyntaxError",
    "PTXVersionError",
    "UnsupportedTarget",
]

_NAMES_SHOWN = 64
# To compare two names takes time as the product of their lengths.
_NAMES_COMPARED = 256
_COMPARED_LETTERS = 100


class CompileError(CallerError):
    """The source did not compile.

    ``log`` is NVRTC's whole output, the message its first error with the source line.
    """

    code = "compile"
    fields: ClassVar[Mapping[str, str]] = {"log": "the compiler's complete log, empty if none"}
    log: str

    def __init__(self, message: str, *, log: str = "") -> None:
        super().__init__(message, log=log)


class EmptySource(CompileError, ValueError):
    """The source is empty or blank."""

    code = "empty-source"

    def __init__(self) -> None:
        super().__init__(
            "the source is empty; pass CUDA C++ or PTX text that defines at least one kernel"
        )


class ImageError(CompileError):
    """The image of a program holds no PTX that gpud could run."""

    code = "image"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "kind": "what it is: 'machine-code', 'no-ptx' (a fat binary without any), 'lto-ir', "
        "'nvvm-ir', 'library', 'wrapper', 'damaged', 'empty' or 'unknown'",
    }
    kind: str

    def __init__(self, message: str, *, kind: str) -> None:
        GpudError.__init__(self, message, log="", kind=kind)


class LinkError(CompileError):
    """Several images cannot be linked: a name is defined twice, not at all, or differently."""

    code = "link"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "names": "the names, as they are in the PTX",
    }
    names: tuple[str, ...]

    def __init__(self, message: str, *, names: Sequence[str]) -> None:
        GpudError.__init__(self, message, log="", names=tuple(names))


class PTXSyntaxError(CompileError):
    """The text is not PTX, or not well-formed PTX."""

    code = "ptx-syntax"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "line": "line in the PTX text, from 1",
        "column": "column in that line, from 1; a tab is one column",
        "text": "the text of that line",
    }
    line: int | None
    column: int | None
    text: str | None

    def __init__(
        self,
        problem: str,
        *,
        line: int | None = None,
        column: int | None = None,
        text: str | None = None,
    ) -> None:
        place = "" if column is None else f", column {column}"
        where = "" if line is None else f"PTX line {line}{place}: "
        shown = "" if text is None else f": {shorten(text)}"
        GpudError.__init__(
            self, f"{where}{problem}{shown}", log="", line=line, column=column, text=text
        )


class PTXVersionError(CompileError):
    """The PTX has a newer ISA version than gpud, or the device's driver, supports."""

    code = "ptx-version"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "version": "the version that the PTX declares, such as '9.9'",
        "newest": "the newest supported version",
    }
    version: str
    newest: str

    def __init__(self, version: str, newest: str) -> None:
        message = (
            f"the PTX is of ISA version {version}, gpud reads up to {newest}; compile it with an "
            "older CUDA toolkit, or pass the CUDA C++ source instead"
        )
        GpudError.__init__(self, message, log="", version=version, newest=newest)


class UnsupportedTarget(CompileError, ValueError):
    """The compiler does not support the requested architecture."""

    code = "unsupported-target"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "target": "the requested architecture",
        "supported": "the architectures that the compiler supports",
    }
    target: str
    supported: tuple[str, ...]

    def __init__(self, target: str, supported: Sequence[str]) -> None:
        message = f"unsupported architecture {target!r}; this compiler knows {', '.join(supported)}"
        GpudError.__init__(self, message, log="", target=target, supported=tuple(supported))


class KernelNotFound(CompileError, LookupError):
    """The program defines no kernel of that name."""

    code = "kernel-not-found"
    fields: ClassVar[Mapping[str, str]] = {
        **CompileError.fields,
        "name": "the requested name",
        "available": "the kernels that the program defines, None if not known",
    }
    name: str
    available: tuple[str, ...] | None

    def __init__(
        self,
        name: str,
        available: Sequence[str] | None = None,
        *,
        cause: str = "",
        log: str = "",
    ) -> None:
        detail = f": {cause}" if cause else ""
        if available is not None:
            shown = ", ".join(map(shorten, available[:_NAMES_SHOWN])) or "no kernel"
            more = len(available) - _NAMES_SHOWN
            detail += f"; it defines {shown}" + (f" and {more} more" if more > 0 else "")
        near = _similar(name.partition("<")[0], available or ())
        if near and near[0] != name.partition("<")[0]:
            hint = f"Did you mean {near[0]!r}?"
        elif available is not None and not cause and "<" in name:
            hint = f'A template is compiled for what is named then: module(source, ["{name}"])'
        else:
            hint = (
                'Names are mangled unless the kernel is extern "C"; a template needs its '
                'arguments, as in "axpy<float>"'
            )
        message = f"no kernel {name!r} in this program{detail}. {hint}"
        known = None if available is None else tuple(available)
        GpudError.__init__(self, message, log=log, name=name, available=known)


def _similar(name: str, known: Sequence[str]) -> list[str]:
    """Return the known name that is most like ``name``, if one is; long names are not compared."""
    if len(name) > _COMPARED_LETTERS:
        return []
    short = [one for one in known[:_NAMES_COMPARED] if len(one) <= _COMPARED_LETTERS]
    return get_close_matches(name, short, 1)


REJECTIONS: Mapping[str, str] = {
    "unresolved-external": "calls a function that the program does not define, such as a "
    "device-side launch",
    "texture": "uses layered or cube textures, gathers, samplers, or references to them",
    "tensor-core": "uses tensor-core instructions, which this device does not run",
    "target-too-new": "is written for a newer architecture than the device's",
    "unsupported-instruction": "uses an instruction that this device does not run",
    "form-not-legal": "cannot run in the form that was asked for",
    "parameters-full": "has so many bytes of parameters that there is no room for a hidden one",
    "reserved-name": "defines a name that gpud uses for its own functions and variables",
}
"""Reason codes of `KernelRejected`, each with what the rejected kernel does."""


class KernelRejected(CallerError):
    """The kernel is valid, but gpud cannot run it under its guarantees.

    ``reason`` is one of `REJECTIONS`.
    """

    code = "kernel-rejected"
    fields: ClassVar[Mapping[str, str]] = {
        "reason": "reason code, one of gpud.errors.REJECTIONS",
        "instruction": "the PTX instruction that caused the rejection, if one did",
        "line": "its line in the PTX text, from 1",
    }
    reason: str
    instruction: str | None
    line: int | None

    def __init__(
        self,
        reason: str,
        message: str,
        instruction: str | None = None,
        line: int | None = None,
    ) -> None:
        where = "" if instruction is None else f": {shorten(instruction)}"
        if line is not None:
            where += f" (PTX line {line})"
        super().__init__(
            f"{message}{where} [{reason}]", reason=reason, instruction=instruction, line=line
        )


class LaunchConfigError(CallerError, ValueError):
    """The kernel or the device does not allow this grid, block or shared memory size."""

    code = "launch-config"
    fields: ClassVar[Mapping[str, str]] = {
        "parameter": "'grid', 'block' or 'shared'",
        "value": "the value that was given; grid and block as a tuple (x, y, z)",
        "limit": "the largest value allowed, None if the value is too small or malformed",
    }
    parameter: str
    value: int | tuple[int, ...]
    limit: int | None

    def __init__(
        self,
        parameter: str,
        value: int | Sequence[int],
        problem: str,
        *,
        limit: int | None = None,
    ) -> None:
        plain = value if isinstance(value, int) else tuple(value)
        super().__init__(
            f"{parameter}={plain}: {problem}", parameter=parameter, value=plain, limit=limit
        )

    @classmethod
    def check_together(cls, grid: Sequence[int], occupancy: int, sms: int) -> None:
        """Check that all blocks of a grid can be resident at once.

        Args:
            grid: number of blocks in x, y, z.
            occupancy: how many blocks fit on an SM.
            sms: number of SMs.

        Raises:
            LaunchConfigError: they cannot, so that `grid.sync()` would never return.
        """
        if prod(grid) > sms * occupancy:
            problem = f"a kernel that synchronises its grid needs all {prod(grid)} blocks at once, "
            problem += f"and {sms * occupancy} such blocks fit on the device's {sms} SMs; launch "
            problem += "fewer, and let each do more"
            raise cls("grid", grid, problem, limit=sms * occupancy)


class AdmissionError(CallerError):
    """The device can never grant the requested share."""

    code = "admission"
    fields: ClassVar[Mapping[str, str]] = {
        "requested": "the requested share in SMs, an exact number as text ('7/2')",
        "capacity": "the most that can be granted in SMs, an exact number as text",
    }
    requested: str
    capacity: str

    def __init__(self, problem: str, *, requested: object, capacity: object) -> None:
        super().__init__(problem, requested=str(requested), capacity=str(capacity))


class OutOfMemory(CallerError, MemoryError):
    """An allocation is larger than the memory that is left."""

    code = "out-of-memory"
    fields: ClassVar[Mapping[str, str]] = {
        "requested_bytes": "the requested size",
        "available_bytes": "the largest size that could have been granted",
        "limit": "the limit that was reached: 'device', 'user', 'session', 'jobs' (unfinished jobs "
        "may use freed arrays), 'arena' (no contiguous range is large enough), 'kernels' (memory "
        "or addresses cannot be recovered while certain kernels run), 'zones' (of no device that a "
        "workload could be on), 'offset' (a workload's room to grow) or 'temporary' (what a "
        "workload asked for within an iteration); None if not known",
    }
    requested_bytes: int
    available_bytes: int
    limit: str | None

    def __init__(
        self, requested_bytes: int, available_bytes: int, *, limit: str | None = None
    ) -> None:
        message = (
            f"{requested_bytes} bytes were asked for, {available_bytes} are available"
            f"{_LIMITS.get(limit or '', _LIMITS['session'])}"
        )
        super().__init__(
            message,
            requested_bytes=requested_bytes,
            available_bytes=available_bytes,
            limit=limit,
        )


_LIMITS = {
    "session": " to this session; free arrays, or have the daemon's setting session_memory raised",
    "user": " to this user; free arrays of your other sessions, or have the daemon's setting "
    "user_memory raised",
    "device": " on the device; free arrays, wait until other sessions have ended, or have the "
    "daemon's setting memory raised",
    "kernels": " on the device as long as kernels run that cannot be interrupted for more; wait "
    "until they are over, or free arrays",
    "jobs": " until jobs end that use arrays which are freed or dropped; wait for their result()",
    "zones": " on the largest device that the workload could be on, for its persistent memory, the "
    "offset behind it and its temporary memory together; ask for less",
    "offset": " at the workload's place; free what it keeps, or open it with a larger offset",
    "temporary": " of the workload's temporary memory; open it with more",
    "arena": " in one piece; free arrays between others, or allocate the large ones first",
}
