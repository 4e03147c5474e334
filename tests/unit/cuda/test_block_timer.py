"""Block times as the CUDA device's runs estimate them, and the claims of later runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpud.compiler.abi.control_words import AHEAD, CHUNK, Claims
from gpud.device.cuda.execution import launcher, tracker
from gpud.device.cuda.execution.block_timer import BlockTimer
from tests.driver_model import SteppedDriver
from tests.support.resizable_run import ResizableRun
from tests.unit.cuda.model_runs import device_of, drive, launches, ran_once

SHAPE = (32, 1, 1)


class Launches:
    """The part of a sequence that a timer needs: launches of 10 task blocks."""

    def __init__(self, forms: list[str]) -> None:
        self.prepared: list[Any] = [
            SimpleNamespace(form=form, block=SHAPE, total=10, kernel=SimpleNamespace(block_ns={}))
            for form in forms
        ]
        self.tuned: list[int] = []

    def tune(self, number: int) -> None:
        self.tuned.append(number)

    def block_ns(self, number: int) -> float | None:
        block_ns: float | None = self.prepared[number].kernel.block_ns.get(SHAPE)
        return block_ns


def test_block_time_is_resident_time_per_task_block() -> None:
    launches = Launches(["persistent"])
    timer: BlockTimer = BlockTimer(launches)  # type: ignore[arg-type]
    timer.begin(100, 0, 4)
    timer.poll(200, 0, 4, 4)
    timer.poll(300, 0, 2, 4)  # two have left since 200, or since 300
    timer.drained(400, 0, done=True)
    assert launches.block_ns(0) == (100 * 4 + 100 * 4 + 100 * 2) / 10
    assert launches.tuned == [0]


def test_a_launch_that_was_stopped_is_measured_when_it_is_done() -> None:
    launches = Launches(["persistent"])
    timer: BlockTimer = BlockTimer(launches)  # type: ignore[arg-type]
    timer.begin(0, 0, 3)
    timer.drained(100, 0, done=False)
    assert launches.block_ns(0) is None
    timer.begin(10_000, 0, 1)
    timer.drained(10_200, 0, done=True)
    assert launches.block_ns(0) == (3 * 100 + 200) / 10


def test_never_short() -> None:
    """An interval in which the launch changed counts for both; unseen launches have no time."""
    launches = Launches(["persistent"] * 4 + ["sliced"])
    timer: BlockTimer = BlockTimer(launches)  # type: ignore[arg-type]
    timer.begin(0, 0, 2)
    timer.poll(100, 2, 1, 5)
    assert launches.block_ns(0) == 20
    timer.poll(200, 2, 3, 5)  # it grew
    timer.poll(300, 4, 1, 1)
    assert launches.block_ns(2) == (5 * 100 + 3 * 100 + 3 * 100) / 10
    timer.drained(400, 4, done=True)
    assert [launches.block_ns(number) for number in (1, 3, 4)] == [None] * 3


@pytest.mark.parametrize("tick_ns", [1, 10**9])
def test_the_next_run_claims_by_the_last_block_time(
    tick_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1 << 62, tick_ns))
    for module in (tracker, launcher):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic_ns=lambda: next(clock)))
    fake = SteppedDriver(1)
    with device_of(fake) as device:
        specs = launches(device, "p", total=1)
        most = device.sms * device.occupancy(specs[0].kernel, SHAPE)
        spec = specs[0]._replace(grid=(16 * most, 1, 1))
        sequence = device.prepare([spec])
        fixed = device.prepare([spec._replace(claims=Claims(3, 2))])

        def words(of: Any) -> tuple[int, int]:
            return int(of._words[0, CHUNK // 4]), int(of._words[0, AHEAD // 4])

        assert words(sequence) == (1, 0)
        job = ResizableRun(device, sequence)
        job.resize(most)
        drive(fake, device, job, rounds=50_000)
        ran_once(fake, [16 * most])
        expected = (1, 1) if tick_ns == 1 else (1, 0)
        assert words(sequence) == words(device.prepare([spec])) == expected
        assert words(fixed) == (3, 2)


@pytest.mark.parametrize("ended", [False, True])
def test_a_launch_that_is_not_opened_has_no_block_time(*, ended: bool) -> None:
    fake = SteppedDriver(2)
    with device_of(fake) as device:
        specs = launches(device, "sp", total=8)
        job = ResizableRun(device, specs)
        job.resize(8)
        while "gpud_gate" not in {launch.name for launch in fake.launches}:
            fake.step()
            device.watcher.poll()
        device.watcher.poll()
        assert not specs[1].kernel.block_ns
        if ended:
            job.end()
            drive(fake, device, job)
            assert not specs[1].kernel.block_ns
            assert job.progress == (8, 8, 16), "what was done is"
        else:
            drive(fake, device, job)
            assert specs[1].kernel.block_ns
