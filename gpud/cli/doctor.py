"""``gpud doctor``: reports what gpud needs of this machine, what is missing, and what to do."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpud_client.cli.exit_status import FAILED

if TYPE_CHECKING:
    from gpud.cli.checks import Check

__all__ = ["doctor"]

_STYLES = {"ok": "green", "missing": "yellow", "problem": "bold red"}


def doctor(
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON document instead of a table.", show_default=False),
    ] = False,
) -> None:
    """Check this machine: what gpud needs, what is missing, and what to do.

    The exit status is 0 if a daemon can run here, else 1.
    """
    # Imported here: the other commands load this file too, and start faster without the checks.
    from gpud.cli.checks import can_run, run_checks

    checks = run_checks()
    runs = can_run(checks)
    if as_json:
        document = {"can_run": runs, "checks": [check._asdict() for check in checks]}
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        _show(checks, runs)
    if not runs:
        raise typer.Exit(FAILED)


def _show(checks: Sequence[Check], runs: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("what", "", "found, and what to do"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        detail = Text(check.detail)
        if check.hint:
            detail.append(f"\n-> {check.hint}", style="bold")
        table.add_row(Text(check.name), Text(check.state, style=_STYLES[check.state]), detail)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)
    console.print(table)
    problems = [check.name for check in checks if check.state == "problem"]
    verdict = "gpud can run here" if runs else f"gpud cannot run here: see {', '.join(problems)}"
    console.print(verdict)
