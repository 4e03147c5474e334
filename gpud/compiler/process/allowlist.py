"""The compiler options and headers that clients' sources may use.

Problem: the compiler runs as the daemon's user. NVRTC reads every file that ``#include`` names, and
quotes its lines in error messages; some of its options write files. Another user's source could
read files of the daemon's user, ``/proc/self/environ`` for instance, or fill the disk.

Approach: options are allowed by name; options that access files are not allowed. An ``#include``
may only name a header in the folders that gpud searches, by a relative path without ``..``. It is
looked for as tokens wherever it may stand, in strings and comments, too: what is a line, a comment
or a string for NVRTC is for NVRTC to say. These checks give precise errors, but where macros may
make names they are not the security boundary. That is `gpud.compiler.process.landlock`, if the
Linux kernel has it; otherwise what macros could make of another user's source is refused.

Properties:
    precise: the error names the option or the header, and what to do;
    no_files: a source that is accepted without macros makes NVRTC open, and look for, no file but
        those in the folders of headers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from gpud.compiler.toolchain.nvcc_options import sorted_options
from gpud.errors import InvalidArgument

__all__ = ["check_headers", "check_includes", "check_options"]

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
_NO_NAME = re.compile(r"[\x00-\x1f\"<>\\]")
_OPTION = re.compile(r"(--?)([A-Za-z][A-Za-z0-9_-]*)(=?)", re.ASCII)
_ATTACHED = ("D", "U")  # their value may follow immediately: -DN=4

# A line may be continued anywhere; trigraphs are spellings of characters.
_SPLICE = re.compile(r"\\[ \t\v\f]*(?:\r\n|\n|\r)")
_HASH = re.compile(r"#|%:")
_DIRECTIVE = re.compile(r"(?:include(?:_next)?|import|embed)\b", re.ASCII)
_IMPORT = re.compile(r"\bimport\b(?=\s*[<\"])", re.ASCII)  # C++20
_TEST = re.compile(r"\b__has_(?:include(?:_next)?|embed)\b", re.ASCII)
_ASKS_FOR_TEST = re.compile(r"\b(?:ifdef|ifndef|defined[ \t]*\(?)[ \t]*\Z", re.ASCII)
_NAME = re.compile(r"(?:<([^<>\r\n]*)>|\"([^\"\r\n]*)\")")
_BLANKS = re.compile(r"[ \t\v\f]*")
_SHOWN = 80  # characters of a source in an error


def check_options(options: Sequence[str], headers: Collection[str] = ()) -> None:
    """Check that clients may use these options; ``headers`` are the names of those that they gave.

    Raises:
        InvalidArgument: one of them is not allowed.
    """
    value_of: str | None = None
    for option in sorted_options(options, headers).given:
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
                "(the daemon compiles for its device) or is for nvcc or ptxas"
            )


def _named(option: str) -> tuple[str, bool]:
    """Return the option's name without hyphens, and whether its value is attached."""
    if option[:2] in ("-D", "-U"):
        return option[1], len(option) > 2
    match = _OPTION.match(option)
    if match is None or (not match[3] and match.end() < len(option)):
        return "", False
    return match[2], bool(match[3])


def check_headers(headers: Collection[str]) -> None:
    """Check the names of headers that a client gives.

    Raises:
        InvalidArgument: one of them cannot stand in ``#include``.
    """
    for name in headers:
        if not name or _NO_NAME.search(name):
            raise InvalidArgument(
                f"{name[:80]!r} is no name of a header; give it as it stands in #include"
            )


def check_includes(source: str, *, macros: bool, given: Collection[str] = ()) -> None:
    """Check that a source only names headers in the folders that gpud searches.

    Args:
        source: CUDA C++.
        given: names of headers that came with the source; their names may be any.
        macros: whether names made by macros, which cannot be checked here, are allowed.

    Raises:
        InvalidArgument: it names another file.
    """
    whole = source.replace("??/", "\\").replace("??=", "#")
    if "include" not in whole and "import" not in whole and "embed" not in whole:
        if "\\" not in whole and (macros or ("##" not in whole and "%:%:" not in whole)):
            return
    # NVRTC may or may not take a backslash for the continuation of a line.
    for text in dict.fromkeys((_SPLICE.sub("", whole), whole)):
        _check_tokens(text, macros, given)


def _check_tokens(text: str, macros: bool, given: Collection[str]) -> None:
    for found in _HASH.finditer(text):
        directive = _DIRECTIVE.match(text, _after_blanks(text, found.end()))
        if directive is not None:
            _check_name(text, directive.end(), macros, given)
    for found in _IMPORT.finditer(text):
        _check_name(text, found.end(), macros, given)
    for found in _TEST.finditer(text):
        at = _after_blanks(text, found.end())
        if text[at : at + 1] == "(":
            _check_name(text, at + 1, macros, given)
        elif not macros and not _ASKS_FOR_TEST.search(
            text, max(0, found.start() - _SHOWN), found.start()
        ):
            raise InvalidArgument(
                f"{found[0]} in a macro: here the daemon looks for headers by their names only; "
                f"write {found[0]}(<name>), or leave it out"
            )
    if not macros and ("##" in text or "%:%:" in text):
        raise InvalidArgument(
            "## in a macro: this Linux kernel cannot keep the compiler from the daemon's files "
            "(it has no Landlock), and what ## makes could name them. Leave it out, send PTX, or "
            "use a kernel from 5.13 on"
        )


def _after_blanks(text: str, at: int) -> int:
    """Return where blanks and comments from ``at`` on end; a comment may have any lines."""
    while True:
        blanks = _BLANKS.match(text, at)
        at = at if blanks is None else blanks.end()
        end = text.find("*/", at + 2) if text.startswith("/*", at) else -1
        if end < 0:
            return at
        at = end + 2


def _check_name(text: str, at: int, macros: bool, given: Collection[str]) -> None:
    at = _after_blanks(text, at)
    match = _NAME.match(text, at)
    if match is None:
        operand = (
            text[at : at + _SHOWN].splitlines()[0].strip() if text[at : at + 1].strip() else ""
        )
        if macros or not operand:
            return
        raise InvalidArgument(
            f"#include {operand}: the daemon includes headers by their names only, not by macros; "
            "write the name, or put the header's text into the source"
        )
    name = match[1] if match[1] is not None else match[2]
    if name in given:
        return
    if name.startswith("/") or ".." in name.split("/"):
        raise InvalidArgument(
            f"#include of {name[:200]!r}: the daemon includes the CUDA headers only, and reads no "
            "other file for a client; give the header's text, headers={name: text}, or use "
            "gpuctl run -I FOLDER"
        )
