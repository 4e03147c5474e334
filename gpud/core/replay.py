"""The scheduler's event log: written by the daemon, read to repeat every decision that it took.

A log is JSON lines. The first is a header with the settings; each of the others holds one event and
the commands that followed from it, so that a replay can compare. Amounts are exact, written as in
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

VERSION = 2
"""Of the log's format, and of what the scheduler decides on the same events: counted up when either
changes, so that a log is replayed by a scheduler that decides as the one that wrote it."""

_T = TypeVar("_T")

_EVENTS: Mapping[str, Any] = {cls.__name__: cls for cls in Event.__args__}


class Step(NamedTuple):
    """One event of a log, replayed.

    Attributes:
        line: its line in the log, from 1.
        event: what happened.
        commands: what the scheduler commands now.
        logged: what it commanded then, as plain data; None if the log does not say.
    """

    line: int
    event: Event
    commands: list[Command]
    logged: list[Any] | None

    @property
    def agrees(self) -> bool:
        """Whether the commands are those of the log."""
        return self.logged is None or [_plain(c) for c in self.commands] == self.logged


def write_header(settings: Settings) -> str:
    """Returns the first line of a log, without a line break."""
    values = {name: _value(value) for name, value in dataclasses.asdict(settings).items()}
    return json.dumps({"gpud_event_log": VERSION, "settings": values})


def write_line(event: Event, commands: Iterable[Command]) -> str:
    """Returns the line of an event and the commands that followed from it."""
    return json.dumps({"event": _plain(event), "commands": [_plain(c) for c in commands]})


def replay(lines: Iterable[str]) -> list[Command]:
    """Returns all commands that follow from a log's events; arguments and raises as `steps`."""
    return [command for step in steps(lines) for command in step.commands]


def steps(lines: Iterable[str], settings: Settings | None = None) -> Iterator[Step]:
    """Replays a log event by event.

    Args:
        lines: the log's, header included.
        settings: to use in place of the header's.

    Raises:
        InvalidArgument: a line is no line of an event log, or the log is of another version; the
            message has the line's number.
        InternalError: the scheduler found a bug of its own, as it may have then.
    """
    scheduler: Scheduler | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if scheduler is None:
            version, found = _parsed(number, line, _read_header)
            if found is None:
                raise InvalidArgument(
                    f"line {number} says that the event log is of version {version}, and this gpud "
                    f"decides as version {VERSION} says: replay it with the gpud that wrote it"
                )
            scheduler = Scheduler(settings or found)
            continue
        event, logged = _parsed(number, line, _read_line)
        yield Step(number, event, scheduler.handle(event), logged)


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
    """The log's version, and its settings if that is ours."""
    version = data["gpud_event_log"]
    return version, Settings(**data["settings"]) if version == VERSION else None


def _read_line(data: Mapping[str, Any]) -> tuple[Event, list[Any] | None]:
    return read_event(data["event"]), data.get("commands")


def read_event(data: Mapping[str, Any]) -> Event:
    """Returns the event that was written as plain data.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    fields = dict(data)
    cls = _EVENTS[fields.pop("type")]
    for name, read in _READERS.items():
        if fields.get(name) is not None:
            fields[name] = read(fields[name])
    event: Event = cls(**fields)
    return event


def _plain(item: Any) -> dict[str, Any]:
    """An event or a command as JSON data."""
    fields = zip(item._fields, item, strict=True)
    return {"type": type(item).__name__, **{name: _value(value) for name, value in fields}}


def _value(value: Any) -> Any:
    if isinstance(value, Fraction):
        return str(value)
    if isinstance(value, GpudError):
        # As JSON gives it back: tuples of fields become lists.
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
    "partitions": lambda row: Partitions(*row),
}
"""How fields that JSON has no type for are read."""
