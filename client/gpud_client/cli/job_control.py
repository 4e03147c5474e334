"""Commands that change jobs: resize and cancel."""

from __future__ import annotations

import os
from contextlib import suppress
from fractions import Fraction
from typing import Annotated, Any

import typer

from gpud import units
from gpud.errors import GpudError
from gpud_client.cli import formatting
from gpud_client.cli.exit_status import FAILED
from gpud_client.cli.output import JsonOption, SocketOption, connect, emit, say

__all__ = ["cancel", "parse_job", "resize", "share_of", "why"]

_SHARE = "A number of CapSM, or a percentage of the device such as 25%."


def parse_job(text: str) -> tuple[int, int]:
    """Parse a job as ``gpuctl ps`` shows it: the numbers of its session and its own.

    Raises:
        typer.BadParameter: it is written differently.
    """
    try:
        return units.job_pair(units.parse_job(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _present_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of jobs with the prefix that was typed, and their kernels, for shell completion."""
    with suppress(GpudError), connect(None) as client:
        return [
            (
                job["id"],
                f"{formatting.text(job.get('program'))}: {formatting.text(job.get('kernels'))}",
            )
            for job in client.query("jobs").get("jobs", [])
            if str(job["id"]).startswith(incomplete)
        ]
    return []


def resize(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="As gpuctl ps shows it, such as 3.17.", autocompletion=_present_jobs
        ),
    ],
    quota: Annotated[
        str | None, typer.Option("--quota", metavar="SHARE", help=f"For offline jobs. {_SHARE}")
    ] = None,
    reservation: Annotated[
        str | None,
        typer.Option("--reservation", metavar="SHARE", help=f"For online jobs. {_SHARE}"),
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the quota of an offline job or the reservation of an online one, while it runs."""
    which = parse_job(job)
    if (quota is None) == (reservation is None):
        raise typer.BadParameter("give --quota or --reservation, one of them")
    for written in (quota, reservation):
        share_of(written, 1)  # finds a syntax error without a daemon
    with connect(socket) as client:
        row = client.describe(which)
        if row is None:
            raise GpudError(f"no job {job} waits or runs; see gpuctl ps and gpuctl history")
        sms = int(client.welcome.devices[_device(row)]["sms"])
        client.resize(which, reservation=share_of(reservation, sms), quota=share_of(quota, sms))
        row = client.describe(which) or row
    if as_json:
        emit(row)
        return
    name, written = ("quota", quota) if reservation is None else ("reservation", reservation)
    has = formatting.share(row.get("allocation"))
    say(f"job {job}: {name} {formatting.share(row.get(name)) or written} CapSM; it has {has} now")


def why(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB", help="As gpuctl ps shows it, such as 3.17.", autocompletion=_present_jobs
        ),
    ],
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in words what a job waits for, who has it, and why its share changed or it failed."""
    which = parse_job(job)
    with connect(socket) as client:
        answer = client.why(which)
    if as_json:
        emit(answer)
        return
    row = answer.get("job", {})
    user, kernel = formatting.text(row.get("user")), formatting.first(row.get("kernels"))
    say(f"job {job} ({user}, {formatting.text(row.get('kind'))}, {kernel}):")
    for line in answer.get("lines", []):
        say(f"  {formatting.text(line)}")


def cancel(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB...]", help="As gpuctl ps shows them.", autocompletion=_present_jobs
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All jobs of yours, or of --user.")] = False,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="NAME", help="With --all: whose; as gpuctl ps shows it."),
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """End jobs. It fails if one of them is unknown or has ended, and still ends the others."""
    if bool(jobs) == every or (user is not None and not every):
        raise typer.BadParameter("name jobs, or give --all, with --user for another user's")
    for job in jobs or ():
        parse_job(job)  # finds a mistake without a daemon
    rows: list[dict[str, Any]] = []
    with connect(socket) as client:
        if every:
            jobs = [
                str(row["id"])
                for row in client.query("jobs").get("jobs", [])
                if (row.get("uid") == os.geteuid() if user is None else row.get("user") == user)
            ]
        for job, which in [(job, parse_job(job)) for job in jobs or ()]:
            try:
                ended = client.cancel(which)
                rows.append({"id": job, "cancelled": ended, "error": None})
            except GpudError as error:
                if isinstance(error, OSError):  # the connection is lost
                    raise
                rows.append({"id": job, "cancelled": False, "error": error.to_wire()})
    if as_json:
        emit({"jobs": rows})
    for row in rows:
        if as_json:
            break
        if row["error"] is not None:
            typer.echo(f"gpuctl: job {row['id']}: {row['error']['message']}", err=True)
        elif row["cancelled"]:
            say(f"job {row['id']} is being ended")
        else:
            typer.echo(f"gpuctl: job {row['id']} had ended before; see gpuctl history", err=True)
    if not (every or all(row["cancelled"] for row in rows)):  # some may have ended meanwhile
        raise typer.Exit(FAILED)


# -- helpers -----------------------------------------------------------------------------------


def share_of(written: str | None, sms: int) -> Fraction | None:
    """Parse a share on the command line; the amount is exact.

    Raises:
        typer.BadParameter: it is not a share.
    """
    if written is None:
        return None
    try:
        return Fraction(units.share(written, capacity=sms))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _device(row: dict[str, Any]) -> int:
    device = row.get("device", 0)
    return device if isinstance(device, int) else 0
