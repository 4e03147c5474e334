"""Compiles CUDA C++ to PTX with NVRTC. Needs no GPU and no driver.

Problem: users write kernels as CUDA C++ strings; all later stages work on PTX.

Approach: one checked interface to the library. Every NVRTC call goes through `_call`, which turns
each status but success into an error of `gpud.errors`, so that no caller sees a bare return code.

Terms:
    arch: a virtual architecture, ``compute_75``; only these give PTX that every device can load.
    name expression: C++ that names a kernel, ``"axpy<float>"``, ``"ns::k"``. Naming a template's
        instance makes NVRTC instantiate it; its lowered (mangled) name is its name in the PTX.

Properties:
    deterministic: equal arguments, headers and NVRTC version give equal PTX;
    thread-safe: programs share nothing, and NVRTC's functions may be called from any thread;
    nothing leaks: the program is destroyed on every path.

NVRTC is the one that ``cuda-bindings`` loads: 13.0 with the extra ``daemon``, 12.9 with ``cuda12``.

Source: NVRTC user guide 13.0 (API, options, language).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, cast

from gpud.compiler.kernel_names import is_mangled
from gpud.compiler.toolchain.c_headers import C_HEADERS
from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
from gpud.compiler.toolchain.host_code import DeviceCode, without_host_code
from gpud.compiler.toolchain.host_headers import HOST_HEADERS
from gpud.compiler.toolchain.nvcc_options import sorted_options
from gpud.errors import (
    CompileError,
    EmptySource,
    InternalError,
    KernelNotFound,
    MissingDependency,
    UnsupportedTarget,
)

__all__ = [
    "DEFAULT_ARCH",
    "SOURCE_NAME",
    "CompiledSource",
    "compile_cuda",
    "newest_arch",
    "nvrtc_version",
    "supported_archs",
]

SOURCE_NAME = "kernel.cu"
"""The file name of sources in messages and line information; ``#line 1 "NAME"`` changes it."""

DEFAULT_ARCH = "compute_75"
"""The oldest architecture of CUDA 13; its PTX loads on every device from Turing on."""

# With these options NVRTC writes or loads files, at any path, with the rights of the daemon.
# NVRTC skips white space before an option.
_FILE_OPTION = re.compile(r"\s*--?(time|fdevice-time-trace|create-pch|use-pch|pch|pch-dir)(=|\s|$)")
_STD_OPTION = re.compile(r"(--std|-std)(=|$)")
_DEVICE_OPTION = re.compile(r"\s*--?(device-as-default-execution-space|default-device)\b")
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')


@dataclass(frozen=True, slots=True)
class CompiledSource:
    """The result of compiling one source.

    Attributes:
        ptx: The program, ending in a newline.
        log: NVRTC's log: warnings and remarks; may be empty.
        lowered_names: The PTX name of each requested name expression.
    """

    ptx: str
    log: str = ""
    lowered_names: dict[str, str] = field(default_factory=dict)


