"""Finds the headers of the user's that a source includes, to send them with it.

The daemon reads none of its clients' files, and its compiler knows headers by the names that stand
in ``#include``. So each file is sent by that name; a name that means two files is refused.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import typer

__all__ = ["included_headers"]

_INCLUDE = re.compile(
    r"^[ \t]*(?:#|%:)[ \t]*include(?:_next)?[ \t]*(?:\"([^\"\n]+)\"|<([^<>\n]+)>)", re.MULTILINE
)


def included_headers(
    source: str, folder: Path, folders: Sequence[Path], names: Sequence[str] = ()
) -> dict[str, str]:
    """Return the texts of what ``source`` includes, and of what that includes, by name.

    Args:
        source: CUDA C++.
        folder: Where the source lies: of ``#include "name"``, which is looked for there first.
        folders: Where else to look, in order.
        names: What is included besides.

    Raises:
        typer.BadParameter: A name means two files, or a file cannot be read as text.
    """
    found: dict[str, Path] = {}
    texts: dict[str, str] = {}
    work = [(name, [folder, *folders]) for name in names] + _wanted(source, folder, folders)
    while work:
        name, places = work.pop()
        path = next((place / name for place in places if (place / name).is_file()), None)
        if path is None:
            continue  # one of CUDA's, or the compiler says that there is none
        if name in found:
            if not found[name].samefile(path):
                raise typer.BadParameter(
                    f'"{name}" is {found[name]} and {path}; include one of them by another name'
                )
            continue
        try:
            texts[name] = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else error
            raise typer.BadParameter(f"{path}: {why}") from error
        found[name] = path
        work += _wanted(texts[name], path.parent, folders)
    return texts


def _wanted(text: str, folder: Path, folders: Sequence[Path]) -> list[tuple[str, list[Path]]]:
    """Return the names that a text includes, each with the folders to look in."""
    return [
        (quoted or angled, [folder, *folders] if quoted else list(folders))
        for quoted, angled in _INCLUDE.findall(text)
    ]
