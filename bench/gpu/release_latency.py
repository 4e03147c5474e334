"""Measures, by the device's timer, when released blocks are gone and online blocks begin.

    python bench/gpu/release_latency.py [--events N] [--block-us N ...] [--scale X]

An offline kernel has the whole GPU; at a moment half of it is taken away and given to an online
kernel, as the daemon does it: `Run.resize` of the one, then of the other. The kernels record when
and where their task blocks run (`bench.gpu.instrumentation.timestamps`). Measured for task blocks
of 2 to 1000 us: decision to last released block gone, and to first online block begun, beside the
task blocks' own times. The sides:

``gpud``         as the daemon runs them
``plain``        unmodified kernels on two streams, the online one's of the highest priority: its
                 offline blocks cannot be released
``by index``     the blocks with the larger half of the indices leave; otherwise those leave that
                 empty whole SMs. How many SMs come free is reported
``small``        offline blocks of `SMALL_THREADS`, of which many fit on an SM beside two of the
                 online kernel's, by SM and by index: an online block may then find no room until
                 offline blocks are compacted (`gpud.device.cuda.placement.compaction`)
``N threads``    offline blocks of fewer threads than `THREADS`: more of them are resident
``1 at a time``  claims of one task block, for the lengths for which the device chooses others;
                 blocks with larger claims have unfinished ones when they are released

Prints a table and writes bench/results/gpu_release_latency.json row by row; an interrupted run is
continued. A short run on the CPU device is part of the tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.clock_sync import Clock, GpuClock, between
from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.instrumentation.timestamps import (
    NotedKernel,
    Notes,
    freed_sms,
    gone_ns,
    quantiles_us,
    tick_ns,
)
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import Rows, cuda_device, need_gpu
from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims
from gpud.device.claim_size import choose_claims
from gpud.device.interface import Form
from tests.support.resizable_run import ResizableRun

BLOCKS_US = (10.0, 50.0, 2.0, 200.0, 1000.0)
"""The most telling first: of all sides the first two, then of all sides the others."""

FIRST = 2
SHORT_US = tuple(us for us in BLOCKS_US if choose_claims(1e3 * us, 1 << 30, 1) != ONE_AT_A_TIME)
SMALL_US = (50.0,)
THREADS = 1024
SMALL_THREADS = 128
FEWER_THREADS = {f"{threads} threads": threads for threads in (512, 256, 128)}
THREADS_US = (10.0, 50.0)
ONLINE_BLOCK_US = 20.0
LEAST_ROUNDS, LEAST_US = 24, 2000.0
TIMEOUT_S = 60.0
BY_INDEX = "by index"
SMALL = "small"
SINGLY = "1 at a time"
OURS = "gpud"


@dataclass
class Row:
    """One side and one length of task blocks; times in nanoseconds, one an event.

    Attributes:
        gone: from the decision to the end of the last released block.
        first: from the decision to the first online block.
        host: the release time that the device itself measured.
        uncertainty: of the clocks' offset, without the step of the device's timer, ``tick_ns``.
        unclear: events whose notes do not show when the last released block left.
        whole_sms: SMs that came free; half of the device's SMs are ``half_sms``.
    """

    side: str
    target_us: float
    gone: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    uncertainty: list[int] = field(default_factory=list)
    tick_ns: int = 0
    unclear: int = 0
    whole_sms: list[int] = field(default_factory=list)
    half_sms: int = 0

    def aim_us(self) -> float:
        """Return the aim for p99 of `gone`: 20 us at blocks of 10 us, else 5 us + 1.1 of them."""
        return 20.0 if self.target_us == 10 else 5.0 + 1.1 * self.target_us

    def aim_p50_us(self) -> float | None:
        """Return the aim for p50 of `gone`: 13 us at blocks of 10 us; None: there is none."""
        return 13.0 if self.target_us == 10 else None

    def met(self) -> bool:
        """Whether p50 and p99 of `gone` are within their aims."""
        gone, aim = quantiles_us(self.gone), self.aim_p50_us()
        return gone["p99"] <= self.aim_us() and (aim is None or gone["p50"] <= aim)

    def plain(self) -> dict[str, Any]:
        """For JSON, in microseconds."""
        gone = quantiles_us(self.gone)
        return {
            "side": self.side,
            "block_us": self.target_us,
            "blocks": quantiles_us(self.blocks),
            "gone": gone,
            "first_online": quantiles_us(self.first),
            "by_host": quantiles_us(self.host),
            "clock_uncertainty": quantiles_us(self.uncertainty),
            "timer_step_us": self.tick_ns / 1e3,
            "aim_p50_us": self.aim_p50_us(),
            "aim_p99_us": self.aim_us(),
            "met": self.met() if self.gone else None,
            "unclear": self.unclear,
            "whole_sms": _middle(self.whole_sms),
            "half_sms": self.half_sms,
        }


class Pair:
    """An offline and an online kernel on a device, sized for one length of task blocks."""

    def __init__(
        self,
        device: Any,
        block_us: float,
        form: Form = "persistent",
        *,
        scale: float = 1.0,
        claims: Claims | None = None,
        threads: int = THREADS,
    ) -> None:
        self.device = device
        self.form: Form = form
        self.claims = claims
        trial = NotedKernel(device, threads, 1, form)
        self.slots: int = device.sms * trial.occupancy
        trial.close()
        rounds = max(LEAST_ROUNDS, round(LEAST_US / block_us)) * scale
        self.blocks = max(4, round(rounds)) * self.slots
        self.offline = NotedKernel(device, threads, self.blocks, form)
        self.online = NotedKernel(device, THREADS, 2 * self.slots, form)
        self.tick_ns = tick_ns(self._try(1))
        self.online_loops = self.offline.loops_for(ONLINE_BLOCK_US, self._try)
        # Last: the device chooses claims by the block time of the previous run.
        self.loops = self.offline.loops_for(block_us, self._try)

    def _try(self, loops: int) -> Notes:
        self.offline.clear()
        count = min(self.blocks, 8 * self.slots)
        job = ResizableRun(self.device, [self.offline.spec(count, loops)])
        job.resize(self.slots)
        job.result(TIMEOUT_S)
        return self.offline.notes(count)

    def event(self, row: Row, clock: Clock) -> None:
        """Release half of the device from the offline kernel, and add the times to ``row``."""
        half_sms = self.device.sms // 2
        half = max(1, half_sms * self.slots // self.device.sms)
        row.half_sms = half_sms
        self.offline.clear()
        self.online.clear()
        online_half = max(1, half_sms * self.online.occupancy)
        spec = self.online.spec(2 * online_half, self.online_loops)
        online = ResizableRun(self.device, [spec], priority=1)
        spec = self.offline.spec(self.blocks, self.loops)._replace(claims=self.claims)
        offline = ResizableRun(self.device, [spec])
        before = clock()
        offline.resize(self.slots)
        self._until_under_way(offline)
        decided = time.perf_counter_ns()
        if self.form == "persistent":
            offline.resize(self.slots - half)
        online.resize(online_half)
        online.result(TIMEOUT_S)
        offline.result(TIMEOUT_S)
        after = clock()
        row.uncertainty += [before.uncertainty_ns, after.uncertainty_ns]
        at = between(before, after, decided)
        notes = self.offline.notes()
        row.blocks += notes.block_ns()[:: max(1, len(notes) // 200)].tolist()
        row.first.append(int(self.online.notes().began.min()) - at)
        if self.form != "persistent":
            return
        row.host.append(offline.release_ns)
        gone = gone_ns(notes.between(at, int(notes.ended.max())), at, half)
        if gone is None:
            row.unclear += 1
        else:
            row.gone.append(gone - at)
            row.whole_sms.append(freed_sms(notes, at, gone))

    def _until_under_way(self, job: ResizableRun) -> None:
        """Wait until each resident block has run one or two task blocks."""
        deadline = time.monotonic() + TIMEOUT_S
        wanted = min(2 * self.slots, self.blocks // 8)
        if self.form != "persistent":  # its progress is not known before its end
            time.sleep(1e-3)
            return
        while job.progress[1] < wanted:
            assert time.monotonic() < deadline, f"the offline job does not start: {job.progress}"
            os.sched_yield()

    def close(self) -> None:
        """Free the memory."""
        self.offline.close()
        self.online.close()


def main() -> int:
    """Measure, print and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=200, help="for each length and side")
    parser.add_argument("--block-us", type=float, action="append", help="a length, repeatable")
    parser.add_argument("--scale", type=float, default=1.0, help="of the work of an event")
    options = parser.parse_args()
    need_gpu()
    gpu = Gpu()
    warm_up(gpu)
    # Without the lengths: some of them can be measured first, and the others later.
    kept = Rows("release_latency", gpu, {"events": options.events, "scale": options.scale})
    clock = GpuClock(gpu)
    print(
        f"{'side':<14}{'block us':>9}{'gone p50':>10} {'p99':>8}{'first p50':>11} {'p99':>8}  aim"
    )
    small = (SMALL, f"{SMALL} {BY_INDEX}")
    sides = (OURS, "plain", *FEWER_THREADS, BY_INDEX, *small, SINGLY)
    for part, side in product((BLOCKS_US[:FIRST], BLOCKS_US[FIRST:]), sides):
        lengths = _lengths(side)
        left = [
            us
            for us in part
            if us in lengths
            and us in (options.block_us or lengths)
            and not kept.has(side=side, block_us=us)
        ]
        if not left:
            continue
        form: Form = "unmodified" if side == "plain" else "persistent"
        with cuda_device(by_sm=not side.endswith(BY_INDEX)) as device:
            for block_us in left:
                row = measure(
                    device, side, block_us, form, clock, options.events, options.scale,
                    claims=ONE_AT_A_TIME if side == SINGLY else None,
                    threads=SMALL_THREADS if side in small else FEWER_THREADS.get(side, THREADS),
                )  # fmt: skip
                kept.add(row.plain())
                print(line(row), flush=True)
    if not options.block_us:
        kept.end()
    print("wrote gpu_release_latency.json")
    return 0