def compile_cuda(
    source: str,
    *,
    arch: str = DEFAULT_ARCH,
    options: Sequence[str] = (),
    name_expressions: Sequence[str] = (),
    headers: Mapping[str, str] = MappingProxyType({}),
) -> CompiledSource:
    """Compile CUDA C++ to PTX. Blocks for 10 to 100 ms for an ordinary kernel.

    The language is C++17 unless ``options`` say otherwise, with integers of 128 bits. A source
    that does not compile is tried again without its host code, see
    `gpud.compiler.toolchain.host_code`; the log names what was skipped. CUDA's headers can be
    included if the machine has them, see `gpud.compiler.toolchain.cuda_headers`, and those of C,
    see `gpud.compiler.toolchain.c_headers`.

    Args:
        source: CUDA C++ text; kernels are ``__global__`` functions.
        arch: A virtual architecture: one of `supported_archs`, from 9.0 on also with the suffix
            ``a``, from 10.0 on also ``f``.
        options: Further NVRTC options, one per item: ``"-DN=4"``, ``"--use_fast_math"``. Those of
            nvcc that mean nothing here are left out, and the log says so.
        name_expressions: Kernels to keep and to look up, ``"axpy<float>"``; mangled names, which
            are not C++, are left out.
        headers: Texts of further headers by the names in ``#include``.

    Raises:
        EmptySource: ``source`` is empty or blank.
        UnsupportedTarget: ``arch`` is not a virtual architecture that this NVRTC knows.
        KernelNotFound: A name expression names nothing in the source.
        CompileError: NVRTC refused the source or an option; ``log`` is its log.
        InvalidArgument: An option names a folder of headers, or a header that is not given.
        MissingDependency: NVRTC or cuda-bindings is not installed.
        ValueError: A text passed to NVRTC holds a NUL character.
    """
    if not source.strip():
        raise EmptySource
    _check_arch(arch)
    options, included, note = sorted_options(options, headers)
    _check_options(options)
    if included:
        lines = "".join(f'#include "{name}"\n' for name in included)
        source = f'{lines}#line 1 "{SOURCE_NAME}"\n{source}'
    standard = () if any(map(_STD_OPTION.match, options)) else ("--std=c++17",)
    arguments = [
        f"--gpu-architecture={arch}",
        "--device-int128",
        *standard,
        *options,
        *(f"--include-path={path}" for path in cuda_include_paths(nvrtc_version()[0])),
    ]
    expressions = [name for name in name_expressions if not is_mangled(name)]
    try:
        compiled = _compiled(source, C_HEADERS | dict(headers), arguments, expressions)
    except CompileError as error:
        device = _device_code(source, options, error, headers=bool(headers))
        if device is None:
            raise
    else:
        return replace(compiled, log=note + compiled.log)
    own = {name: without_host_code(text, options).text for name, text in headers.items()}
    known = C_HEADERS | HOST_HEADERS | own
    try:
        compiled = _compiled(device.text, known, arguments, expressions)
    except CompileError as error:
        _add_hint(error, device)
        raise error from None
    return replace(compiled, log=note + compiled.log + _skipped(device))


def _compiled(
    source: str,
    headers: Mapping[str, str],
    arguments: Sequence[str],
    expressions: Sequence[str],
) -> CompiledSource:
    with _Program(source, headers) as program:
        for expression in expressions:
            program.add_name_expression(expression)
        log = program.compile(arguments)
        lowered = {name: program.lowered_name(name) for name in expressions}
        return CompiledSource(program.ptx(), log, lowered)


def _device_code(
    source: str, options: Sequence[str], refusal: CompileError, *, headers: bool
) -> DeviceCode | None:
    """Return a refused source without its host code; None: that would not help."""
    if any(map(_DEVICE_OPTION.match, options)):
        return None
    device = without_host_code(source, options)
    changed = device.text != source or "cannot open source file" in refusal.message
    # In a header that is not the user's, host code is not the user's either: as in cub/cub.cuh.
    changed = changed or headers or "not allowed in JIT mode" in refusal.message
    return None if device.empty or not changed else device


def _skipped(device: DeviceCode) -> str:
    """Return a line for the log about what was not compiled."""
    names = [f"{name} (line {line})" for name, line in device.names.items()]
    more = f" and {len(names) - 20} more" if len(names) > 20 else ""
    return f"skipped for the host: {', '.join(names[:20])}{more}\n" if names else ""


def _add_hint(error: CompileError, device: DeviceCode) -> None:
    """Say in an error about an unknown name that it was host code, if it was."""
    unknown = _UNDEFINED.search(error.message)
    if unknown and unknown[1] in device.names:
        error.message += (
            f"\n{unknown[1]!r}, line {device.names[unknown[1]]}, has no __device__ and is "
            "skipped as host code"
        )


