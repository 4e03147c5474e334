"""``gpuctl top``: devices and jobs, refreshed twice a second."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.output import JsonOption, SocketOption, connect, console, emit, table
from gpud_client.cli.queries import JOBS, headline, others_of

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from gpud_client.cli.minimal_client import MinimalClient

__all__ = ["top"]

_COLUMNS = tuple(
    column._replace(write=formatting.meter) if column.key == "progress" else column
    for column in JOBS
    if column.key not in ("queued_s", "waits_for")
)
_BAR = 40  # characters
_ORDER = {"ending": 0, "running": 1, "paused": 2, "waiting": 3, "preparing": 4, "blocked": 5}


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.05, help="Refresh every so many seconds.")
    ] = 0.5,
    count: Annotated[
        int,
        typer.Option(
            "--count", "-c", min=0, help="Stop after so many refreshes; 0 goes on until Ctrl-C."
        ),
    ] = 0,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the devices and the jobs that wait or run.

    With --json every refresh is one document on a line of its own.
    """
    with connect(socket) as client:
        looks = _snapshots(client, interval, count)
        if as_json:
            for look in looks:
                emit(look)
            return
        target = console()
        if not target.is_terminal:
            for look in looks:
                target.print(picture(look, 200))
            return
        from rich.live import Live

        with Live(console=target, screen=count == 0, auto_refresh=False) as live:
            for look in looks:
                live.update(picture(look, target.width, target.height), refresh=True)


def picture(look: Mapping[str, Any], width: int, height: int | None = None) -> Group:
    """One refresh as a Rich renderable of ``width`` columns and at most ``height`` lines."""
    from rich.console import Group
    from rich.text import Text

    status = look["status"]
    lines: list[Any] = [Text(headline(status), style="bold", no_wrap=True, overflow="ellipsis")]
    jobs = sorted(look["jobs"], key=lambda job: _ORDER.get(str(job.get("state")), 9))
    devices = status.get("devices", [])
    for number, device in enumerate(devices):
        theirs = [job for job in jobs if job.get("device") == number]
        others = others_of(status, number)
        held = _held(status, number)
        lines.extend(_device(number, device, theirs, width, held))
        lines.extend(Text(f"   {line}", style="dim", no_wrap=True) for line in others)
    if not jobs:
        none = "no jobs of yours" if status.get("others") else "no jobs"
        lines.append(Text(none, style="dim"))
        return Group(*lines)
    room = len(jobs) if height is None else max(height - len(lines) - 5, 1)
    lines.append(table(_COLUMNS, jobs[:room], width))
    if room < len(jobs):
        lines.append(Text(f"... and {len(jobs) - room} more", style="dim"))
    return Group(*lines)


# -- helpers -----------------------------------------------------------------------------------


def _snapshots(client: MinimalClient, interval: float, count: int) -> Iterator[dict[str, Any]]:
    """Query at a fixed interval; a slow answer delays the next query."""
    number = 0
    due = time.monotonic()
    while True:
        status, jobs = client.query("status"), client.query("jobs")
        yield {"at_s": time.time(), "status": status, "jobs": jobs.get("jobs", [])}
        number += 1
        if number == count:
            return
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))


def _device(
    number: int,
    device: Mapping[str, Any],
    jobs: list[Mapping[str, Any]],
    width: int,
    held: tuple[Fraction, Fraction],
) -> list[Text]:
    """Draw a device and its allocation to online and offline jobs, in one or two lines.

    ``held`` is what others' online and offline jobs have, of which there are no rows.
    """
    from rich.text import Text

    sms = int(device.get("sms") or 0)
    online = held[0] + sum(_amount(job) for job in jobs if job.get("kind") == "online")
    offline = held[1] + sum(_amount(job) for job in jobs if job.get("kind") != "online")
    name = f"{number}: {device.get('name', '?')}"
    shares = f" online {formatting.share(online)}, offline {formatting.share(offline)} of {sms} SMs"
    more = formatting.gauges(device)
    used, whole = device.get("memory_used_bytes"), device.get("memory_bytes")
    if used is not None:
        more = f", memory {formatting.size(used)} of {formatting.size(whole)}" + more
    if device.get("state") not in (None, "ready"):
        more = f", {device['state']}" + more
    short = len(name) + len(shares) + len(more) + 1 + _BAR <= width
    bar = _BAR if short else max(min(width - len(shares), _BAR), 10)
    first = round(bar * online / sms) if sms else 0
    second = round(bar * (online + offline) / sms) - first if sms else 0
    drawn = Text(no_wrap=True, overflow="ellipsis")
    drawn.append("█" * first, style="green")
    drawn.append("▓" * second, style="blue")
    drawn.append("░" * (bar - first - second), style="dim")
    drawn.append(shares)
    if short:
        return [Text(f"{name} ", no_wrap=True) + drawn + Text(more)]
    return [Text(name + more, no_wrap=True, overflow="ellipsis"), drawn]


def _held(status: Mapping[str, Any], device: int) -> tuple[Fraction, Fraction]:
    """Return what others' online and offline jobs have of a device."""
    rows = [row for row in status.get("others", []) if row.get("device") == device]
    online = sum((_amount(row, "online") for row in rows), Fraction(0))
    return online, sum((_amount(row, "allocated") for row in rows), Fraction(0)) - online


def _amount(row: Mapping[str, Any], key: str = "allocation") -> Fraction:
    try:
        return Fraction(row.get(key) or 0)
    except (TypeError, ValueError, ZeroDivisionError):
        return Fraction(0)
