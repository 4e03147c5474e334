"""Commands that show what happened: events as lines, allocations over time as a trace file."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.output import JsonOption, LimitOption, SocketOption, connect, emit, say

__all__ = ["events", "trace"]


def events(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with new ones until Ctrl-C.")
    ] = False,
    limit: LimitOption = 20,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the latest events, and with --follow new ones as they happen.

    With --json and --follow every event is one document on a line of its own.
    """
    with connect(socket) as client:
        latest = client.query("events", limit)
        if as_json and not follow:
            emit(latest)
            return
        for event in latest.get("events", []):
            _show(event, as_json)
        if not follow:
            return
        sys.stdout.flush()
        for event in client.events():
            _show(event, as_json)
            sys.stdout.flush()


def trace(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write it to this file; - is the standard output.",
        ),
    ],
    limit: LimitOption = 0,
    socket: SocketOption = None,
) -> None:
    """Write each job's allocation over time as a Chrome trace: open it in ui.perfetto.dev."""
    with connect(socket) as client:
        document = client.query("trace", limit)
    text = json.dumps(document)
    if str(output) == "-":
        say(text)
        return
    output.write_text(text + "\n", "utf-8")
    number = len(document.get("traceEvents", []))
    say(f"wrote {number} trace events to {output}; open it in https://ui.perfetto.dev")


def _show(event: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        emit(event)
        return
    rest = " ".join(
        f"{key}={formatting.error(value) if key == 'error' else formatting.text(value)}"
        for key, value in event.items()
        if key not in ("at_s", "event") and value is not None
    )
    at, name = formatting.clock(event.get("at_s")), formatting.text(event.get("event"))
    say(f"{at}  {name:<12} {rest}".rstrip())
