"""The analysis of notes of blocks, on made-up and on real notes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from bench.gpu.instrumentation.clock_sync import ClockSample, Offset, between, offset_of
from bench.gpu.instrumentation.timestamps import (
    ENTRY,
    SOURCE,
    NotedKernel,
    Notes,
    freed_sms,
    gone_ns,
    quantiles_us,
    tick_ns,
)
from bench.gpu.release_latency import Pair, Row, line, measure
from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.cpu.device import CPUDevice
from tests.support.resizable_run import ResizableRun


@pytest.fixture(scope="module")
def device() -> Iterator[CPUDevice]:
    """A CPU device with one block of 1024 threads on each of two SMs."""
    with CPUDevice(2, capability=75) as one:
        yield one


def made(blocks: list[tuple[int, int, int]]) -> Notes:
    """Notes from (began, ended, place)."""
    kind = [("began", "<u8"), ("ended", "<u8"), ("place", "<u4"), ("sm", "<u4")]
    return Notes.of(np.array([(b, e, p, p // 64) for b, e, p in blocks], kind).tobytes())


def rows(places: dict[int, int], length: int = 10, gap: int = 1) -> Notes:
    """Notes of ``count`` task blocks one after the other at each place."""
    return made(
        [
            (100 + number * (length + gap) + place, 100 + number * (length + gap) + length + place,
             place)
            for place, count in places.items()
            for number in range(count)
        ]
    )  # fmt: skip


def test_busy_counts_what_runs() -> None:
    notes = made([(0, 10, 0), (5, 15, 64), (10, 20, 1), (0, 0, 9)])
    assert len(notes) == 3
    moments = np.array([0, 4, 5, 9, 10, 14, 15, 19, 20])
    assert notes.busy(moments).tolist() == [1, 1, 2, 2, 2, 2, 1, 1, 0]
    assert notes.sms_busy(moments).tolist() == [1, 1, 2, 2, 2, 2, 1, 1, 0]
    assert notes.busy_share(0, 20) == pytest.approx(1.5)
    assert notes.busy_share(5, 10) == pytest.approx(2.0)
    assert len(notes.between(16, 30)) == 1


def test_gaps_between_task_blocks_of_a_place_are_bridged() -> None:
    notes = made([(0, 10, 0), (12, 20, 0), (90, 95, 0), (11, 30, 64)]).bridged(5)
    assert notes.began.tolist() == [0, 11, 12, 90]
    assert notes.ended.tolist() == [12, 30, 20, 95]
    assert notes.place.tolist() == [0, 64, 0, 0]
    assert notes.busy(np.array([11, 21, 50])).tolist() == [2, 1, 0]


def test_the_last_released_block_is_found() -> None:
    notes = rows({0: 30, 1: 30, 2: 5, 3: 4})
    decision = 100 + 3 * 11 + 5
    assert gone_ns(notes, decision, 2) == 100 + 4 * 11 + 10 + 2
    assert gone_ns(notes, decision, 1) is None  # one was released, two left close together
    assert gone_ns(notes, decision, 4) is None  # nobody stayed
    assert gone_ns(rows({0: 5, 1: 5}), decision, 1) is None  # all ended together


def test_the_offset_lies_between_the_bounds() -> None:
    true = 1_000_000
    samples = [ClockSample(t, t + true + half, t + 2 * half) for t, half in ((0, 900), (5000, 40))]
    found = offset_of(samples)
    assert abs(found.ns - true) <= found.uncertainty_ns <= 41
    assert found.at_ns == (0 + 5000 + 80) // 2
    with pytest.raises(ValueError, match="no sample"):
        offset_of([])


def test_a_drift_between_two_offsets_is_followed() -> None:
    first, last = Offset(1000, 1, 0), Offset(1100, 1, 10_000)
    assert [between(first, last, at) for at in (0, 5_000, 10_000)] == [1000, 6_050, 11_100]
    assert between(first, first, 7) == 1007


def cpu_clock() -> Offset:
    """The offset of the CPU device's timer, which is the time of day."""
    before = time.perf_counter_ns()
    return offset_of([ClockSample(before, time.time_ns(), time.perf_counter_ns())])


