"""Names of kernels: one rule for all ways to ask for one.

A kernel can be named by its C++ name expression if that was compiled for (``axpy<float>``), by its
name in the PTX, which C++ mangles (``_Z4axpyIfEvPT_``), and by its name in the source, with or
without namespaces (``ns::axpy``, ``axpy``), where no other kernel of the program has that one.

Properties:
* a name in the PTX always means that kernel;
* a plain name that several kernels have means none of them.

Source: Itanium C++ ABI, section 5.1 (mangled names), of which names of functions are read here,
without their parameters.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

__all__ = ["is_mangled", "is_plain", "plain_names", "shown_names"]

_PLAIN = re.compile(r"(?!_Z)[A-Za-z_]\w*(::[A-Za-z_]\w*)*", re.ASCII)
_LENGTH = re.compile(r"\d+")


def is_mangled(name: str) -> bool:
    """Return whether ``name`` is that of a C++ function in PTX: no C++ expression looks like it."""
    return name.startswith("_Z")


def is_plain(name: str) -> bool:
    """Return whether ``name`` is an identifier, with or without namespaces."""
    return _PLAIN.fullmatch(name) is not None


def plain_names(entries: Collection[str]) -> dict[str, str]:
    """Return the PTX name by each name in the source that only one of ``entries`` has."""
    named: dict[str, dict[str, None]] = {}
    for entry in entries:
        parts = _parts(entry) if is_mangled(entry) else []
        for first in {0, len(parts) - 1} if parts else ():
            named.setdefault("::".join(parts[first:]), {})[entry] = None
    return {
        plain: next(iter(names))
        for plain, names in sorted(named.items())
        if len(names) == 1 and plain not in entries
    }


def shown_names(entries: Collection[str], lowered: Mapping[str, str]) -> dict[str, str]:
    """Return the names that people are shown, by PTX name, where there is one besides that.

    Args:
        entries: The PTX names of all kernels of a program.
        lowered: The PTX names of the C++ name expressions that were asked for.
    """
    shown: dict[str, str] = {}
    for name, entry in plain_names(entries).items():
        shown[entry] = max(shown.get(entry, ""), name, key=len)  # with its namespaces
    return shown | {entry: name for name, entry in lowered.items()}


def _parts(mangled: str) -> list[str]:
    """Return namespaces and name of a mangled function; nothing if it has another form."""
    at = len("_Z")
    nested = mangled.startswith("N", at)
    at += nested
    parts: list[str] = []
    while at < len(mangled):
        if mangled.startswith("L", at):  # internal linkage
            at += 1
        length = _LENGTH.match(mangled, at)
        if length is None:
            break
        at = length.end() + int(length[0])
        name = mangled[length.end() : at]
        if not name.startswith(("_GLOBAL__N_", "_INTERNAL_")):
            parts.append(name)
        if not nested:
            break
    if at > len(mangled) or (nested and not mangled.startswith(("E", "I"), at)):
        return []
    return parts
