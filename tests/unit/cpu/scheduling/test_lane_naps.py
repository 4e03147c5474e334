"""Lanes on a kernel where a thread cannot sleep on several words."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from gpud.device.cpu.sm import lane_sleep, lane_take_back
from gpud.device.cpu.sm.loop import native_loop
from gpud.device.futex import sleeps_on_several
from gpud.wire import lane_ring as ring
from tests.unit.cpu.scheduling.lane_driver import LaneDriver


@pytest.fixture(autouse=True)
def old_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in (lane_sleep, lane_take_back):
        monkeypatch.setattr(module, "sleeps_on_several", lambda: False)
    native_loop.cache_clear()
    yield
    native_loop.cache_clear()


def test_this_kernel_is_asked() -> None:
    assert sleeps_on_several() in (True, False)
    assert sleeps_on_several.__wrapped__() is sleeps_on_several()


def test_launches_run_and_an_idle_lane_takes_next_to_no_time() -> None:
    with LaneDriver() as lane:
        lane.words[0] = 0
        lane.site("add")
        for _ in range(50):
            time.sleep(0.001)  # its SMs sleep meanwhile
            lane.complete(lane.launch("add", lane.pointer()))
        assert lane.words[0] == 50
        before = time.process_time()
        time.sleep(0.2)
        assert time.process_time() - before < 0.1, "its SMs do not spin"


def test_a_lane_that_lends_hears_of_its_next_launch() -> None:
    with LaneDriver() as lane:
        lane.words[0] = 0
        lane.site("add")
        lane.lane.lend()
        heard = threading.Event()

        def wait() -> None:
            lane.lane.wait_for_record()
            lane.lane.take_up()
            heard.set()

        threading.Thread(target=wait, daemon=True).start()
        lane.wait(lambda: lane.word(ring.LISTENING))
        number = lane.launch("add", lane.pointer())
        assert heard.wait(20)
        lane.complete(number)
        assert lane.words[0] == 1


def test_who_waits_for_a_lane_that_ends_wakes() -> None:
    with LaneDriver() as lane:
        lane.site("add")
        lane.lane.lend()
        waiting = threading.Thread(target=lane.lane.wait_for_record, daemon=True)
        waiting.start()
        lane.wait(lambda: lane.word(ring.LISTENING))
        lane.lane.interrupt()
        waiting.join(20)
        assert not waiting.is_alive()
