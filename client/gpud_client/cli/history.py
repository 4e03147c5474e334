"""Commands about jobs that have ended: history and report."""

from __future__ import annotations

import csv
import functools
import inspect
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

import typer

from gpud_client.cli import formatting
from gpud_client.cli.output import (
    Column,
    JsonOption,
    LimitOption,
    SocketOption,
    connect,
    emit,
    print_table,
)
from gpud_client.cli.queries import JOBS

__all__ = ["history", "moment", "report"]

_SPARES = {"kind": 8, "queued_s": 1, "program": 2, "reservation": 5, "quota": 4}
_HISTORY = (
    Column("ended_at_s", "ended", formatting.moment, spare=6),
    *(
        column._replace(spare=_SPARES.get(column.key, column.spare))
        for column in JOBS
        if column.key not in ("allocation", "progress", "run_s", "waits_for")
    ),
    Column("first_block_s", "first block", formatting.seconds, right=True, spare=3),
    Column("run_s", "ran", formatting.seconds, right=True),
    Column("resizes", "resizes", formatting.count, right=True, spare=2),
    Column("capsm_seconds", "CapSM s", formatting.share, right=True, spare=9),
    Column("memory_bytes", "memory", formatting.size, right=True, spare=7),
    Column("error", "error", formatting.error_line, least=20, wraps=True),
)

_SUMS = (
    Column("jobs", "jobs", formatting.count, right=True),
    Column("failed", "failed", formatting.count, right=True, spare=2),
    Column("cancelled", "cancelled", formatting.count, right=True, spare=3),
    Column("capsm_seconds", "CapSM s", formatting.share, right=True),
    Column("run_s", "ran", formatting.seconds, right=True),
    Column("queued_s", "queued (mean)", formatting.seconds, right=True, spare=1),
    Column("queued_most_s", "queued (most)", formatting.seconds, right=True, spare=4),
    Column("memory_bytes", "memory (most)", formatting.size, right=True, spare=5),
)

_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Group = Literal["user", "program", "state", "device"]
State = Literal["done", "failed", "cancelled"]

_FILTERS: dict[str, Any] = {
    "user": Annotated[
        str | None,
        typer.Option("--user", metavar="USER", help="Only this user's, by name or number."),
    ],
    "since": Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only jobs that ended since then: how long ago (30min, 12h, 7d), or a date or "
            "time such as 2026-11-20 or 2026-11-20T18:30.",
        ),
    ],
    "until": Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Only jobs that ended before; as --since."),
    ],
    "state": Annotated[
        State | None, typer.Option("--state", help="Only jobs that ended like this.")
    ],
}
"""The options that choose jobs, by the name of their parameter; each is None by default."""

_CsvOption = Annotated[
    bool, typer.Option("--csv", help="Comma-separated values with a header.", show_default=False)
]


def _choosing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that choose jobs; it gets what they ask for as ``asked``."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        asked = {name: given.pop(name) for name in _FILTERS}
        for name in ("since", "until"):
            asked[f"{name}_s"] = moment(asked.pop(name), f"--{name}")
        command(asked=asked, **given)

    own = inspect.signature(command, eval_str=True)
    kept = [one for one in own.parameters.values() if one.name != "asked"]
    filters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in _FILTERS.items()
    ]
    run.__signature__ = own.replace(parameters=[*kept, *filters])  # type: ignore[attr-defined]
    return run


@_choosing
def history(
    *,
    asked: Mapping[str, Any],
    limit: LimitOption = 20,
    as_csv: _CsvOption = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs that have ended, the latest last."""
    with connect(socket) as client:
        rows = client.history(**asked, limit=limit)
    if as_csv:
        _write_csv(rows)
    elif as_json:
        emit({"jobs": rows})
    else:
        print_table(_HISTORY, rows, "no such job has ended")


@_choosing
def report(
    *,
    asked: Mapping[str, Any],
    by: Annotated[Group, typer.Option("--by", help="What jobs are added up by.")] = "user",
    as_csv: _CsvOption = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add up what jobs that have ended had of the devices, the largest use first."""
    with connect(socket) as client:
        rows = client.history(**asked, by=by)
    if as_csv:
        _write_csv(rows)
    elif as_json:
        emit({"by": by, "rows": rows})
    else:
        heading = Column(by, by, least=12)
        print_table((heading, *_SUMS), rows, "no such job has ended")


def moment(written: str | None, option: str) -> int | None:
    """Return a time on the command line in seconds since 1970; None for None.

    Raises:
        typer.BadParameter: it is not a time.
    """
    if written is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})\s*(s|min|h|d|w)", written.strip())
    if ago is not None:
        return max(0, int(time.time()) - int(ago[1]) * _SECONDS[ago[2]])
    try:
        return max(0, int(datetime.fromisoformat(written.strip()).timestamp()))
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"{written!r} is neither how long ago (30s, 15min, 12h, 7d, 2w) nor a date or time "
            "(2026-11-20, 2026-11-20T18:30)",
            param_hint=option,
        ) from None


_FORMULA = ("=", "+", "-", "@")  # a spreadsheet takes what begins with one for a formula


def _write_csv(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print rows with the names of their fields; lists are joined, an error is its message."""
    names: Iterable[str] = rows[0] if rows else ()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([_cell(row[name]) for name in names])


def _cell(value: Any) -> Any:
    if isinstance(value, list):
        value = " ".join(map(str, value))
    elif isinstance(value, dict):
        value = value.get("message", "")
    return _plain(value) if isinstance(value, str) else value


def _plain(text: str) -> str:
    """Return a text that neither a terminal nor a spreadsheet acts on: others chose the names."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return "'" + text if text[:1] in _FORMULA else text
