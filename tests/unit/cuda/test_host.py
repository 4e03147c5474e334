"""A device host with the CUDA device on a model of the driver, and the messages that it sends."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.host import messages as m
from gpud.device.host.host import Host
from gpud.units import JobId
from tests.driver_model import SteppedDriver
from tests.unit.cuda.model_runs import PROGRAM

WAIT_S = 60


class Case:
    """A host in this process; a test steps time."""

    def __init__(self) -> None:
        self.fake = SteppedDriver(3)
        self.device = CUDADevice(driver=Driver(self.fake), watch=False)
        self.events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lost: queue.SimpleQueue[str] = queue.SimpleQueue()
        link: Any = SimpleNamespace(send=self.events.put)
        self.host = Host(self.device, link, self.lost.put)
        self.ask(m.LoadModule(1, 7, 5, PROGRAM))

    def ask(self, command: Any) -> Any:
        """Carry out a command and return what it replies."""
        self.host.carry_out(command)
        answer = self.events.get(timeout=WAIT_S)
        assert isinstance(answer, m.Replied), answer
        return answer.value

    def start(self, total: int, slices: int) -> None:
        """Start job 9."""
        row = m.HostLaunch(
            7, "persistent_a", "persistent", (total, 1, 1), (32, 1, 1), 0, 2, bytes(8)
        )
        packed = m.HOST_PROTOCOL.encode_records([row])
        self.host.carry_out(m.StartRun(9, 5, packed, 2, slices, 0, True))

    def heard(self) -> list[Any]:
        """Run until nothing happens any more; the events that were sent."""
        while self.fake.step() or self.device.watcher.busy:
            self.device.watcher.poll()
            if not self.lost.empty():
                break
        found = []
        while not self.events.empty():
            found.append(self.events.get())
        return found


@pytest.fixture
def case() -> Iterator[Case]:
    made = Case()
    yield made
    if made.fake.dead is None:
        made.device.close()


def test_a_job_runs_and_its_end_is_reported(case: Case) -> None:
    assert case.ask(m.MeasureKernel(2, 7, "persistent_a", (32, 1, 1), 0)) == 2
    case.start(20, 3)
    case.host.carry_out(m.ResizeJob(JobId(9), 0, 1, 1))
    *before, last = case.heard()
    assert isinstance(last, m.RunEnded)
    assert (last.error, last.complete, last.done, last.total) == (None, True, 20, 20)
    assert {type(event) for event in before} == {m.SlicesHeld}
    assert before[-1].epoch == 1
    assert [claim for _, _, claim in case.fake.ran].count(0) == 1


def test_variables_are_read_and_written(case: Case) -> None:
    case.ask(m.WriteVariable(3, 7, "table", 4, b"abcd"))
    assert case.ask(m.ReadVariable(4, 7, "table", 5, 2)) == b"bc"


@pytest.mark.parametrize("status", ["ILLEGAL_ADDRESS", "LAUNCH_FAILED"])
def test_a_dead_context_ends_the_host_and_no_job_is_said_to_have_ended(
    case: Case, status: str
) -> None:
    case.start(1000, 2)
    case.fake.run(10)
    case.fake.lose(status)
    events = case.heard()
    assert status in case.lost.get(timeout=WAIT_S)
    assert not [event for event in events if isinstance(event, m.RunEnded)]


def test_a_dead_context_found_by_a_command_ends_the_host(case: Case) -> None:
    case.fake.lose()
    case.host.carry_out(m.ReadVariable(4, 7, "table", 5, 2))
    assert "ILLEGAL_ADDRESS" in case.lost.get(timeout=WAIT_S)


def test_a_driver_call_that_fails_is_that_jobs_error(case: Case) -> None:
    case.fake.fail(1, "INVALID_VALUE", "cuLaunchKernel")
    case.start(20, 3)
    (ended,) = case.heard()
    assert ended.error["code"] == "internal"
    assert "cuLaunchKernel" in ended.error["message"]
    assert case.lost.empty()
