"""``gpuctl top``: devices and jobs, refreshed twice a second; keys sort, filter, cancel, resize.

It goes on when the daemon is started again. Without a terminal it prints one refresh after another.
"""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import ConnectionLost, Draining, GpudError
from gpud_client.cli import formatting
from gpud_client.cli.job_control import parse_job, share_of
from gpud_client.cli.output import (
    Column,
    JsonOption,
    SocketOption,
    connect,
    console,
    emit,
    table,
)
from gpud_client.cli.queries import JOBS, headline, others_of
from gpud_client.cli.top_view import (
    BACKSPACE,
    DOWN,
    ENTER,
    ESCAPE,
    QUIT,
    UP,
    Action,
    TopView,
    load_of,
)
from gpud_client.cli.workloads import turn_line

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

    from gpud_client.cli.minimal_client import MinimalClient

__all__ = ["top"]

_COLUMNS = (
    Column("mark", ""),
    *(
        column._replace(write=formatting.meter) if column.key == "progress" else column
        for column in JOBS
        if column.key not in ("queued_s", "waits_for")
    ),
    Column("left_s", "left", formatting.seconds, right=True, spare=1),
)
_BAR = 40  # characters
_NAMED_KEYS = {
    b"\x1b[A": UP, b"\x1b[B": DOWN, b"\x1bOA": UP, b"\x1bOB": DOWN, b"\r": ENTER, b"\n": ENTER,
    b"\x1b": ESCAPE, b"\x7f": BACKSPACE, b"\x08": BACKSPACE,
}  # fmt: skip


