"""Cleared SMs, and SMs reserved for one job: placement of blocks; no task block is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import Form
from gpud.errors import InvalidArgument
from gpud.units import Partitions
from tests.support.waiting import until
from tests.unit.cpu.scheduling.gated_runs import Work, make

M = 4
"""Blocks of 256 threads on an SM of compute capability 7.5."""
TOTAL = 200


@pytest.fixture
def device() -> Iterator[CPUDevice]:
    with CPUDevice(3, capability=75) as one:
        yield one


def gated(
    device: CPUDevice, form: Form = "persistent", *, exclusive: int = 0, total: int = TOTAL
) -> Work:
    priority = int(exclusive > 0)
    return make(device, form, total, gate=0, block=256, exclusive=exclusive, priority=priority)


def resident_blocks(device: CPUDevice) -> list[int]:
    return [sm.blocks for sm in device.scheduler.sms]


@pytest.mark.parametrize("form", ["persistent", "sliced"])
def test_persistent_blocks_leave_a_cleared_sm_and_are_replaced_elsewhere(
    device: CPUDevice, form: Form
) -> None:
    work = gated(device, form)
    work.job.resize(2 * M)
    work.begun(2 * M)
    assert resident_blocks(device) == [M, M, 0]
    work.job.clear([1])
    assert work.job.held == 2 * M, "it holds no more than it was given"
    work.step()
    until(lambda: resident_blocks(device) == [M, 0, M])
    assert (work.job.slices, work.job.held) == (2 * M, 2 * M)
    work.finish()


def test_without_room_elsewhere_the_others_go_on(device: CPUDevice) -> None:
    work = gated(device)
    work.job.resize(3 * M)
    work.begun(3 * M)
    work.job.clear([0, 2])
    work.step()
    until(lambda: resident_blocks(device) == [0, M, 0])
    work.job.clear([])
    until(lambda: resident_blocks(device) == [M, M, M])
    work.job.clear([0, 1, 2])
    work.step()
    until(lambda: work.job.held == 0 or resident_blocks(device) == [0, 0, 0])
    other = gated(device)
    other.job.resize(1)  # it does not wait behind the first job, which cannot use this SM
    other.finish()
    work.job.clear([1])
    work.finish()


def test_a_resize_counts_persistent_blocks_that_are_leaving_their_sm(device: CPUDevice) -> None:
    work = gated(device)
    work.job.resize(2 * M)
    work.begun(2 * M)
    work.job.clear([0])
    work.job.resize(M)
    work.job.resize(2 * M)
    assert work.job.held == 2 * M
    work.step()
    until(lambda: resident_blocks(device) == [0, M, M])
    work.job.resize(0)
    work.step()
    until(lambda: work.job.held == 0)
    work.job.resize(2 * M)
    until(lambda: resident_blocks(device) == [0, M, M])
    work.finish()


def test_an_sm_that_does_not_exist_cannot_be_cleared(device: CPUDevice) -> None:
    work = gated(device)
    with pytest.raises(ValueError, match="SMs 0 to 2"):
        work.job.clear([3])
    work.job.end()


def test_a_partition_is_its_jobs_alone_until_the_job_is_over(
    device: CPUDevice,
) -> None:
    assert device.partitions == Partitions(1, 3)
    offline = gated(device)
    offline.job.resize(3 * M)
    offline.begun(3 * M)
    online = gated(device, exclusive=2)
    offline.job.resize(M)
    online.job.resize(2 * M)
    offline.step()
    online.begun(2 * M)
    run = offline.job._run
    blocks_by_sm = {sm.index for sm in online.job._run.blocks_by_sm}  # type: ignore[attr-defined]
    assert len(blocks_by_sm) == 2
    others = {sm.index for sm in run.blocks_by_sm}  # type: ignore[attr-defined]
    assert not blocks_by_sm & others
    late = gated(device)
    late.job.resize(1)  # as it may be with another scheduler: there is no room on the third
    offline.job.resize(M - 1)
    offline.step()
    late.begun(1)
    assert {sm.index for sm in late.job._run.blocks_by_sm} == others  # type: ignore[attr-defined]
    online.finish()
    offline.job.resize(2 * M)
    until(lambda: sum(resident_blocks(device)) == 2 * M + 1)
    late.finish()
    offline.finish()


def test_partitions_are_disjoint_and_limited_to_the_sms(device: CPUDevice) -> None:
    first, second = gated(device, exclusive=1), gated(device, exclusive=2)
    with pytest.raises(InvalidArgument, match="0 of 3 are no other job's alone"):
        gated(device, exclusive=1)
    first.job.resize(M)
    second.job.resize(2 * M)
    first.begun(M)
    second.begun(2 * M)
    assert resident_blocks(device) == [M, M, M]
    one, other = first.job._run.blocks_by_sm, second.job._run.blocks_by_sm  # type: ignore[attr-defined]
    assert not one.keys() & other.keys()
    first.finish()
    third = gated(device, exclusive=1)
    third.job.resize(1)
    third.finish()
    second.finish()


def test_a_launch_that_cannot_be_resized_stays_to_its_end(device: CPUDevice) -> None:
    offline = gated(device, "whole", total=3)
    offline.job.resize(3)
    offline.begun(3)
    online = gated(device, exclusive=1)
    online.job.resize(M)
    assert sum(resident_blocks(device)) >= 3
    assert offline.job.progress[1] == 0
    offline.finish()
    online.begun(M)
    online.finish()
