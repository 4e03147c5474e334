"""The scheduler's event log: written by the daemon, replayed to reproduce all its decisions.

A log is JSON lines. The first is a header with the settings; each other line holds one event and
the commands that it caused, so that a replay can compare them. Amounts are exact, written like
"7/2"; times are integers, in nanoseconds.

Properties:
    round_trip: ``read_event(json.loads(write_line(event, commands))["event"]) == event``;
    equal_logs: replaying a log gives the commands that are in it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

from gpud.core.commands import Command
from gpud.core.events import Event, LaunchShape
from gpud.core.scheduler import Scheduler
from gpud.core.settings import Settings
from gpud.errors import GpudError, InvalidArgument
from gpud.units import Partitions

__all__ = ["VERSION", "Step", "read_event", "replay", "steps", "write_header", "write_line"]

VERSION = 8
"""Version of the log format and of the scheduler's behaviour: incremented when either changes, so
that a log is replayed only by a scheduler that decides as the one that wrote it."""

_T = TypeVar("_T")

_EVENTS: Mapping[str, Any] = {cls.__name__: cls for cls in Event.__args__}


class Step(NamedTuple):
    """One replayed event of a log.

    Attributes:
        line: its line in the log, from 1.
        event: the event.
        commands: the commands of the replay.
        logged: the commands in the log, as plain data; None if the line has none.
    """

    line: int
    event: Event
    commands: list[Command]
    logged: list[Any] | None

    @property
    def agrees(self) -> bool:
        """Whether the replay's commands equal those of the log."""
        return self.logged is None or [_plain(c) for c in self.commands] == self.logged


def write_header(settings: Settings) -> str:
    """Return the first line of a log, without a line break."""
    values = {name: _value(value) for name, value in dataclasses.asdict(settings).items()}
    return json.dumps({"gpud_event_log": VERSION, "settings": values})


def write_line(event: Event, commands: Iterable[Command]) -> str:
    """Return the line of an event and the commands that it caused, without a line break."""
    return json.dumps({"event": _plain(event), "commands": [_plain(c) for c in commands]})


def replay(lines: Iterable[str]) -> list[Command]:
    """Return all commands that a log's events cause; arguments and errors as for `steps`."""
    return [command for step in steps(lines) for command in step.commands]


def steps(
    lines: Iterable[str],
    settings: Settings | None = None,
    watch: Callable[[Scheduler], None] = lambda scheduler: None,
) -> Iterator[Step]:
    """Replays a log event by event.

    Args:
        lines: the lines of the log, header included.
        settings: replaces the settings in the header.
        watch: called with the scheduler after each event.

    Raises:
        InvalidArgument: a line is not one of an event log, or the log has another version; the
            message gives the line number.
        InternalError: the scheduler detected a bug in itself, as it may have when logging.
    """
    scheduler: Scheduler | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if scheduler is None:
            version, logged_settings = _parsed(number, line, _read_header)
            if logged_settings is None:
                raise InvalidArgument(
                    f"line {number} says that the event log is of version {version}, and this gpud "
                    f"decides as version {VERSION} says: replay it with the gpud that wrote it"
                )
            scheduler = Scheduler(settings or logged_settings)
            continue
        event, logged = _parsed(number, line, _read_line)
        commands = scheduler.handle(event)
        watch(scheduler)
        yield Step(number, event, commands, logged)


def _parsed(number: int, line: str, read: Callable[[Any], _T]) -> _T:
    try:
        return read(json.loads(line))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        cause = f"{type(error).__name__}: {error}"
        raise InvalidArgument(
            f"line {number} is not one of an event log ({cause}); a log is written by "
            "gpud serve --event-log FILE"
        ) from error


def _read_header(data: Mapping[str, Any]) -> tuple[Any, Settings | None]:
    """Return the log's version, and its settings if that is `VERSION`."""
    version = data["gpud_event_log"]
    return version, Settings(**data["settings"]) if version == VERSION else None


def _read_line(data: Mapping[str, Any]) -> tuple[Event, list[Any] | None]:
    return read_event(data["event"]), data.get("commands")


def read_event(data: Mapping[str, Any]) -> Event:
    """Return the event that ``data``, the plain form that `write_line` writes, describes.

    Raises:
        KeyError, TypeError, ValueError: ``data`` describes no event.
    """
    fields = dict(data)
    cls = _EVENTS[fields.pop("type")]
    for name, read in _READERS.items():
        if fields.get(name) is not None:
            fields[name] = read(fields[name])
    event: Event = cls(**fields)
    return event


def _plain(item: Any) -> dict[str, Any]:
    """Return an event or a command as JSON data."""
    fields = zip(item._fields, item, strict=True)
    return {"type": type(item).__name__, **{name: _value(value) for name, value in fields}}


def _value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, GpudError):
        # In the form in which JSON is read back: tuples become lists.
        return json.loads(json.dumps(value.to_wire()))
    if isinstance(value, tuple):
        return [_value(part) for part in value]
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "launches": lambda rows: tuple(LaunchShape(*row) for row in rows),
    "reservation": Fraction,
    "quota": Fraction,
    "after": tuple,
    "unstarted": tuple,
    "taken": lambda rows: tuple(tuple(row) for row in rows),
    "partitions": lambda row: Partitions(*row),
}
"""Converters for the fields whose type JSON does not have, by field name."""
