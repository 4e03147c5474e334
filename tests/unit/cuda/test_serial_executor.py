"""Queued driver calls run in order, and only callers that need their result wait for them."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.driver.serial_executor import SerialExecutor
from gpud.errors import DeviceLost, InvalidArgument
from tests.driver_model import SteppedDriver

GRANULE = 1 << 16
SIZE = 16 * GRANULE
WAIT_S = 60.0


class Slow(SteppedDriver):
    """Unmaps no memory before ``goes`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.comes, self.goes = threading.Event(), threading.Event()

    def before(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "cuMemUnmap" and threading.current_thread().name == "free arenas":
            self.comes.set()
            assert self.goes.wait(WAIT_S)


def test_a_closed_arena_is_freed_without_delaying_other_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memfd = os.memfd_create("arena")
    os.ftruncate(memfd, SIZE)
    fake = Slow()
    device = CUDADevice(driver=Driver(fake))
    executor = device.arenas._executor
    wait = executor.wait

    def waits(done: int, seconds: float) -> bool:
        fake.goes.set()
        return wait(done, seconds)

    monkeypatch.setattr(executor, "wait", waits)
    gone, stays = device.map_arena(memfd, SIZE), device.map_arena(memfd, SIZE)
    gone.commit(GRANULE, 4 * GRANULE)
    gone.close()
    assert fake.comes.wait(WAIT_S)
    stays.commit(GRANULE, GRANULE)  # while the other arena is being freed
    assert device.arenas.find((gone.address, SIZE)) is None
    # Its addresses can be reserved again as soon as it is freed.
    following = device.map_arena(memfd, SIZE, gone.address)
    assert following.address == gone.address
    fake.goes.clear()
    fake.comes.clear()
    following.close()
    assert fake.comes.wait(WAIT_S)
    fake.fail(1, "OUT_OF_MEMORY", "cuMemCreate")
    stays.commit(3 * GRANULE, GRANULE)  # with the freed memory
    with pytest.raises(InvalidArgument, match="it is taken"):
        device.map_arena(memfd, SIZE, stays.address)
    stays.close()
    assert device.arenas.wait_freed(2)
    device.close()
    assert not +fake.alive
    os.close(memfd)


def test_calls_run_in_order() -> None:
    executor, seen = SerialExecutor("executor"), list[int]()
    goes = threading.Event()
    executor.put(lambda: assert_set(goes))
    for number in range(5):
        executor.put(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert (executor.pending, executor.done) == (6, 0)
    assert not executor.wait(0, 0), "time is over"
    goes.set()
    while executor.wait(executor.done, WAIT_S):
        pass
    assert (executor.pending, executor.done, seen) == (0, 6, [0, 1, 2, 3, 4])
    assert executor.wait(5, WAIT_S), "it was done meanwhile"
    assert not executor.wait(6, WAIT_S), "nothing is left"
    executor.close()


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


def test_a_failure_is_raised_once() -> None:
    executor, seen = SerialExecutor("executor"), list[str]()

    def fails() -> None:
        raise DeviceLost("gone")

    executor.put(fails)
    with pytest.raises(DeviceLost, match="gone"):
        executor.wait(0, WAIT_S)
    executor.put(lambda: seen.append("after"))
    executor.close()
    assert seen == ["after"]
