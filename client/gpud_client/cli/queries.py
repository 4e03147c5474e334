"""Commands that query the daemon once and print the answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpud.errors import ConnectionLost
from gpud_client.cli import formatting
from gpud_client.cli.exit_status import FAILED
from gpud_client.cli.output import (
    Column,
    JsonOption,
    LimitOption,
    SocketOption,
    connect,
    emit,
    print_table,
    say,
)

if TYPE_CHECKING:
    from gpud_client.cli.minimal_client import MinimalClient
from gpud_client.cli.workloads import region_table, zone_lines

__all__ = [
    "DEVICES",
    "JOBS",
    "doctor",
    "headline",
    "kernels",
    "memory",
    "others_of",
    "ps",
    "status",
]

_POLL_S = 0.05
_MOST_ENDED = 1000

DEVICES = (
    Column("index", "#", right=True, spare=2),
    Column("name", "device", least=16),
    Column("state", "state"),
    Column("sms", "SMs", formatting.count, right=True, spare=1),
    Column("allocated", "allocated", formatting.share, right=True),
    Column("online_sms", "for online", formatting.share, right=True, spare=10),
    Column("memory_bytes", "memory", formatting.size, right=True, spare=3),
    Column("memory_used_bytes", "used", formatting.size, right=True),
    Column("gpu_utilisation_percent", "GPU %", formatting.count, right=True, spare=4),
    Column("gpu_memory_used_bytes", "on GPU", formatting.size, right=True, spare=9),
    Column("gpu_sm_clock_mhz", "MHz", formatting.count, right=True, spare=7),
    Column("gpu_temperature_c", "deg C", formatting.count, right=True, spare=6),
    Column("gpu_power_w", "W", formatting.rounded, right=True, spare=5),
    Column("gpu_ecc_uncorrected", "ECC", formatting.count, right=True, spare=8),
    Column("gpu_last_xid", "Xid", formatting.count, right=True),
    Column("restarts", "restarts", formatting.count, right=True, spare=11),
    Column("error", "problem", least=20, wraps=True),
)

JOBS = (
    Column("id", "job"),
    Column("user", "user", least=5, spare=3),
    Column("program", "program", least=10, spare=1),
    Column("kernels", "kernel", least=10),
    Column("device", "dev", right=True, spare=6),
    Column("kind", "kind", spare=4),
    Column("state", "state"),
    Column("waits_for", "reason", least=20, spare=7, wraps=True),
    Column("reservation", "reserved", formatting.share, right=True),
    Column("quota", "quota", formatting.share, right=True),
    Column("allocation", "has", formatting.share, right=True),
    Column("progress", "task blocks", formatting.progress, right=True, brief=formatting.part),
    Column("queued_s", "queued", formatting.seconds, right=True, spare=5),
    Column("run_s", "ran", formatting.seconds, right=True, spare=2),
)

_KERNELS = (
    Column("name", "kernel", least=16),
    Column("user", "user", least=5, spare=3),
    Column("form", "form"),
    Column("module", "module", right=True, spare=5),
    Column("session", "session", right=True, spare=2),
    Column("occupancy", "M", right=True),
    Column("shared_bytes", "shared", formatting.size, right=True, spare=4),
    Column("jobs", "jobs", formatting.count, right=True, spare=1),
    Column("why", "why", formatting.first, least=24, wraps=True),
)

_MEMORY = (
    Column("session", "session", right=True),
    Column("user", "user", least=5),
    Column("program", "program", least=10),
    Column("pid", "pid", formatting.process, right=True),
    Column("device", "dev", right=True),
    Column("arrays", "arrays", formatting.count, right=True, spare=1),
    Column("used_bytes", "used", formatting.size, right=True),
    Column("limit_bytes", "limit", formatting.size, right=True, spare=2),
)

_CHECKS = (
    Column("name", "what"),
    Column("state", ""),
    Column("detail", "found", least=24, wraps=True),
    Column("hint", "to do", least=16, wraps=True),
)


def status(
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            help="Wait this long for a daemon that is starting.",
        ),
    ] = 0,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the daemon, its devices and what they are doing."""
    with _connect_within(socket, wait) as client:
        answer = client.query("status")
    if as_json:
        emit(answer)
        return
    say(headline(answer))
    print_table(DEVICES, answer.get("devices", []), "it has no device")
    for row in answer.get("devices", []):
        if row.get("paused"):
            say(f"device {row['index']} is paused {formatting.pause(row['paused'])}")
        if row.get("queued_as"):
            say(f"device {row['index']} queued launches {formatting.counted(row['queued_as'])}")
    say_others(answer)