def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version, ``(13, 0)``.

    Raises:
        MissingDependency: NVRTC or cuda-bindings is not installed.
    """
    major, minor = _call("nvrtcVersion")
    return int(major), int(minor)


@cache
def supported_archs() -> tuple[str, ...]:
    """Return the virtual architectures that this NVRTC compiles for, oldest first.

    Raises:
        MissingDependency: NVRTC or cuda-bindings is not installed.
    """
    (numbers,) = _call("nvrtcGetSupportedArchs")
    return tuple(f"compute_{number}" for number in sorted(numbers))


def newest_arch(sm: int | None) -> str:
    """Return the newest architecture that a device of compute capability ``sm`` runs.

    Args:
        sm: The capability, 90 for 9.0. For None, or one older than all, the result is
            `DEFAULT_ARCH`.

    Raises:
        MissingDependency: NVRTC or cuda-bindings is not installed.
    """
    known = [a for a in supported_archs() if sm is not None and int(a.split("_")[1]) <= sm]
    return known[-1] if known else DEFAULT_ARCH


def _check_arch(arch: str) -> None:
    supported = supported_archs()
    match = re.fullmatch(r"(compute_(\d+))([af]?)", arch)
    # Features of one device (a) exist since 9.0, those of one family (f) since 10.0.
    if (
        match is None
        or match[1] not in supported
        or int(match[2]) < {"": 0, "a": 90, "f": 100}[match[3]]
    ):
        raise UnsupportedTarget(arch, supported)


def _check_options(options: Sequence[str]) -> None:
    for option in options:
        if _FILE_OPTION.match(option):
            raise CompileError(
                f"option {option!r}: it has the compiler read or write a file; leave it out"
            )


class _Program:
    """One ``nvrtcProgram``, destroyed when its ``with`` block ends."""

    def __init__(self, source: str, headers: Mapping[str, str]) -> None:
        self._source = source
        (self._handle,) = _call(
            "nvrtcCreateProgram",
            _bytes(source),
            _bytes(SOURCE_NAME),
            len(headers),
            [_bytes(text) for text in headers.values()],
            [_bytes(name) for name in headers],
        )

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *_: object) -> None:
        _call("nvrtcDestroyProgram", self._handle)

    def add_name_expression(self, expression: str) -> None:
        _call("nvrtcAddNameExpression", self._handle, _bytes(expression))

    def compile(self, arguments: Sequence[str]) -> str:
        """Compile and return the log."""
        encoded = [_bytes(argument) for argument in arguments]
        status, *_ = _bindings().nvrtcCompileProgram(self._handle, len(encoded), encoded)
        log = _WHY_NOT_OPENED.sub(r"\1", self._text("nvrtcGetProgramLogSize", "nvrtcGetProgramLog"))
        if status.name == "NVRTC_SUCCESS":
            return log
        if status.name in _CALLERS_FAULT:
            raise _compile_error(self._source, log, status.name)
        raise InternalError(f"NVRTC failed: {status.name}; its log: {log!r}", stage="nvrtc")

    def lowered_name(self, expression: str) -> str:
        (name,) = _call("nvrtcGetLoweredName", self._handle, _bytes(expression))
        return str(name.decode())

    def ptx(self) -> str:
        text = self._text("nvrtcGetPTXSize", "nvrtcGetPTX")
        # NVRTC puts the working folder, the daemon's, before names of files that are relative.
        folder = re.escape(str(Path.cwd()).rstrip("/")) + "/"
        if folder == "/":  # as a service's is: absolute names begin with it, too
            folder += '(?=[^/"]*")'
        return re.sub(rf'^(\s*\.file\s+\d+\s*"){folder}', r"\1", text, flags=re.MULTILINE)

    def _text(self, size_call: str, text_call: str) -> str:
        """Read one of the program's texts, without its final NUL."""
        (size,) = _call(size_call, self._handle)
        # NVRTC writes into the buffer, which must not be shared: `b" " * n` for n = 1 is an object
        # that the whole interpreter shares, and an empty log has size 1.
        buffer = bytearray(size)
        _call(text_call, self._handle, buffer)
        return buffer.rstrip(b"\0").decode("utf-8", errors="replace")


# Statuses that the source, the options or a name expression can cause; every other one is an error
# of gpud's or the library's.
_CALLERS_FAULT = frozenset({"NVRTC_ERROR_COMPILATION", "NVRTC_ERROR_INVALID_OPTION"})