def _lengths(side: str) -> tuple[float, ...]:
    """Return the lengths of task blocks that a side is measured with."""
    if side == SINGLY:
        return SHORT_US
    if side in FEWER_THREADS:
        return THREADS_US
    return SMALL_US if side.startswith(SMALL) else BLOCKS_US


def measure(
    device: Any, side: str, block_us: float, form: Form, clock: Clock, events: int,
    scale: float = 1.0, claims: Claims | None = None, threads: int = THREADS,
) -> Row:  # fmt: skip
    """Measure one row; ``claims`` None: the device's choice; ``threads``: of an offline block."""
    row = Row(side, block_us)
    pair = Pair(device, block_us, form, scale=scale, claims=claims, threads=threads)
    row.tick_ns = pair.tick_ns
    for _ in range(events):
        pair.event(row, clock)
    pair.close()
    return row


def line(row: Row) -> str:
    """Return a row of the printed table."""
    gone, first = quantiles_us(row.gone), quantiles_us(row.first)
    left = f"{gone['p50']:>10.1f} {gone['p99']:>8.1f}" if row.gone else f"{'-':>10} {'-':>8}"
    met = "" if not row.gone else "met" if row.met() else "MISSED"
    unclear = f", {row.unclear} unclear" if row.unclear else ""
    if row.whole_sms:
        unclear += f", {_middle(row.whole_sms)} of {row.half_sms} SMs whole"
    return (
        f"{row.side:<14}{row.target_us:>9g}{left}{first['p50']:>11.1f} {first['p99']:>8.1f}"
        f"  {row.aim_us():g} {met}{unclear}"
    )


def _middle(counts: list[int]) -> int | None:
    """Return the median; None if there is no value."""
    return sorted(counts)[len(counts) // 2] if counts else None


if __name__ == "__main__":
    raise SystemExit(main())