def ps(
    all_jobs: Annotated[
        bool,
        typer.Option(
            "--all",
            "-A",
            help="Show jobs that have ended, too; gpuctl history shows more of them.",
            show_default=False,
        ),
    ] = False,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the jobs that wait or run, and with --all those that have ended."""
    with connect(socket) as client:
        answer = client.query("jobs")
        if all_jobs:
            ended = client.history(limit=_MOST_ENDED)
            answer = {**answer, "jobs": [*ended, *answer.get("jobs", [])]}
    if as_json:
        emit(answer)
        return
    print_table(JOBS, answer.get("jobs", []), _none(answer, "no jobs"))
    say_others(answer)


def kernels(
    limit: LimitOption = 0, socket: SocketOption = None, as_json: JsonOption = False
) -> None:
    """List the kernels that are loaded, and in which form each of them runs."""
    with connect(socket) as client:
        answer = client.query("kernels", limit)
    if as_json:
        emit(answer)
        return
    print_table(_KERNELS, answer.get("kernels", []), "no kernels are loaded")


def memory(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Show which processes hold how much of each device's memory, and workloads where in it."""
    with connect(socket) as client:
        answer = client.query("memory")
    if as_json:
        emit(answer)
        return
    print_table(DEVICES, answer.get("devices", []), "it has no device")
    print_table(
        _MEMORY,
        answer.get("sessions", []),
        "you hold no memory" if answer.get("others") else "nobody holds memory",
    )
    region_table(answer.get("workloads", []))
    for line in zone_lines(answer.get("zones", [])):
        say(line)
    say_others(answer)


def doctor(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Check the daemon and what it depends on, and say what to do about problems."""
    with connect(socket) as client:
        answer = client.query("doctor")
    checks = answer.get("checks", [])
    bad = any(check.get("state") == "problem" for check in checks)
    if as_json:
        emit(answer)
    else:
        print_table(_CHECKS, checks, "the daemon reports no checks")
    if bad:
        raise typer.Exit(FAILED)


# -- what others hold --------------------------------------------------------------------------


def others_of(answer: Mapping[str, Any], device: int | None = None) -> list[str]:
    """Say what others hold, of whom the answer has no rows: a text for each device.

    Of one ``device``, or of all.
    """
    texts = []
    rows = [row for row in answer.get("others", []) if device in (None, row.get("device"))]
    for index in dict.fromkeys(row.get("device") for row in rows):
        theirs = [row for row in rows if row.get("device") == index]
        sms = sum(Fraction(row.get("allocated") or 0) for row in theirs)
        used = sum(int(row.get("memory_bytes") or 0) for row in theirs)
        names = ", ".join(formatting.text(row["user"]) for row in theirs if row.get("user"))
        holds = [f"{formatting.share(sms)} SM{'s' * (sms != 1)}"] if sms else []
        holds += [f"{formatting.size(used)} of memory"] if used else []
        where = "" if device is not None else f" on device {index}"
        texts.append(f"others: {', '.join(holds)}{where}" + (f" ({names})" if names else ""))
    return texts


def say_others(answer: Mapping[str, Any]) -> None:
    """Print what others hold."""
    for line in others_of(answer):
        say(line)


def _none(answer: Mapping[str, Any], text: str) -> str:
    """Return what stands for an empty table: it is not empty of others' rows."""
    return f"{text} of yours" if answer.get("others") else text


# -- helpers -----------------------------------------------------------------------------------


def _connect_within(socket: str | None, wait_s: float) -> MinimalClient:
    """Connect, waiting up to ``wait_s`` for the daemon to listen."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return connect(socket)
        except ConnectionLost:
            if time.monotonic() >= end:
                raise
        time.sleep(_POLL_S)


def headline(status: Mapping[str, Any], width: int | None = None) -> str:
    """One line about the daemon, the most important facts first, as many as have room."""
    parts = [f"gpud {status.get('version', '?')}"]
    if not status.get("bounds_checks", True):
        parts.append("BOUNDS CHECKS OFF")
    if status.get("draining"):
        parts.append("draining")
    if "uptime_s" in status:
        parts.append(f"up {formatting.seconds(status['uptime_s'])}")
    jobs = status.get("jobs")
    if isinstance(jobs, Mapping):
        busy = [f"{number} {state}" for state, number in jobs.items() if number]
        parts.append("jobs: " + (", ".join(busy) or "none"))
    if "clients" in status:
        parts.append(f"{status['clients']} connected")
    if "policy" in status:
        parts.append(f"policy {status['policy']}")
    parts.append(f"pid {status.get('pid', '?')}")
    while width is not None and len(", ".join(parts)) > width and len(parts) > 1:
        del parts[-1]
    return ", ".join(parts)
