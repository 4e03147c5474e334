"""Questions about jobs that wait for their devices: how many a session may have."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

from gpud.server.handlers.job_rows import _MOST_ASKED, JobRows


class Stream:
    """Whether its client is read from."""

    def __init__(self) -> None:
        self.reads = True

    def pause(self) -> None:
        self.reads = False

    def resume(self) -> None:
        self.reads = True


class Device:
    """Keeps what it is asked until the test answers."""

    state = "ready"

    def __init__(self) -> None:
        self.replies: list[Any] = []

    def read_progress(self, jobs: tuple[int, ...], on_reply: Any) -> None:
        self.replies.append(on_reply)


class Session:
    """As much of a session as is needed to hold it back."""

    def __init__(self) -> None:
        self.stream = Stream()


def session() -> Any:
    return Session()


def rows_of(device: Device) -> JobRows:
    jobs: Any = {}
    devices: Any = [device]
    nothing: Any = None
    return JobRows(asyncio.get_running_loop(), jobs, devices, nothing, 0, nothing, nothing)


async def test_a_session_with_many_questions_is_not_read_from_until_one_is_answered() -> None:
    device, asks, other = Device(), session(), session()
    rows = rows_of(device)
    jobs: Any = [SimpleNamespace(started_ns=1, device=0, id=7)]
    answered: list[int] = []
    for number in range(_MOST_ASKED):
        assert asks.stream.reads
        rows.refresh(asks, jobs, partial(answered.append, number))
    assert not asks.stream.reads
    rows.refresh(other, jobs, lambda: None)
    assert other.stream.reads
    device.replies[0]([], None)
    assert answered == [0]
    assert asks.stream.reads
    for reply in device.replies[1:]:
        reply(None, None)
    assert answered == list(range(_MOST_ASKED))
    assert not rows._asked


async def test_who_asks_about_jobs_that_have_not_begun_is_answered_at_once() -> None:
    asks, rows = session(), rows_of(Device())
    jobs: Any = [SimpleNamespace(started_ns=None, device=0, id=7)]
    answered: list[int] = []
    for number in range(2 * _MOST_ASKED):
        rows.refresh(asks, jobs, partial(answered.append, number))
    assert answered == list(range(2 * _MOST_ASKED))
    assert asks.stream.reads