_ERROR = re.compile(r"^(?P<where>.*?)(?:catastrophic )?error(?:: | #)(?P<what>.*)$", re.MULTILINE)
# "Permission denied" would say of a file that it is there.
_WHY_NOT_OPENED = re.compile(r'(cannot open source file "[^"\n]*"): [^\n]*')
_COUNT = re.compile(r"\n*^\d+ errors? detected in the compilation of .*\n?", re.MULTILINE)
_NO_HEADER = (
    "; there are CUDA's own headers, cuda/std/, cub/block/ and cub/warp/, curand_kernel.h where "
    "nvidia-curand is installed (nvidia-curand-cu12 for CUDA 12), the usual ones of C, such as "
    "stdio.h and cstdint, and none of the C++ library or of other folders: give your own with "
    'headers={"name.h": text}, or gpuctl run -I FOLDER'
)
_NO_HOST = "; nothing is compiled here for the host: leave it out"
_NO_LAUNCH = (
    "; kernels do not launch kernels here: submit them one after the other (gpu.sequence), or call "
    "the inner one's work as a __device__ function, in a loop"
)
_HINTS = {
    "cannot open source file": _NO_HEADER,
    "not allowed in JIT mode": _NO_HOST,
    "device-side kernel launch": _NO_LAUNCH,
}
_NAME_EXPRESSION = re.compile(
    r"^__nv_name_map\(\d+\): error: (?P<what>.*)\n *#pragma nv_mangled_name (?P<name>.*)$",
    re.MULTILINE,
)


_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_KERNEL = re.compile(r"\b__global__\b[^;{}]{0,300}?\b(?!__launch_bounds__\b)(\w+)\s*\(")


def _kernels(source: str) -> tuple[str, ...]:
    """Return the names of the kernels that a source seems to define, for an error message."""
    return tuple(dict.fromkeys(_KERNEL.findall(_COMMENT.sub(" ", source))))


def _excerpt(log: str, error: re.Match[str]) -> str:
    """Return the source line and the caret that follow an error in the log, each on a new line."""
    after = log[error.end() :].partition("\n\n")[0].strip("\n").splitlines()
    return "".join(f"\n{line}" for line in after[:2]) if "^" in "".join(after[1:2]) else ""


def _compile_error(source: str, log: str, status: str) -> CompileError:
    """Return the error of a refused source: the first in the log, or that of a name expression."""
    # NVRTC compiles name expressions in a file of their own. Errors there may be consequences of
    # errors in the source, but come first in the log.
    errors = [e for e in _ERROR.finditer(log) if not e["where"].startswith("__nv_name_map(")]
    in_name = _NAME_EXPRESSION.search(log)
    if in_name and not errors:
        name, what = in_name["name"].strip(), in_name["what"]
        return KernelNotFound(name, _kernels(source) or None, cause=what, log=log)
    if not errors:
        return CompileError(f"NVRTC refused the source: {status}", log=log)
    more = f" (the first of {len(errors)} errors; the log has all)" if len(errors) > 1 else ""
    hints = [hint for text, hint in _HINTS.items() if text in errors[0]["what"]]
    first = errors[0].group().strip()
    log = _COUNT.sub("", log)  # it names a file that is not the user's, and says what is known
    return CompileError("".join((first, more, *hints, _excerpt(log, errors[0]))), log=log)


# -- the interface to the library --------------------------------------------------------------


def _call(function: str, *arguments: Any) -> tuple[Any, ...]:
    """Call NVRTC and returns its results without the status.

    Raises:
        InternalError: The status is not success. `_Program.compile` handles its status itself.
    """
    status, *results = getattr(_bindings(), function)(*arguments)
    if status.name != "NVRTC_SUCCESS":
        raise InternalError(f"{function} failed: {status.name}", stage="nvrtc")
    return tuple(results)


@cache
def _bindings() -> ModuleType:
    """Import the bindings on first use, and checks that they find the library."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise MissingDependency("cuda-bindings", extra="daemon", cause=str(error)) from error
    try:
        nvrtc.nvrtcVersion()
    except (RuntimeError, OSError) as error:  # how the bindings report a library that is absent
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingDependency("NVRTC (libnvrtc)", extra="daemon", cause=cause) from error
    return cast("ModuleType", nvrtc)


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise ValueError(f"text for NVRTC must not hold a NUL character: {text[:60]!r}")
    return text.encode()
