"""Prints the output of commands: a table for people, or one JSON document for programs.

A table is declared as columns: the key in a row's map, the heading, and the formatter. JSON has the
rows as the daemon sent them, so a script sees more than the table shows.

A terminal has 80 columns or so, and a table of jobs needs twice that. So a column declares how it
may shrink: formatted in brief, cut to a least width, or omitted, those with the highest ``spare``
first. A pipe gets everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gpud_client.cli import formatting

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gpud_client.cli.minimal_client import MinimalClient

__all__ = [
    "Column",
    "JsonOption",
    "LimitOption",
    "SocketOption",
    "connect",
    "console",
    "emit",
    "print_table",
    "say",
    "table",
]

_PIPE_COLUMNS = 10_000  # more than a row ever has, so that each row is one line

SocketOption = Annotated[
    str | None,
    typer.Option(
        "--socket",
        metavar="PATH",
        help="Where the daemon listens; by default $GPUD_SOCKET, else your own socket.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", show_default=False)
]
LimitOption = Annotated[
    int,
    typer.Option(
        "--limit",
        "-n",
        min=0,
        help="Show only the latest N; 0 shows all that are kept.",
        metavar="N",
    ),
]


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        key: The key in the row's map.
        heading: The column's heading.
        write: Formats the value.
        right: Whether cells are right-aligned, as numbers are.
        spare: Columns are omitted for lack of room in descending order; 0: never.
        least: The width in characters to which cells may be cut; None: they may not.
        wraps: Whether cut cells continue on the next line, as sentences do.
        brief: Formats the value shorter, for lack of room; None: there is no shorter form.
    """

    key: str
    heading: str
    write: Callable[[Any], str] = formatting.text
    right: bool = False
    spare: int = 0
    least: int | None = None
    wraps: bool = False
    brief: Callable[[Any], str] | None = None


def connect(socket: str | None) -> MinimalClient:
    """Connect to the daemon. What this needs is loaded here, as help does without.

    Raises:
        ConnectionLost: no daemon listens there, or another program does.
    """
    from gpud_client.cli.minimal_client import MinimalClient

    return MinimalClient(socket)


def emit(document: Any) -> None:
    """Print one JSON document, on one line."""
    json.dump(document, sys.stdout, default=_plain, ensure_ascii=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(line + "\n")


def console() -> Console:
    """Return the console for tables; into a pipe they go without colours and at full width."""
    from rich.console import Console

    target = Console(highlight=False, soft_wrap=False)
    return target if target.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def table(
    columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], width: int | None = None
) -> Table:
    """Make a table of the rows; columns without any values are omitted.

    Args:
        columns: In their order.
        rows: As the daemon sent them.
        width: The width available in characters; None: unlimited.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    kept = list(rows)
    shown = [
        column for column in columns if any(row.get(column.key) not in (None, "") for row in kept)
    ]
    fitted = _fitted(shown, kept, width)
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column, _, wide in fitted:
        made.add_column(
            column.heading,
            justify="right" if column.right else "left",
            width=wide,
            no_wrap=not column.wraps,
            overflow="fold" if column.wraps else "ellipsis",
        )
    for cells in zip(*(texts for _, texts, _ in fitted), strict=True):
        made.add_row(*map(Text, cells))
    return made


def print_table(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    """Print a table of the rows, or the line ``nothing`` if there are none."""
    if rows:
        target = console()
        target.print(table(columns, rows, target.width if target.is_terminal else None))
    else:
        say(nothing)


# -- helpers -----------------------------------------------------------------------------------


def _fitted(
    columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], width: int | None
) -> list[tuple[Column, list[str], int]]:
    """Choose the columns that fit, with their cells and widths."""
    texts = {column: [column.write(row.get(column.key)) for row in rows] for column in columns}
    full = {column: _widest(column, texts[column]) for column in columns}
    left = list(columns)
    if width is None or _sum(full[column] for column in left) <= width:
        return [(column, texts[column], full[column]) for column in left]
    for column in left:
        if column.brief is not None:
            texts[column] = [column.brief(row.get(column.key)) for row in rows]
            full[column] = _widest(column, texts[column])
    least = {column: min(full[column], column.least or full[column]) for column in left}
    while _sum(least[column] for column in left) > width:
        spared = max(left, key=lambda column: column.spare)
        if not spared.spare:
            break
        left.remove(spared)
    room = max(width - _sum(least[column] for column in left), 0)
    cut = sorted(left, key=lambda column: full[column] - least[column])
    for others, column in zip(range(len(cut), 0, -1), cut, strict=True):
        more = min(full[column] - least[column], room // others)
        least[column] += more
        room -= more
    return [(column, texts[column], least[column]) for column in left]


def _widest(column: Column, cells: Sequence[str]) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, [column.heading, *cells]))


def _sum(widths: Iterable[int]) -> int:
    """Add up the width of a line: two characters between columns, and one at each end."""
    return sum(wide + 2 for wide in widths)


def _plain(value: Any) -> Any:
    """Convert values that JSON has no type for: bytes to text, anything else with `str`."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
