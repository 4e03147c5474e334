"""``gpud replay``: repeats a daemon's scheduling decisions from its event log."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import InvalidArgument
from gpud.units import parse_job
from gpud_client.cli.exit_status import FAILED

if TYPE_CHECKING:
    from gpud.core.replay import Step
    from gpud.core.settings import Settings

__all__ = ["replay"]


def replay(
    file: Annotated[
        Path, typer.Argument(help="Written by gpud serve --event-log; - for standard input.")
    ],
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy", help="Use this policy instead of the log's; commands are not compared."
        ),
    ] = None,
    validate: Annotated[
        bool,
        typer.Option("--validate", help="Check every invariant after every event; slow."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print each event and the commands it caused.")
    ] = False,
    why: Annotated[
        str | None,
        typer.Option(
            "--why",
            metavar="JOB",
            help="Say at the end what gpuctl why would have said of this job then, or at its end.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON document instead of text.", show_default=False),
    ] = False,
) -> None:
    """Repeat the scheduler's decisions from an event log and compare them with the log's.

    Fails at the first event whose commands differ from those in the log.
    """
    from gpud.core.explain import Explained
    from gpud.core.policies import POLICIES
    from gpud.core.replay import steps

    try:
        explained = None if why is None else Explained(parse_job(why))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if policy is not None and policy not in POLICIES:
        raise typer.BadParameter(f"--policy is one of {', '.join(POLICIES)}, not {policy!r}")
    began = time.perf_counter()
    events: Counter[str] = Counter()
    commands: Counter[str] = Counter()
    differs: Step | None = None
    lines = _lines(file)
    first = next(lines, "")
    if not first.strip():
        raise InvalidArgument(f"{file} is empty; a log is written by gpud serve --event-log FILE")
    settings = _settings(first, policy, validate)
    watch = explained or (lambda scheduler: None)
    for step in steps(chain((first,), lines), settings, watch):
        events[type(step.event).__name__] += 1
        commands.update(type(command).__name__ for command in step.commands)
        if verbose and not as_json:
            _show(step)
        if policy is None and not step.agrees:
            differs = step
            break
    figures = {
        "events": dict(sorted(events.items())),
        "commands": dict(sorted(commands.items())),
        "seconds": time.perf_counter() - began,
        "differs_at_line": None if differs is None else differs.line,
    }
    if as_json:
        sys.stdout.write(json.dumps(figures) + "\n")
    else:
        _summarize(figures, compared=policy is None)
        if explained is not None:
            said = explained.lines or ["the log has no such job"]
            sys.stdout.write("\n".join([f"job {why}:", *(f"  {line}" for line in said)]) + "\n")
    if differs is not None:
        typer.echo(f"gpud: line {differs.line}: {differs.event}", err=True)
        typer.echo(f"  the log has  {differs.logged}", err=True)
        typer.echo(f"  now it gives {differs.commands}", err=True)
        raise typer.Exit(FAILED)


# -- helpers -----------------------------------------------------------------------------------


def _lines(file: Path) -> Iterator[str]:
    try:
        if str(file) == "-":
            yield from sys.stdin
            return
        with file.open(encoding="utf-8") as log:
            yield from log
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{file} is no event log: {error}") from error


def _settings(first: str, policy: str | None, validate: bool) -> Settings | None:
    """Return the log's settings as changed by the flags; None if they change nothing."""
    if policy is None and not validate:
        return None
    from gpud.core.settings import Settings

    try:
        settings = Settings(**json.loads(first)["settings"])
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidArgument(f"line 1 is not the header of an event log ({error!r})") from error
    changes: dict[str, Any] = {"debug": validate}
    if policy is not None:
        changes["policy"] = policy
    return dataclasses.replace(settings, **changes)


def _show(step: Step) -> None:
    sys.stdout.write(f"{step.line}: {step.event}\n")
    for command in step.commands:
        sys.stdout.write(f"    {command}\n")


def _summarize(figures: dict[str, Any], *, compared: bool) -> None:
    events, commands = sum(figures["events"].values()), sum(figures["commands"].values())
    each = figures["seconds"] / events * 1e6 if events else 0
    for name in ("events", "commands"):
        counts = ", ".join(f"{number} {kind}" for kind, number in figures[name].items())
        sys.stdout.write(f"{name}: {counts or 'none'}\n")
    verdict = "not compared: another policy"
    if compared:
        same = figures["differs_at_line"] is None
        verdict = "the commands are those of the log" if same else "the commands differ"
    sys.stdout.write(
        f"{events} events, {commands} commands, {figures['seconds']:.3f} s "
        f"({each:.0f} us an event): {verdict}\n"
    )
