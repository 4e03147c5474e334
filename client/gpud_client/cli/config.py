"""``gpuctl config``: shows and changes the daemon's settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from gpud.errors import GpudError
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

__all__ = ["COMMANDS", "config"]

_SETTINGS = (
    Column("key", "setting"),
    Column("value", "value", least=12, wraps=True),
    Column("origin", "from", least=16, spare=2),
    Column("next", "after a restart", least=12, wraps=True),
    Column("live", "changes take effect", lambda live: "at once" if live else "at a restart"),
)


def _known(incomplete: str) -> list[tuple[str, str]]:
    """Return settings with the prefix that was typed, and what they mean, for completion."""
    with suppress(GpudError), connect(None) as client:
        return [
            (row["key"], formatting.text(row["meaning"]))
            for row in client.query("config").get("settings", [])
            if row["key"].startswith(incomplete)
        ]
    return []


_KeyArgument = Annotated[
    str,
    typer.Argument(metavar="SETTING", help="As gpuctl config show has it.", autocompletion=_known),
]

config = typer.Typer(
    help="Show and change the daemon's settings.",
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
)


def show(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Show all settings that the daemon runs with, and where each comes from."""
    with connect(socket) as client:
        answer = client.query("config")
    if as_json:
        emit(answer)
        return
    print_table(_SETTINGS, answer.get("settings", []), "the daemon reports no settings")


def get(key: _KeyArgument, socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Print the value of one setting, as it can be written in the daemon's environment."""
    with connect(socket) as client:
        row = _row(client.query("config").get("settings", []), key)
    if as_json:
        emit(row)
        return
    if not row.get("shown", True):
        raise GpudError(f"{key} is shown to root and to the daemon's own user only")
    if row["value"] is None:
        typer.echo(f"gpuctl: {key} is not set: {formatting.text(row['meaning'])}", err=True)
    else:
        say(row["value"])


def set_(
    key: _KeyArgument,
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="As a flag of gpud serve has it, such as '3 s'.")
    ],
    socket: SocketOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a setting in the daemon's file, and put it in force if that needs no restart.

    Comments and order of the file stay. It is refused, and nothing is written, if the daemon could
    not use it. Other changes of the file count from then on, too. For root and the daemon's own
    user.
    """
    with connect(socket) as client:
        _row(client.query("config").get("settings", []), key)
        answer = client.set_setting(key, value)
    if as_json:
        emit(answer)
        return
    said = answer["set"]
    path = formatting.text(answer.get("file"))
    say(f"{key} is kept in {path}")
    origin = said["origin"] if said.get("next") is None else said["next_origin"]
    if not str(origin).startswith(f"{path}:") and origin != path:
        say(f"but {origin} says {said['next'] or said['value']}, and counts before the file")
    _say_changes(answer, unless=said["key"])


def reload(socket: SocketOption = None, as_json: JsonOption = False) -> None:
    """Have the daemon read its settings again, as SIGHUP does, and say what has changed.

    What can change while the daemon runs does. For root and the daemon's own user.
    """
    with connect(socket) as client:
        answer = client.reload()
    if as_json:
        emit(answer)
        return
    _say_changes(answer)


COMMANDS = {
    # A value may begin with a dash, as numbers below 0 do: it is for the daemon to refuse.
    name: config.command(name, context_settings={"ignore_unknown_options": name == "set"})(command)
    for name, command in (("show", show), ("get", get), ("set", set_), ("reload", reload))
}
"""By name, in the order in which help lists them."""


# -- helpers -----------------------------------------------------------------------------------


def _row(rows: Sequence[Mapping[str, Any]], key: str) -> Mapping[str, Any]:
    """Return the row of a setting.

    Raises:
        typer.BadParameter: there is no such setting.
    """
    known = {row["key"]: row for row in rows}
    if key not in known:
        close = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {close[0]}?" if close else "gpuctl config show lists them"
        raise typer.BadParameter(f"there is no setting {key}; {hint}")
    return known[key]


def _say_changes(answer: Mapping[str, Any], unless: str = "") -> None:
    """Print what is in force now, and what will be after a restart."""
    for row in answer["changed"]:
        say(f"{row['key']} is {formatting.text(row['value'])} now")
    for row in answer["restart"]:
        following, present = formatting.text(row["next"]), formatting.text(row["value"])
        say(f"{row['key']} is {following} after a restart, and {present} until then")
    if not (answer["changed"] or answer["restart"] or unless):
        where = answer.get("file")
        say(f"nothing has changed in {where}" if where else "nothing has changed; there is no file")
