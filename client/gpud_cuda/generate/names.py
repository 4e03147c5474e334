"""Generates the table of all names of the CUDA driver API from its headers.

Problem: a program that finds a name missing takes the whole driver for missing, or ends. NVIDIA's
headers know all names, but may not be copied.

Approach: the headers of the runtime's wheel are read when the library is built. Each name gets a
weak function that says that it is not supported; what the sources define is strong and replaces it.
``cuGetProcAddress`` is asked for a name and a version: the type definitions of ``cudaTypedefs.h``
say which versions a function has, in the order of its suffixes ``_v2``, ``_v3`` ...
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

__all__ = ["driver_names", "error_names"]

_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfilerTypedefs.h")
_TYPES = (
    "cudaTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h",
    "cudaProfilerTypedefs.h",
)  # fmt: skip
_DECLARED = re.compile(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(")
_RENAMED = re.compile(r"#\s*define\s+cu[A-Z]\w*\s+(?:__CUDA_API_(PTDS|PTSZ)\()?(cu[A-Z]\w*)")
_VERSIONED = re.compile(r"\bPFN_(cu[A-Z]\w*?)_v(\d+)(_ptds|_ptsz|)\)")
_ERROR = re.compile(r"\b(CUDA_(?:SUCCESS|ERROR_\w+))\s*=\s*(\d+)")


class _Version(NamedTuple):
    """A function as `cuGetProcAddress` finds it: ``symbol`` from CUDA ``version`` on."""

    name: str
    per_thread: bool
    version: int
    symbol: str


def driver_names(include: Path) -> str:
    """Return ``driver_names.c``: a weak function for each name, and the table of versions."""
    versions = _versions(include)
    symbols = sorted(_symbols(include) | {one.symbol for one in versions})
    lines = [
        "/* Generated from the CUDA headers: do not edit. */",
        "#include <stddef.h>",
        '#include "lookup.h"',
        "int unsupported(const char *name);",
    ]
    for symbol in symbols:
        lines.append(
            f'__attribute__((weak, visibility("default"))) int {symbol}(void) '
            f'{{ return unsupported("{symbol}"); }}'
        )
    lines.append("const struct driver_function driver_functions[] = {")
    for one in versions:
        fields = f'"{one.name}", {one.version}, {int(one.per_thread)}, (void (*)(void)){one.symbol}'
        lines.append(f"    {{{fields}}},")
    lines += ["};", f"const size_t driver_function_count = {len(versions)};", ""]
    return "\n".join(lines)


def error_names(include: Path) -> str:
    """Return ``error_names.c``: the name of each error code."""
    codes = {int(code): name for name, code in reversed(_ERROR.findall(_read(include, "cuda.h")))}
    return "\n".join(
        [
            "/* Generated from the CUDA headers: do not edit. */",
            "#include <stddef.h>",
            '#include "failure.h"',
            "const struct error_name error_names[] = {",
            *(f'    {{{code}, "{name}"}},' for code, name in sorted(codes.items())),
            "};",
            f"const size_t error_name_count = {len(codes)};",
            "",
        ]
    )


def _symbols(include: Path) -> set[str]:
    """Return the symbols that the headers declare, also for the per-thread default stream."""
    found: set[str] = set()
    for file in _HEADERS:
        text = _read(include, file)
        found.update(_DECLARED.findall(text))
        for suffix, name in _RENAMED.findall(text):
            found.add(name)
            if suffix:
                found.add(f"{name}_{suffix.lower()}")
    return found


def _versions(include: Path) -> list[_Version]:
    """Return every version of each function, by name and version."""
    known: dict[str, set[int]] = {}
    per_thread: list[tuple[str, int, str]] = []
    for file in _TYPES:
        for name, version, suffix in _VERSIONED.findall(_read(include, file)):
            if suffix:
                per_thread.append((name, int(version), suffix))
            else:
                known.setdefault(name, set()).add(int(version))
    table = [
        _Version(name, False, version, _suffixed(name, place))
        for name, versions in known.items()
        for place, version in enumerate(sorted(versions), 1)
    ]
    for name, version, suffix in per_thread:
        # It came with, or after, the version whose suffix it has.
        place = sum(one <= version for one in known.get(name, ()))
        table.append(_Version(name, True, version, _suffixed(name, place) + suffix))
    return sorted(table)


def _suffixed(name: str, place: int) -> str:
    return name if place < 2 else f"{name}_v{place}"


def _read(include: Path, file: str) -> str:
    return (include / file).read_text("utf-8", "replace")
