"""The compiler options and headers that clients' sources may use.

Problem: the compiler runs as the daemon's user. NVRTC reads every file that ``#include`` names, and
quotes its lines in error messages; some of its options write files. Another user's source could
read files of the daemon's user, ``/proc/self/environ`` for instance, or fill the disk.

Approach: options are allowed by name; options that access files are not allowed. An ``#include``
may only name a header in the folders that gpud searches, by a relative path without ``..``. These
checks give precise errors, but are not the security boundary: a macro can make a name that is not
seen here. The boundary is `gpud.compiler.process.landlock`, if the Linux kernel has it; otherwise
sources with names made by macros are refused.

Properties:
    precise: the error names the option or the header, and what to do;
    no_files: an accepted source without names made by macros opens no file but the CUDA headers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpud.errors import InvalidArgument

__all__ = ["check_includes", "check_options"]

# By name without hyphens. NVRTC's other options read or write files, make something else than PTX,
# or name the target, which gpud chooses.
_WITHOUT_VALUE = frozenset({
    "device-debug", "G", "generate-line-info", "lineinfo", "use_fast_math", "device-int128",
    "extra-device-vectorization", "device-as-default-execution-space", "default-device",
    "restrict", "disable-warnings", "w", "display-error-number", "err-no",
    "no-display-error-number", "no-err-no", "brief-diagnostics", "brief-diag", "no-source-include",
    "minimal", "relocatable-device-code", "rdc", "extensible-whole-program", "ewp", "Werror",
})  # fmt: skip
_WITH_VALUE = frozenset({
    "define-macro", "D", "undefine-macro", "U", "maxrregcount", "ftz", "prec-sqrt", "prec-div",
    "fmad", "std", "dopt", "diag-error", "diag-suppress", "diag-warn", "brief-diagnostics",
    "brief-diag", "builtin-move-forward", "builtin-initializer-list", "jump-table-density",
    "relocatable-device-code", "rdc", "use_fast_math", "device-float128", "modify-stack-limit",
    "optimization-info", "opt-info", "split-compile", "generate-line-info", "device-debug",
    "extra-device-vectorization", "frandom-seed", "Ofast-compile", "Ofc",
})  # fmt: skip
_SPACE = re.compile(r"\s")
_OPTION = re.compile(r"(--?)([A-Za-z][A-Za-z0-9_-]*)(=?)", re.ASCII)
_ATTACHED = ("D", "U")  # their value may follow immediately: -DN=4

# A line may be continued anywhere; trigraphs are spellings of characters.
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
# Comments may stand between tokens; they are not removed first, since a string may contain "/*".
# No part of this pattern can match in two ways, so it takes linear time.
_GAP = r"(?:[ \t\v\f\r]|/\*[^*]*\*+(?:[^/*][^*]*\*+)*/)*"
_DIRECTIVE = re.compile(
    rf"(?:^|\n){_GAP}(?:#|%:){_GAP}(?:include(?:_next)?|import)\b{_GAP}([^\n]*)", re.ASCII
)
_TEST = re.compile(rf"__has_include(?:_next)?\b{_GAP}(?:\({_GAP}([^\n]*))?", re.ASCII)
_NAME = re.compile(r"(?:<([^<>\n]*)>|\"([^\"\n]*)\")")


def check_options(options: Sequence[str]) -> None:
    """Check that clients may use these options.

    Raises:
        InvalidArgument: one of them is not allowed.
    """
    value_of: str | None = None
    for option in options:
        if value_of is not None and not option.startswith("-"):
            value_of = None  # this is the value of the previous option
            continue
        name, attached = _named(option)
        if name in _ATTACHED and attached:
            value_of = None
        elif attached and name in _WITH_VALUE and not _SPACE.search(option):
            value_of = None
        elif not attached and name in _WITHOUT_VALUE:
            value_of = name if name in _WITH_VALUE else None
        elif not attached and name in _WITH_VALUE:
            value_of = name
        else:
            raise InvalidArgument(
                f"the daemon does not take the compiler option {option[:80]!r}; it takes those "
                "that concern the language and the code alone. Leave it out if it names a target "
                "(the daemon compiles for its device) or is for nvcc or ptxas; put headers into "
                "the source instead of naming their folder"
            )


def _named(option: str) -> tuple[str, bool]:
    """Return the option's name without hyphens, and whether its value is attached."""
    if option[:2] in ("-D", "-U"):
        return option[1], len(option) > 2
    match = _OPTION.match(option)
    if match is None or (not match[3] and match.end() < len(option)):
        return "", False
    return match[2], bool(match[3])


def check_includes(source: str, *, macros: bool) -> None:
    """Check that a source only names headers in the folders that gpud searches.

    Args:
        source: CUDA C++.
        macros: whether names made by macros, which cannot be checked here, are allowed.

    Raises:
        InvalidArgument: it names another file.
    """
    plain = _SPLICE.sub("", source.replace("??/", "\\").replace("??=", "#"))
    if "include" not in plain and "import" not in plain:
        return
    for operand in _DIRECTIVE.findall(plain):
        _check_name(operand, macros)
    for operand in _TEST.findall(plain):
        _check_name(operand, macros)


def _check_name(operand: str, macros: bool) -> None:
    match = _NAME.match(operand)
    if match is None:
        if macros or not operand.strip():
            return
        raise InvalidArgument(
            f"#include {operand.strip()[:80]}: the daemon includes headers by their names only, "
            "not by macros; write the name, or put the header's text into the source"
        )
    name = match[1] if match[1] is not None else match[2]
    if name.startswith("/") or ".." in name.split("/"):
        raise InvalidArgument(
            f"#include of {name[:200]!r}: the daemon includes the CUDA headers only, and reads no "
            "other file for a client; put the header's text into the source"
        )
