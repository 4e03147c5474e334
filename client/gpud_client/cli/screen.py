"""What commands print: a table for people, or one JSON document for programs.

A table is declared as columns: the key of a row's map, the heading, and how the value is written.
JSON has the rows as the daemon sent them, so a script sees more than the table shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gpud_client.cli import words

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = [
    "Column",
    "JsonOption",
    "LimitOption",
    "SocketOption",
    "console",
    "emit",
    "print_table",
    "say",
    "table",
]

SocketOption = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="The daemon's socket; by default $GPUD_SOCKET, else the user's own.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="One JSON document instead of a table.", show_default=False)
]
LimitOption = Annotated[
    int, typer.Option("--limit", "-n", min=0, help="The latest so many; 0: all that are kept.")
]


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        key: Of the row's map.
        heading: Over the column.
        write: Makes the cell's text of the value.
        right: Whether cells stand at the right edge, as numbers do.
    """

    key: str
    heading: str
    write: Callable[[Any], str] = words.text
    right: bool = False


def emit(document: Any) -> None:
    """Prints one JSON document, on one line."""
    json.dump(document, sys.stdout, default=_plain, ensure_ascii=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """Prints a line."""
    sys.stdout.write(line + "\n")


def console() -> Console:
    """Where tables go; a pipe gets them without colours and as wide as they need to be."""
    from rich.console import Console

    found = Console(highlight=False, soft_wrap=False)
    return found if found.is_terminal else Console(highlight=False, width=200)


def table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], title: str = "") -> Table:
    """A table of the rows; columns for which no row has anything are left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    kept = list(rows)
    shown = [
        column for column in columns if any(row.get(column.key) not in (None, "") for row in kept)
    ]
    found = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in shown:
        found.add_column(column.heading, justify="right" if column.right else "left")
    for row in kept:
        found.add_row(*(Text(column.write(row.get(column.key))) for column in shown))
    return found


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    """Prints a table of the rows, or the line ``nothing`` if there are none."""
    if rows:
        console().print(table(columns, rows))
    else:
        say(nothing)


def _plain(value: Any) -> Any:
    """What JSON has no type for: bytes become text, anything else its name for people."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