def top(
    interval: Annotated[
        float, typer.Option("--interval", "-i", min=0.05, help="Refresh every so many seconds.")
    ] = 0.5,
    count: Annotated[
        int,
        typer.Option(
            "--count",
            "-c",
            min=0,
            help="Stop after so many refreshes; 0 goes on until q or Ctrl-C.",
        ),
    ] = 0,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch the devices and the jobs that wait or run; keys sort, filter, cancel and resize them.

    With --json every refresh is one document on a line of its own.
    """
    target = console()
    if not as_json and target.is_terminal:
        _watch(target, socket, interval, count)
        return
    view = TopView()
    with connect(socket) as client:
        for look in _snapshots(client, interval, count):
            if as_json:
                emit(look)
            else:
                view.update(look)
                target.print(picture(look, view, 200))


def _watch(target: Console, socket: str | None, interval: float, count: int) -> None:
    """Refresh the screen until q is pressed, or so many times."""
    from rich.live import Live

    view = TopView()
    with ExitStack() as stack:
        first = stack.enter_context(connect(socket))
        client: MinimalClient | None = first
        live = stack.enter_context(Live(console=target, screen=count == 0, auto_refresh=False))
        keys = stack.enter_context(_keys())
        look = _look(first)

        def draw() -> None:
            live.update(picture(look, view, target.width, target.height), refresh=True)

        number = 0
        while True:
            view.update(look)
            draw()
            number += 1
            if number == count:
                return
            for key in _until(keys, time.monotonic() + interval):
                action = view.press(key)
                if action == QUIT:
                    return
                if action is not None:
                    view.message = _do(client, action)
                draw()
            try:
                if client is None:
                    client = stack.enter_context(connect(socket))
                look = _look(client)
            except (ConnectionLost, Draining) as error:
                client = None
                view.message = f"waiting for the daemon: {error}"


def _do(client: MinimalClient | None, action: Action) -> str:
    """Carry out what a key has asked for; return what to say of it."""
    name = str(action.job.get("id"))
    if client is None:
        return "no daemon listens now"
    try:
        which = parse_job(name)
        if action.what == "cancel":
            return f"job {name} is being ended" if client.cancel(which) else f"job {name} had ended"
        device = client.welcome.devices[int(action.job.get("device") or 0)]
        share = share_of(action.share, int(device["sms"]))
        online = action.job.get("kind") == "online"
        client.resize(which, reservation=share if online else None, quota=None if online else share)
    except (GpudError, typer.BadParameter) as error:
        return f"job {name}: {error}"
    return f"job {name} has {action.share} now"


def picture(look: Mapping[str, Any], view: TopView, width: int, height: int | None = None) -> Group:
    """One refresh as a Rich renderable of ``width`` columns and at most ``height`` lines."""
    from rich.console import Group
    from rich.text import Text

    status = look["status"]
    lines: list[Any] = [
        Text(headline(status, width), style="bold", no_wrap=True, overflow="ellipsis")
    ]
    jobs = view.jobs
    for number, device in enumerate(status.get("devices", [])):
        theirs = [job for job in look["jobs"] if job.get("device") == number]
        others = others_of(status, number)
        held = _held(status, number)
        lines.extend(_device(number, device, theirs, width, held))
        if device.get("turns"):
            text = turn_line(device["turns"])
            lines.append(Text(f"   {text}", no_wrap=True, overflow="ellipsis"))
        if height is not None:
            lines.append(Text(f"   {view.graph(number, min(width - 4, 100))}", style="green"))
        lines.extend(Text(f"   {line}", no_wrap=True) for line in others)
    last = [Text(view.prompt, no_wrap=True, overflow="ellipsis")] if height is not None else []
    if not jobs:
        none = "no jobs of yours" if status.get("others") else "no jobs"
        return Group(*lines, Text("no such job" if look["jobs"] else none), *last)
    room = len(jobs) if height is None else max(height - len(lines) - len(last) - 5, 1)
    ids = [job.get("id") for job in jobs]
    at = ids.index(view.selected) if view.selected in ids else 0
    first = max(0, min(at - room + 1, len(jobs) - room)) if at >= room else 0
    shown = [
        {**job, "mark": (">" if job.get("id") == view.selected else " ") if view.selected else None}
        for job in jobs[first : first + room]
    ]
    lines.append(table(_COLUMNS, shown, width))
    if room < len(jobs):
        lines.append(Text(f"... and {len(jobs) - room} more"))
    return Group(*lines, *last)


# -- helpers -----------------------------------------------------------------------------------


def _look(client: MinimalClient) -> dict[str, Any]:
    """Ask for one refresh."""
    status, jobs = client.query("status"), client.query("jobs")
    return {"at_s": time.time(), "status": status, "jobs": jobs.get("jobs", [])}


def _snapshots(client: MinimalClient, interval: float, count: int) -> Iterator[dict[str, Any]]:
    """Query at a fixed interval; a slow answer delays the next query."""
    number = 0
    due = time.monotonic()
    while True:
        yield _look(client)
        number += 1
        if number == count:
            return
        due = max(due + interval, time.monotonic())
        time.sleep(max(due - time.monotonic(), 0))


@contextmanager
def _keys() -> Iterator[int | None]:
    """Have the terminal pass on every key at once; give its descriptor, None without one."""
    if not sys.stdin.isatty():
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        with suppress(termios.error):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _until(descriptor: int | None, end_s: float) -> Iterator[str]:
    """Yield the keys that are pressed until a time, monotonic."""
    while (left_s := end_s - time.monotonic()) > 0:
        if descriptor is None:
            time.sleep(left_s)
            return
        if select.select([descriptor], [], [], left_s)[0]:
            data = os.read(descriptor, 64)
            if not data:  # the terminal has gone
                raise EOFError("the terminal is closed")
            yield from _named(data)


def _named(data: bytes) -> Iterator[str]:
    """Yield the keys of what a terminal has sent in one piece."""
    if data in _NAMED_KEYS:
        yield _NAMED_KEYS[data]
        return
    while data:
        for sent, name in _NAMED_KEYS.items():
            if len(sent) != 1 and data.startswith(sent):
                yield name
                data = data[len(sent) :]
                break
        else:
            if data.startswith(b"\x1b"):
                return  # a key that means nothing here
            yield _NAMED_KEYS.get(data[:1]) or data[:1].decode("latin-1")
            data = data[1:]


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
    online = held[0] + sum(load_of(job) for job in jobs if job.get("kind") == "online")
    offline = held[1] + sum(load_of(job) for job in jobs if job.get("kind") != "online")
    name = f"{number}: {device.get('name', '?')}"
    shares = f" online {formatting.share(online)}, offline {formatting.share(offline)} of {sms} SMs"
    more = formatting.gauges(device)
    used, whole = device.get("memory_used_bytes"), device.get("memory_bytes")
    if used is not None:
        more = f", memory {formatting.size(used)} of {formatting.size(whole)}" + more
    if device.get("state") not in (None, "ready"):
        more = f", {device['state']}" + more
    if device.get("paused"):
        more = f", paused {formatting.pause(device['paused'])}" + more
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
    room = max(width - len(more), 12)  # the name is cut, not what changes
    name = name if len(name) <= room else f"{name[: room - 1]}…"
    return [Text(name + more, no_wrap=True, overflow="ellipsis"), drawn]


def _held(status: Mapping[str, Any], device: int) -> tuple[Fraction, Fraction]:
    """Return what others' online and offline jobs have of a device."""
    rows = [row for row in status.get("others", []) if row.get("device") == device]
    online = sum((load_of(row, "online") for row in rows), Fraction(0))
    return online, sum((load_of(row, "allocated") for row in rows), Fraction(0)) - online
