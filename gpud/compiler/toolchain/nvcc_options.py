"""The options of a build with nvcc: which NVRTC gets, which mean nothing here, which name headers.

Problem: the options of a program that exists are nvcc's. NVRTC refuses those for the host's
compiler, the assembler and the linker, and gpud chooses the target.

Approach: what means nothing here is left out, with a line in the log; ``-include`` of a header
that came with the source becomes an ``#include`` before it; a folder of headers is refused with
what to do instead, since the daemon does not read the files of its clients.

Source: nvcc 13.0 documentation, section 4.2 (command options).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from gpud.errors import InvalidArgument

__all__ = ["Options", "sorted_options"]

_TARGET = "gpud compiles for its device"
_HOST = "nothing is compiled or linked here for the host"
_ASSEMBLER = "the device's driver assembles"

_VALUED = {
    **dict.fromkeys(
        ("arch", "gpu-architecture", "gencode", "generate-code", "code", "gpu-code"), _TARGET
    ),
    **dict.fromkeys(("Xptxas", "ptxas-options", "Xnvlink", "nvlink-options"), _ASSEMBLER),
    **dict.fromkeys(
        ("Xcompiler", "compiler-options", "Xlinker", "linker-options", "ccbin", "compiler-bindir",
         "cudart", "l", "library", "L", "library-path", "Xarchive", "archive-options", "m",
         "machine", "o", "output-file", "x", "t", "threads"),
        _HOST,
    ),
    "O": _ASSEMBLER,
    "optimize": _ASSEMBLER,
}  # fmt: skip
_PLAIN = {
    **dict.fromkeys(
        ("g", "debug", "pg", "profile", "c", "compile", "dc", "device-c", "ptx", "shared", "v",
         "verbose", "m64", "forward-unknown-to-host-compiler"),
        _HOST,
    ),
    **dict.fromkeys(("resource-usage", "res-usage"), _ASSEMBLER),
    **dict.fromkeys(("expt-relaxed-constexpr",), "it is so here"),
}  # fmt: skip
_ATTACHED = re.compile(r"-(O\d|l(?!ineinfo)[\w.+-]+|L.+|t\d+)", re.ASCII)
_FOLDER = re.compile(r"\s*--?(I|isystem|include-path|system-include)\b(?!=?$)|\s*-I")
_INCLUDE = re.compile(r"--?(include|pre-include)(?:=(.*))?", re.DOTALL)
_NAMED = re.compile(r"--?([A-Za-z][A-Za-z0-9-]*)(=?)", re.ASCII)


class Options(NamedTuple):
    """Options of a compilation, sorted.

    Attributes:
        given: For NVRTC, in order.
        included: Names of headers to include before the source.
        note: For the log: a line about what is left out; empty if nothing is.
    """

    given: tuple[str, ...]
    included: tuple[str, ...]
    note: str


def sorted_options(options: Sequence[str], headers: Collection[str] = ()) -> Options:
    """Sort the options of a build; ``headers`` are the names of those that came with the source.

    Raises:
        InvalidArgument: One of them names a folder of headers, or a header that is not given.
    """
    if isinstance(options, str):
        raise TypeError(f"options is a sequence with one option an item, not the str {options!r}")
    given: list[str] = []
    included: list[str] = []
    left: dict[str, str] = {}
    rest = list(options)
    while rest:
        option = rest.pop(0)
        if _FOLDER.match(option):
            raise InvalidArgument(
                f"option {option[:80]!r}: the compiler reads no folder of yours; give the texts of "
                'headers, headers={"name.h": text}, or use gpuctl run -I FOLDER'
            )
        if match := _INCLUDE.fullmatch(option):
            name = match[2] if match[2] is not None else rest.pop(0) if rest else ""
            if name not in headers:
                raise InvalidArgument(
                    f"option {option[:80]!r}: give the header's text: headers={{name: text}}"
                )
            included.append(name)
            continue
        why, words = _without_meaning(option, rest)
        if why:
            del rest[: words - 1]
            left[option] = why
        else:
            given.append(option)
    whys = dict.fromkeys(left.values())
    parts = (f"{', '.join(o for o in left if left[o] == why)} ({why})" for why in whys)
    note = f"left out: {'; '.join(parts)}\n" if left else ""
    return Options(tuple(given), tuple(included), note)


def _without_meaning(option: str, rest: Sequence[str]) -> tuple[str, int]:
    """Return why an option means nothing here (empty: it does not) and its number of items."""
    match = _NAMED.fullmatch(option) or _NAMED.match(option)
    if match is None:
        return "", 1
    name, attached = match[1], bool(match[2])
    if option == match[0] and not attached and name in _PLAIN:
        return _PLAIN[name], 1
    if name in _VALUED and (attached or option == match[0]):
        follows = not attached and bool(rest) and not rest[0].startswith("--")
        return _VALUED[name], 2 if follows and (name != "O" or rest[0].isdigit()) else 1
    if _ATTACHED.fullmatch(option):
        return (_ASSEMBLER if option[1] == "O" else _HOST), 1
    return "", 1
