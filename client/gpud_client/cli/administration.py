"""Commands that change the daemon for everybody: pause, resume and drain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from gpud.errors import ConnectionLost, Draining, GpudError
from gpud_client.cli import formatting
from gpud_client.cli.output import JsonOption, SocketOption, connect, emit, say

__all__ = ["drain", "pause", "resume"]


def _known(incomplete: str) -> list[tuple[str, str]]:
    """Return devices whose names have the prefix that was typed, for completion."""
    with suppress(GpudError), connect(None) as client:
        return [
            (row["spec"], formatting.text(row["name"]))
            for row in client.welcome.devices
            if row["spec"].startswith(incomplete)
        ]
    return []


_DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="Only this one, by its number or name in gpuctl status; may be given several times.",
        show_default=False,
        autocompletion=_known,
    ),
]


def pause(
    device: _DeviceOption = None,
    now: Annotated[
        bool,
        typer.Option(
            "--now",
            help="Have jobs that run give up what they have, too; they keep what they have done. "
            "Those with a reservation, and those that cannot be resized, run on.",
            show_default=False,
        ),
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start no more jobs until gpuctl resume; those that run go on.

    Jobs can be submitted, and wait. A pause ends with the daemon. For root and the daemon's own
    user.
    """
    with connect(socket) as client:
        rows = client.pause(_indices(client.welcome.devices, device), on=True, now=now)
    if as_json:
        emit({"devices": rows})
        return
    for row in rows:
        say(f"device {row['index']} ({row['spec']}) is paused: {_jobs(row, 'running on')}")


def resume(
    device: _DeviceOption = None, socket: SocketOption = None, as_json: JsonOption = False
) -> None:
    """Let paused devices go on. For root and the daemon's own user."""
    with connect(socket) as client:
        rows = client.pause(_indices(client.welcome.devices, device), on=False)
    if as_json:
        emit({"devices": rows})
        return
    for row in rows:
        say(f"device {row['index']} ({row['spec']}) goes on: {_jobs(row, 'running')}")


def drain(
    wait: Annotated[
        bool,
        typer.Option("--wait", help="Return when the daemon has ended.", show_default=False),
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """End the daemon after the jobs that it has, as SIGTERM does; it takes no others.

    Jobs that have not ended within the setting drain_timeout are cancelled. For root and the
    daemon's own user.
    """
    with connect(socket) as client:
        answer = client.drain()
        if as_json:
            emit(answer)
        elif answer["jobs"]:
            jobs = "1 job" if answer["jobs"] == 1 else f"{answer['jobs']} jobs"
            most = formatting.seconds(answer["timeout_s"])
            say(f"the daemon ends after {jobs}, in {most} at most; gpuctl ps shows what is left")
        else:
            say("the daemon ends; it has no jobs")
        if wait:
            with suppress(ConnectionLost, Draining):
                for _ in client.events():
                    pass


# -- helpers -----------------------------------------------------------------------------------


def _indices(devices: Sequence[Mapping[str, Any]], named: list[str] | None) -> tuple[int, ...]:
    """Return the devices with these numbers or names; none for none.

    Raises:
        typer.BadParameter: there is no such device.
    """
    known = {str(row[key]): int(row["index"]) for row in devices for key in ("spec", "index")}
    for name in named or ():
        if name not in known:
            listed = ", ".join(f"{row['index']} ({row['spec']})" for row in devices)
            raise typer.BadParameter(f"there is no device {name}; there are {listed}")
    return tuple(known[name] for name in named or ())


def _jobs(row: Mapping[str, Any], running: str) -> str:
    counts = [(row["running"], running), (row["stopped"], "stopped"), (row["waiting"], "waiting")]
    return "jobs: " + (", ".join(f"{count} {what}" for count, what in counts if count) or "none")