def test_times_are_stated_in_microseconds() -> None:
    found = quantiles_us([1000 * n for n in range(1, 101)])
    assert (found["p50"], found["most"], found["count"]) == (50.5, 100, 100)
    assert quantiles_us([]) == {"count": 0}
    assert tick_ns(made([(0, 32, 0), (96, 128, 1)])) == 32


def test_notes_of_a_job_tell_when_and_where(device: CPUDevice) -> None:
    kernel = NotedKernel(device, 1024, 12)
    assert kernel.occupancy == 1
    job = ResizableRun(device, [kernel.spec(12, 100)])
    job.resize(2)
    job.result(60)
    notes = kernel.notes()
    assert len(notes) == 12
    assert (notes.block_ns() > 0).all()
    assert set(notes.place.tolist()) <= {0, 64}
    assert notes.busy(notes.began).max() <= 2
    kernel.clear()
    assert len(kernel.notes()) == 0


def test_longer_loops_are_found_for_longer_blocks(device: CPUDevice) -> None:
    kernel = NotedKernel(device, 1024, 1)

    def run(loops: int) -> Notes:
        return made([(0, 10 * loops, 0), (5, 5 + 10 * loops, 64)])

    assert kernel.loops_for(200, run) == pytest.approx(20_000, rel=0.05)


def test_the_device_claims_by_blocks_that_are_as_long_as_those_measured(
    device: CPUDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def trial(_: Pair, loops: int) -> Notes:
        tried.append(loops)
        return made([(0, 10 * loops, 0), (5, 5 + 10 * loops, 64)])

    monkeypatch.setattr(Pair, "_try", trial)
    pair = Pair(device, 200.0, scale=0.1)
    assert tried[-1] == pair.loops == pytest.approx(20_000, rel=0.05)
    assert pair.tick_ns == 5
    pair.close()


def test_release_latency_on_the_cpu_device(device: CPUDevice) -> None:
    row = measure(device, "cpu", 200.0, "persistent", cpu_clock, 3, scale=0.5)
    assert len(row.gone) + row.unclear == len(row.first) == 3
    assert all(abs(one) < 60e9 for one in (*row.gone, *row.first, *row.host))
    assert row.plain()["blocks"]["count"] > 3
    assert "200" in line(row)


def test_releases_of_small_blocks_free_whole_sms(device: CPUDevice) -> None:
    row = measure(device, "cpu", 200.0, "persistent", cpu_clock, 3, scale=0.5, threads=256)
    assert row.half_sms == 1
    assert len(row.gone) + row.unclear == len(row.first) == 3
    assert set(row.whole_sms) <= {1}
    assert len(row.whole_sms) == len(row.gone)


def test_sms_are_free_that_nobody_comes_back_to() -> None:
    notes = made([(0, 10, 0), (0, 10, 64), (0, 10, 128), (12, 30, 64)])
    assert freed_sms(notes, 5, 11) == 2
    assert freed_sms(notes, 5, 30) == 3
    assert freed_sms(notes, 5, 9) == 0


def test_plain_launches_have_no_release(device: CPUDevice) -> None:
    row = measure(device, "plain", 200.0, "unmodified", cpu_clock, 1, scale=0.5)
    assert row.gone == []
    assert len(row.first) == 1
    assert row.plain()["met"] is None
    assert Row("x", 10.0).aim_us() == 20
    assert Row("x", 50.0).aim_us() == pytest.approx(60)


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not on PATH")
def test_the_noting_kernel_fits_two_blocks_of_1024_threads() -> None:
    program = compile_program(SOURCE, form="persistent", bounds_checks=False, kill=False)
    assert assemble(program.ptx, "sm_90")[ENTRY].registers <= 32
