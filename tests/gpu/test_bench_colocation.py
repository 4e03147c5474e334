"""The co-location measurement: sizes, arithmetic, and a window of gpud's on the CPU device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

import gpud_client as gc
from bench.gpu.colocation import LONG, Cells, compared, line, mps, summary
from bench.gpu.colocation_process import GpudOnline, batch_of
from bench.gpu.colocation_window import System, WindowResult, rate_of, window
from bench.gpu.workloads.colocation_work import (
    ENTRY,
    OFFLINE,
    ONLINE,
    SOURCE,
    Sized,
    sized_offline,
    sized_online,
)
from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas

pytestmark = pytest.mark.ci


def timer(blocks: int, loops: int) -> float:
    """A device of 10 slots on which a loop of a wave takes 2 ns."""
    return blocks / 10 * loops * 0.002 + 1.0


def test_requests_are_as_long_as_they_are_called() -> None:
    lengths = {one.name: sum(one.kernels_us) / 1e3 for one in ONLINE}
    assert lengths["1ms"] == pytest.approx(1.0)
    assert lengths["4ms"] == pytest.approx(4.3, rel=0.1)
    assert len(ONLINE[1].kernels_us) == 200
    assert 5 <= min(ONLINE[1].kernels_us) <= max(ONLINE[1].kernels_us) <= 40


def test_sizes_meet_the_lengths() -> None:
    for size, us in zip(sized_online(ONLINE[1], 10, timer), ONLINE[1].kernels_us, strict=True):
        assert timer(size.blocks, size.loops) == pytest.approx(us, rel=0.04)
    for one in OFFLINE:
        size = sized_offline(one, 10, timer)
        assert size.blocks == 10 * one.waves
        assert timer(size.blocks, size.loops) == pytest.approx(1e3 * one.kernel_ms, rel=0.04)
    assert Sized(**Sized(3, 4).plain()) == Sized(3, 4)
    assert (batch_of(40.0), batch_of(1e6)) == (250, 1)


def test_rates_are_those_inside_the_window() -> None:
    done = [(0.5, 9), (1.0, 9), (1.5, 10), (2.0, 10), (9.0, 9)]
    assert rate_of(done, 1.0, 2.0) == pytest.approx(20)
    assert rate_of(done[:2], 1.0, 2.0) == 0


def test_figures_follow_their_definitions() -> None:
    native = WindowResult([0.0009] * 100, 0.0)
    alone = WindowResult([0.001] * 100, 0.0)
    together = WindowResult([0.001] * 98 + [0.002] * 2, 30.0)
    row = compared("x", ONLINE[0], OFFLINE[0], 0.2, together, alone, 40.0, 0.2, native)
    assert row.r99 == pytest.approx(2)
    assert row.r99_native == pytest.approx(2 / 0.9)
    assert row.added_us == pytest.approx(100 / 20)
    assert row.b == pytest.approx(0.75)
    assert row.harvest == pytest.approx(0.75 / 0.8)
    assert "r99 2.000" in line(row)
    found = summary([row])
    assert (found["met"], found["goal_met"], found["added_met"]) == (False, False, True)
    full = WindowResult(alone.latencies_s, 40.0)
    good = compared("x", ONLINE[0], OFFLINE[0], 0.2, full, alone, 40, 0.2, native)
    assert summary([good])["goal_met"] is True
    long = compared("x", ONLINE[0], OFFLINE[1], 0.2, together, alone, 40.0, 0.2, native)
    assert long.offline == LONG
    both = summary([good, long])
    assert both["met"] is True, "those are apart"
    assert (both["r99_long_worst"], both["long_met"]) == (pytest.approx(2), False)
    assert "r99_mean" not in summary([long])


def test_a_window_has_enough_requests() -> None:
    cells = Cells(ONLINE, OFFLINE, (0.5, 0.2), 3.0, 5000, 1)
    assert cells.window_s(500.0) == pytest.approx(10)
    assert cells.window_s(1e6) == 3.0


def test_windows_of_a_daemon_on_the_cpu_device() -> None:
    with gc.local("cpu:2") as gpu:
        for asks in ({"reservation": "100%"}, {"reservation": 1, "exclusive": True}):
            system = System(together=False, socket=str(gpu.path), asks=asks)
            arrivals = [0.02, 0.1, 0.12]
            seen = window(system, 0.3, [Sized(4, 50)] * 3, arrivals, Sized(8, 2000), 5_000.0)
            assert len(seen.latencies_s) == 3
            assert min(seen.latencies_s) > 0
            assert seen.rate >= 0


def test_mps_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="mps-control"), mps():
        pass


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not on PATH")
def test_the_work_assembles() -> None:
    assert assemble(compile_program(SOURCE).ptx, "sm_90")[ENTRY].spill_bytes == 0


def test_a_request_whose_callback_comes_late_has_its_latency() -> None:
    class Late:
        """A job whose result is there before its callback runs."""

        def add_done_callback(self, call: Callable[[object], None]) -> None:
            threading.Timer(0.1, call, (self,)).start()

        def result(self, timeout: float) -> None:
            """Return at once."""

    side = object.__new__(GpudOnline)
    side._submit = Late  # type: ignore[assignment, method-assign]
    (latency,) = side.serve([0.0], time.monotonic())
    assert latency >= 0.1
