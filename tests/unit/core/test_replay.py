"""The event log: exact, comparable, and an error with the line number if it is invalid."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from gpud.core import events as ev
from gpud.core.events import LaunchShape
from gpud.core.replay import VERSION, read_event, replay, steps, write_header, write_line
from gpud.core.scheduler import Scheduler, Settings
from gpud.errors import InvalidArgument
from gpud.units import JobId, SessionId

JOB, SESSION = JobId(1 << 32 | 7), SessionId(1)

EVENTS: list[ev.Event] = [
    ev.DeviceReady(1, 0, 4, "cpu:4"),
    ev.UserChanged(1, 7, "alice", 2, "100%", "100%"),
    ev.TimesChanged(1, 0, 5, 6, 7),
    ev.SessionOpened(2, SESSION, 7),
    ev.JobSubmitted(
        3, JOB, SESSION, 0, (LaunchShape(3, 10), LaunchShape(2, 5, False)),
        reservation=Fraction(7, 3), stream=2, after=(JobId(9),), deadline_ns=77, timeout_ns=5,
    ),
    ev.JobSubmitted(4, JobId(2), SESSION, 0, (LaunchShape(8, 1),), quota=Fraction(1, 2), weight=3),
    ev.JobSubmitted(4, JobId(4), SESSION, 0, (), reservation=Fraction(1, 3), lane=True),
    ev.JobSubmitted(4, JobId(5), SESSION, 0, (LaunchShape(8, 1),), stream=9, sticky=True),
    ev.JobRefused(4, JobId(6), SESSION, 9),
    ev.FailureSeen(4, SESSION, 9, JobId(6)),
    ev.JobPrepared(4, JobId(3), True),
    ev.ResizeRequested(5, 1, JOB, reservation=Fraction(5)),
    ev.ResizeRequested(5, 2, JobId(2), quota=Fraction(3, 2)),
    ev.BlocksLeft(6, JOB, 0, 7, False),
    ev.TimerFired(8),
    ev.CancelRequested(9, JobId(5), True),
    ev.CancelRequested(9, JOB),
    ev.LaneIdle(9, JobId(4), 1),
    ev.LaneWoke(9, JobId(4), 1, ((JobId(2), 3), (JOB, 1))),
    ev.LaneCloseRequested(9, JobId(4)),
    ev.JobEnded(10, JOB, True, False),
    ev.DeviceFailed(11, 0, "it\n\"crashed\" ☹", True),
    ev.SessionClosed(12, SESSION),
    ev.PauseRequested(13, 0, "alice", "2026-11-23 14:02", True),
    ev.ResumeRequested(13, 0),
    ev.DrainRequested(13, 20),
]  # fmt: skip


def a_log(settings: Settings | None = None) -> list[str]:
    settings = settings or Settings()
    scheduler = Scheduler(settings)
    lines = [write_line(event, scheduler.handle(event)) for event in EVENTS]
    return [write_header(settings), *lines]


def test_the_events_are_all_kinds() -> None:
    assert {type(event) for event in EVENTS} == set(ev.Event.__args__)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_round_trip(event: ev.Event) -> None:
    line = write_line(event, [])
    assert "\n" not in line
    again = read_event(json.loads(line)["event"])
    assert again == event
    assert type(again) is type(event)


def test_a_replay_agrees_with_the_log() -> None:
    found = list(steps(a_log()))
    assert [step.event for step in found] == EVENTS
    assert all(step.agrees for step in found)
    assert any(step.commands for step in found)
    assert repr(replay(a_log())) == repr([c for step in found for c in step.commands])


def test_settings_travel_in_the_header() -> None:
    settings = Settings("fifo", Fraction(1, 3), 5, 6, 7, debug=True)
    lines = a_log(settings)
    assert [step.agrees for step in steps(lines)] == [True] * len(EVENTS)
    # Under another policy the same events lead to other commands, and the comparison shows it.
    assert not all(step.agrees for step in steps(lines, Settings("equal")))


def test_a_changed_command_is_noticed() -> None:
    lines = [line.replace('"slices": 5', '"slices": 4') for line in a_log()]
    assert lines != a_log()
    assert [step.line for step in steps(lines) if not step.agrees] == [6]


def test_a_log_without_commands_is_replayed_without_comparison() -> None:
    lines = a_log()
    bare = [lines[0], *(json.dumps({"event": json.loads(line)["event"]}) for line in lines[1:])]
    assert all(step.logged is None and step.agrees for step in steps(bare))
    assert repr(replay(bare)) == repr(replay(lines))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ("7", "TypeError"),
        ('{"event": {"type": "Nothing"}}', "KeyError: 'Nothing'"),
        ('{"event": {"type": "SessionOpened", "now_ns": 1}}', "missing 1 required"),
        ('{"event": {"type": "SessionOpened", "more": 1}}', "unexpected keyword"),
        ('{"event": {"type": "ResizeRequested", "now_ns": 1, "quota": "x"}}', "Invalid literal"),
        ('{"event": {"type": "JobSubmitted", "launches": 3}}', "TypeError"),
    ],
)
def test_a_line_that_is_none_is_named(line: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"line 3 is not one of an event log .*{text}"):
        replay([write_header(Settings()), "", line])


@pytest.mark.parametrize(
    "header", ['{"event": {}}', f'{{"gpud_event_log": {VERSION}, "settings": {{"x": 1}}}}']
)
def test_a_log_with_another_head_is_refused(header: str) -> None:
    with pytest.raises(InvalidArgument, match="line 1 is not one of an event log"):
        replay([header])


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_log_of_another_version_is_refused(version: int) -> None:
    header = write_header(Settings()).replace(str(VERSION), str(version), 1)
    with pytest.raises(InvalidArgument, match=f"^line 1 .* version {version}, .* the gpud that"):
        replay([header, *a_log()[1:]])
