"""The loop notices whatever kept everybody waiting, and names it."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from gpud.server.ipc import event_loop
from gpud.server.ipc.event_loop import LIMIT_S, Stalls, loop_factory
from gpud.wire import messages as wm


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> Stalls:
    found = Stalls()
    monkeypatch.setattr(event_loop, "STALLS", found)
    return found


def slow_reader() -> None:
    event_loop.STALLS.handling = wm.Submit
    time.sleep(LIMIT_S * 1.2)


async def slow_step() -> None:
    await asyncio.sleep(0)
    time.sleep(LIMIT_S * 1.2)  # noqa: ASYNC251


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ("call_soon", "slow_reader of Submit"),
        ("call_later", "slow_reader of Submit"),
        ("call_soon_threadsafe", "slow_reader of Submit"),
        ("task", "slow_step"),
    ],
)
def test_a_stall_is_counted_and_named(
    stalls: Stalls, caplog: pytest.LogCaptureFixture, how: str, named: str
) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        if how == "task":
            await asyncio.ensure_future(slow_step())
        elif how == "call_later":
            loop.call_later(0, slow_reader)
        else:
            getattr(loop, how)(slow_reader)
        while not stalls.count:  # noqa: ASYNC110
            await asyncio.sleep(0)

    caplog.set_level(logging.WARNING, event_loop.__name__)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main())
    assert stalls.count == 1
    assert stalls.longest_s >= LIMIT_S
    assert named in stalls.longest
    assert named in caplog.text


def test_the_log_has_one_line_a_second(stalls: Stalls, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, event_loop.__name__):
        for began_s in (0.0, 0.2, 0.4, 1.5):
            stalls.record(slow_reader, began_s, 0.1)
    assert stalls.count == 4
    assert len(caplog.records) == 2
