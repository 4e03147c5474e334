"""Each type of planted damage is detected, and the message has the object and its history."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpud.core.pause import PauseState
from gpud.core.scheduler import Scheduler
from gpud.errors import InternalError
from gpud.units import JobId
from tests.unit.core.driver import Driver


def scene() -> Scheduler:
    """Job 1 is offline with a quota, job 2 online, job 3 waits, job 4 is blocked."""
    driver = Driver(4)
    driver.offline(1, "2")
    driver.online(2, "2")
    driver.offline(3, stream=3)
    driver.offline(4, stream=3)
    driver.scheduler.validate()
    return driver.scheduler


def damage_slices(scheduler: Scheduler, job: int, slices: int) -> None:
    record = scheduler.jobs[JobId(job)]
    record.slices = record.held = slices
    scheduler.devices[0].update(record)


DAMAGES: list[tuple[str, Callable[[Scheduler], object]]] = [
    ("capacity: device 0 has 4 SMs, 5 of them", lambda s: damage_slices(s, 2, 3)),
    ("capacity: job 0.1 .* has -1 slices", lambda s: damage_slices(s, 1, -1)),
    ("quota: job 0.1 .* has 3 SMs, its quota is 2", lambda s: damage_slices(s, 1, 3)),
    ("quota: job 0.1 .* has 2 slices, its quota is 1",
     lambda s: setattr(s.jobs[JobId(1)], "quota_slices", 1)),
    ("reservation: job 0.2 .* has 1 of 2 SMs", lambda s: damage_slices(s, 2, 1)),
    ("paused: job 0.1 .* was started, device 0 is paused since -1",
     lambda s: s.devices[0].set_pause(PauseState("u1", "12:00", now=False, at_ns=-1))),
    ("sums: device 0 counts charged", lambda s: setattr(s.devices[0], "charged", 1)),
    ("sums: device 0 counts working", lambda s: setattr(s.devices[0], "working", 9)),
    ("filed: job 0.3 .* is not where it", lambda s: s.jobs[JobId(3)].entries.clear()),
    ("filed: device 0 has jobs in its queues", lambda s: s.devices[0].waiting.clear()),
    ("filed: device 0 has a queue out of", lambda s: s.devices[0].shrinkable.extend(
        [*s.devices[0].waiting, *s.devices[0].shrinkable])),
    ("filed: job 0.4 .* is on its", lambda s: s.devices[0].jobs.update(s.jobs)),
    ("filed: job 0.3 .* is not on its", lambda s: s.devices[0].jobs.pop(JobId(3))),
    ("sessions: there are jobs without", lambda s: next(iter(s.sessions.values())).jobs.clear()),
    ("sessions: job 0.4 .* is in session 1 and", lambda s: s.jobs.pop(JobId(4))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "damage"), DAMAGES)
def test_damage_is_seen(text: str, damage: Callable[[Scheduler], object]) -> None:
    scheduler = scene()
    damage(scheduler)
    with pytest.raises(InternalError, match=text):
        scheduler.validate()


def test_the_story_is_told() -> None:
    scheduler = scene()
    damage_slices(scheduler, 1, 3)
    with pytest.raises(InternalError, match="running: blocked at 0, ready at 0, start at 0"):
        scheduler.validate()
