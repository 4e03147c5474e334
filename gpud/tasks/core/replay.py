"""The event log of the tasks' scheduler: written by the runner, replayed to reproduce decisions.

A log is JSON lines: a header with the settings, then for each event the event and its commands.
Amounts are exact, written like "1/2".

Properties:
    round_trip: ``read_event(json.loads(write_line(event, commands))["event"]) == event``;
    equal_logs: replaying a log gives the commands that are in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from gpud.errors import InvalidArgument
from gpud.tasks.core.commands import Command
from gpud.tasks.core.events import Event, TaskTerms
from gpud.tasks.core.scheduler import TaskScheduler
from gpud.tasks.core.settings import Settings

__all__ = ["VERSION", "read_event", "replay", "write_header", "write_line"]

VERSION = 1
"""Of the format and of the decisions: incremented when either changes."""

_EVENTS: Mapping[str, Any] = {cls.__name__: cls for cls in Event.__args__}
_FRACTIONS = ("gpus", "part", "cores")


def write_header(settings: Settings) -> str:
    """Return the first line of a log, without a line break."""
    return json.dumps({"gpud_task_log": VERSION, "settings": dataclasses.asdict(settings)})


def write_line(event: Event, commands: Iterable[Command]) -> str:
    """Return the line of an event and its commands, without a line break."""
    return json.dumps({"event": _plain(event), "commands": [_plain(one) for one in commands]})


def replay(lines: Iterable[str]) -> TaskScheduler:
    """Replay a log, and return the scheduler as it is then.

    Raises:
        InvalidArgument: a line is not one of a log of this version, or the replay's commands are
            others than those in the log; the message has the line's number.
    """
    scheduler: TaskScheduler | None = None
    for number, line in enumerate(lines, 1):
        try:
            found = json.loads(line)
            if scheduler is None:
                if found["gpud_task_log"] != VERSION:
                    raise ValueError(f"version {found['gpud_task_log']}")
                scheduler = TaskScheduler(Settings(**found["settings"]))
                continue
            event, logged = read_event(found["event"]), found["commands"]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument(
                f"line {number} is not one of a task log of version {VERSION}: {error}"
            ) from error
        commands = [_plain(one) for one in scheduler.handle(event)]
        if commands != logged:
            raise InvalidArgument(
                f"line {number}: the replay decides {commands}, and the log has {logged}"
            )
    if scheduler is None:
        raise InvalidArgument("the log is empty")
    return scheduler


def read_event(data: Mapping[str, Any]) -> Event:
    """Return the event that ``data`` describes, as `write_line` writes it.

    Raises:
        KeyError, TypeError, ValueError: ``data`` describes no event.
    """
    fields = dict(data)
    cls = _EVENTS[fields.pop("type")]
    if "terms" in fields:
        terms = {name: _read(name, value) for name, value in fields["terms"].items()}
        fields["terms"] = TaskTerms(**terms)
    event: Event = cls(**{name: _read(name, value) for name, value in fields.items()})
    return event


def _read(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_read("", one) for one in value)
    return Fraction(value) if name in _FRACTIONS and isinstance(value, str) else value


def _plain(item: Any) -> dict[str, Any]:
    """Return an event or a command as JSON data."""
    fields = {name: _value(value) for name, value in item._asdict().items()}
    return {"type": type(item).__name__, **fields}


def _value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, TaskTerms):
        return {name: _value(one) for name, one in value._asdict().items()}
    if isinstance(value, tuple):
        return [_value(one) for one in value]
    return value
