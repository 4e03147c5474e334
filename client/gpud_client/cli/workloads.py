"""``gpuctl workloads``: the programs that take turns with a device's memory, and its two zones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import cycle
from typing import Annotated, Any

import typer

from gpud_client.cli import formatting
from gpud_client.cli.output import (
    Column,
    JsonOption,
    SocketOption,
    connect,
    emit,
    print_table,
    say,
)

__all__ = ["region_table", "turn_line", "workloads", "zone_lines"]

_WORKLOADS = (
    Column("id", "workload"),
    Column("user", "user", spare=3, least=4),
    Column("program", "program", least=8, spare=1),
    Column("device", "device", right=True, spare=4),
    Column("state", "state"),
    Column("place", "its memory is", spare=6),
    Column("persistent_bytes", "persistent", formatting.size, right=True),
    Column("offset_bytes", "offset", formatting.size, right=True, spare=7),
    Column("temporary_bytes", "temporary", formatting.size, right=True),
    Column("weight", "weight", right=True, spare=8),
    Column("iterations", "iterations", formatting.count, right=True, spare=2),
    Column("turns", "turns", formatting.count, right=True, spare=6),
    Column("turn_s", "has the turn", formatting.seconds, right=True, spare=5),
    Column("waited_s", "waited", formatting.seconds, right=True, spare=5),
)
_MEMORY = (
    *(Column("id", "workload"), Column("user", "user", spare=3, least=4)),
    *(Column("program", "program", least=8, spare=1), Column("device", "device", right=True)),
    *(Column("start", "begins at", formatting.size, right=True), Column("place", "it is", spare=2)),
    *(column for column in _WORKLOADS if column.key.endswith("_bytes")),
    *(column for column in _WORKLOADS if column.key == "turn_s"),
)
_NAME = re.compile(r"w?(\d{1,10})", re.ASCII)
_WIDTH = 64
_PERSISTENT, _OFFSET, _TEMPORARY = "█▓", "░", "▒"


def workloads(
    end: Annotated[
        list[str] | None,
        typer.Option(
            "--end", metavar="WORKLOAD", help="End this one, such as w3; may be repeated."
        ),
    ] = None,
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the workloads: who has which memory on which device, and who has the turn."""
    numbers = [_number(name) for name in end or ()]
    with connect(socket) as client:
        for number in numbers:
            client.end_workload(number)
        answer = client.query("workloads")
    if as_json:
        emit(answer)
        return
    print_table(_WORKLOADS, answer.get("workloads", []), "no workloads")
    for line in zone_lines(answer.get("devices", [])):
        say(line)
    moved = answer.get("moved", {})
    if moved.get("moved_bytes") or moved.get("away_bytes"):
        seconds = moved["moving_s"]  # none where nothing has to be copied
        rate = ""
        if seconds:
            rate = f", {formatting.size(int(moved['moved_bytes'] / seconds))} a second"
        say(
            f"{formatting.size(moved['away_bytes'])} of {formatting.size(moved['most_bytes'])} in "
            f"host memory; {formatting.size(moved['moved_bytes'])} were moved"
            f"{rate}"
        )


def region_table(rows: list[Mapping[str, Any]]) -> None:
    """Print whose region is where on its device, and who has the turn; nothing if there is none."""
    if rows:
        print_table(_MEMORY, rows, "")


def zone_lines(devices: list[Mapping[str, Any]]) -> list[str]:
    """Draw the zones of each device that has workloads, to scale, with a line of figures."""
    lines = []
    for device in devices:
        regions, away = device.get("regions", []), device.get("away", {})
        if not regions and not away:
            continue
        turn, turn_s = device.get("turn"), device.get("turn_s")
        has = "nobody has the turn"
        if turn:
            has = f"{formatting.text(turn)} has had the turn for {formatting.seconds(turn_s)}"
        lines += [
            (
                f"device {device['device']}: {formatting.size(device['persistent_bytes'])} "
                f"persistent with offsets, {formatting.size(device['temporary_bytes'])} temporary "
                f"of {formatting.size(device['size_bytes'])}; {has}"
            ),
            f"  |{_bar(device)}|",
            "   "
            + "  ".join(
                f"{sign} {formatting.text(region['workload'])}"
                for sign, region in zip(cycle(_PERSISTENT), regions)
            )
            + f"  {_OFFSET} offset  {_TEMPORARY} temporary",
            *(f"   {formatting.text(name)} is {place}" for name, place in away.items()),
        ]
    return lines


def turn_line(turns: Mapping[str, Any]) -> str:
    """Return a line about the workloads of a device, as topic "status" has them."""
    turn = turns.get("turn")
    has = "nobody has the turn"
    if turn:
        has = f"{formatting.text(turn)} has had the turn for {formatting.seconds(turns['turn_s'])}"
    count = turns["workloads"]
    return (
        f"{count} workload{'' if count == 1 else 's'}: {has}, {turns['waiting']} wait; "
        f"{formatting.size(turns['persistent_bytes'])} persistent, "
        f"{formatting.size(turns['temporary_bytes'])} temporary"
    )


def _bar(device: Mapping[str, Any]) -> str:
    """Draw a device's memory; everything that is there is at least one character wide."""
    size = max(1, int(device["size_bytes"]))
    cells = [" "] * _WIDTH

    def paint(sign: str, start: int, length: int) -> None:
        if length:
            first = min(start * _WIDTH // size, _WIDTH - 1)
            last = max(first + 1, -(-(start + length) * _WIDTH // size))
            cells[first:last] = sign * (min(last, _WIDTH) - first)

    for region in device["regions"]:
        paint(_OFFSET, region["start"] + region["size_bytes"], region["offset_bytes"])
    for sign, region in zip(cycle(_PERSISTENT), device["regions"]):
        paint(sign, region["start"], region["size_bytes"])
    paint(_TEMPORARY, size - device["temporary_bytes"], device["temporary_bytes"])
    return "".join(cells)


def _number(name: str) -> int:
    match = _NAME.fullmatch(name)
    if match is None:
        raise typer.BadParameter(
            f"a workload is named as gpuctl workloads shows it, such as w3, not {name!r}"
        )
    return int(match[1])
