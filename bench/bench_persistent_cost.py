"""The cost of the persistent form: the same grids with unmodified and with persistent kernels.

    python bench/bench_persistent_cost.py [--rounds N] [--kernel NAME ...] [--tiny]

Both run on one CPU device, interleaved. The unmodified kernel is a plain launch; the persistent one
is a job with M blocks for every SM (M: occupancy), as many as the device holds. Overhead is
persistent time / unmodified time - 1, median over the rounds. A kernel's task blocks are made
longer by its size: loop count, depth of the matrices, number of bodies. The block time is that of
the unmodified kernel: its time times SMs, divided by its task blocks. A grid takes about 0.1 s, so
that the one start of a job does not hide the cost of each task block; it has at least 16 task
blocks for each SM, so that the last ones weigh little. Both forms must leave identical bytes.

Prints a table and writes bench/results/persistent_cost.json; a run that leaves out kernels
or uses tiny grids only prints.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.arrays import Arrays, Ready
from bench.harness.machine import describe
from bench.harness.timing import (
    Samples,
    Spread,
    batch_for,
    cores_used,
    interleave,
    load,
    ratios,
    spread,
)
from bench.harness.workloads import WORKLOADS, Workload
from gpud.compiler.pipeline import compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.cpu.program.module import CPUKernel

RESULTS = Path(__file__).parent / "results"
GRID_S = 0.1
LEAST_BLOCKS_PER_SM = 16
MOST_BLOCKS = 1 << 16
AIM = 0.03
AIM_FROM_US = 50.0


@dataclass(frozen=True)
class Row:
    """One kernel at one block time; overhead is a ratio minus 1."""

    kernel: str
    size: int
    task_blocks: int
    persistent_blocks: int
    block_us: Spread
    overhead: Spread
    cpu_overhead: Spread
    samples: dict[str, Samples] = field(repr=False)

    @property
    def counts(self) -> bool:
        """Whether the aim applies to blocks this long."""
        return self.block_us.median >= AIM_FROM_US

    def plain(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "size": self.size,
            "task_blocks": self.task_blocks,
            "persistent_blocks": self.persistent_blocks,
            "block_us": self.block_us.plain(),
            "overhead": self.overhead.plain(),
            "cpu_overhead": self.cpu_overhead.plain(),
            "samples_s": {name: samples.plain() for name, samples in self.samples.items()},
        }


@dataclass(frozen=True)
class Forms:
    """A workload's kernel on a device, unmodified and persistent."""

    device: CPUDevice
    workload: Workload
    unmodified: CPUKernel
    persistent: CPUKernel

    def ready(self, kernel: CPUKernel, arrays: Arrays) -> Ready:
        """One of the two kernels with its arguments."""
        return Ready(self.device, kernel, self.workload.block, arrays)


class DifferentBytesError(Exception):
    """The persistent form's result differs from the unmodified kernel's."""


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each form")
    parser.add_argument("--kernel", action="append", help="one kernel only, repeatable")
    parser.add_argument("--tiny", action="store_true", help="grids of 1 ms, three block times")
    options = parser.parse_args()
    before = load()
    rows: list[Row] = []
    with CPUDevice() as device:
        for workload in WORKLOADS:
            if not options.kernel or workload.name in options.kernel:
                rows += measure(device, workload, options.rounds, options.tiny)
        sms = device.sms
    report(rows)
    if not (options.kernel or options.tiny):
        keep(rows, sms, options.rounds, before)
    return 0


def measure(device: CPUDevice, workload: Workload, rounds: int, tiny: bool = False) -> list[Row]:
    """One row for each block time of a workload.

    Raises:
        DifferentBytesError: the forms disagree.
    """
    program = compile_program(workload.cuda, form="persistent")
    (info,) = program.kernels.values()
    forms = Forms(
        device,
        workload,
        device.load(program.original_ptx).kernel(info.entry),
        device.load(program.ptx).kernel(info.entry),
    )
    grid_s = GRID_S / 100 if tiny else GRID_S
    targets = workload.targets_us[:3] if tiny else workload.targets_us
    rows: list[Row] = []
    size = workload.step
    for target in targets or (None,):
        if target is not None:
            size = _size_for(forms, size, target, grid_s)
        found = _block_us(forms, size, grid_s)
        blocks = _blocks_for(device, found, grid_s)
        rows.append(_measure_one(forms, size, blocks, rounds, grid_s))
    return rows


def _size_for(forms: Forms, size: int, target_us: float, grid_s: float) -> int:
    """Return the size whose blocks take about ``target_us``; the search starts at ``size``."""
    step = forms.workload.step
    for _ in range(4):  # iterate: a block's time is not proportional to its size
        found = _block_us(forms, size, grid_s)
        size = max(1, round(size / step * target_us / found)) * step
        if abs(found / target_us - 1) < 0.1:
            break
    return size


def _block_us(forms: Forms, size: int, grid_s: float) -> float:
    """Return the approximate duration of a task block in microseconds: the best of a few launches.

    The grid is as large as the one to be measured, so that the launch itself weighs as little.
    """
    sms = forms.device.sms
    blocks, found = 4 * LEAST_BLOCKS_PER_SM * sms, float("inf")
    while True:
        ready = forms.ready(forms.unmodified, Arrays(forms.workload.make(size, blocks)))
        blocks = math.prod(ready.grid)
        for _ in range(3):
            began = time.perf_counter()
            ready.launch()
            found = min(found, 1e6 * (time.perf_counter() - began) * sms / blocks)
        wanted = _blocks_for(forms.device, found, grid_s)
        if wanted <= 2 * blocks:
            return found
        blocks, found = wanted, float("inf")


def _blocks_for(device: CPUDevice, block_us: float, grid_s: float) -> int:
    """Return the number of task blocks that take about ``grid_s`` together."""
    least = LEAST_BLOCKS_PER_SM * device.sms
    return min(max(round(1e6 * grid_s * device.sms / block_us), least), MOST_BLOCKS)


def _measure_one(forms: Forms, size: int, blocks: int, rounds: int, grid_s: float) -> Row:
    device, workload = forms.device, forms.workload
    arrays = Arrays(workload.make(size, blocks))
    plain = forms.ready(forms.unmodified, arrays)
    rewritten = forms.ready(forms.persistent, arrays)
    persistent_blocks = device.sms * device.occupancy(rewritten.kernel, rewritten.block)
    calls: dict[str, Callable[[], None]] = {
        "unmodified": plain.launch,
        "persistent": lambda: rewritten.job(persistent_blocks),
    }
    left: list[bytes] = []
    for call in calls.values():
        arrays.reset()
        call()
        left.append(arrays.result(workload.output).tobytes())
    if left[0] != left[1]:
        raise DifferentBytesError(f"{workload.name}, size {size}: the forms leave different bytes")
    batch = batch_for(calls.values(), grid_s / 2)
    samples = interleave(calls, rounds, batch)
    total = math.prod(plain.grid)
    loop, alone = samples["persistent"], samples["unmodified"]
    return Row(
        workload.name,
        size,
        total,
        persistent_blocks,
        spread([1e6 * s * device.sms / total for s in alone.wall]),
        _over_one(ratios(loop.wall, alone.wall)),
        _over_one(ratios(loop.cpu, alone.cpu)),
        samples,
    )


def _over_one(ratio: Spread) -> Spread:
    return Spread(ratio.median - 1, ratio.low - 1, ratio.high - 1, ratio.least - 1)


def report(rows: list[Row]) -> None:
    """Print the table."""
    print("overhead of the persistent form: persistent / unmodified - 1")
    print(
        f"{'kernel':<14}{'block us':>10}{'task blocks':>13}{'overhead':>10}{'(CPU)':>9}  quartiles"
    )
    for row in rows:
        print(
            f"{row.kernel:<14}{row.block_us.median:>10.1f}{row.task_blocks:>13}"
            f"{row.overhead.median:>+10.1%}{row.cpu_overhead.median:>+9.1%}"
            f"  {row.overhead.low:+.1%} to {row.overhead.high:+.1%}"
        )
    print(_summary(rows))


def _summary(rows: list[Row]) -> str:
    some = [row for row in rows if row.counts]
    if not some:
        return f"no block of {AIM_FROM_US:.0f} us or more was measured"
    middle = spread([row.overhead.median for row in some]).median
    cpu = spread([row.cpu_overhead.median for row in some]).median
    within = sum(row.overhead.median <= AIM for row in some)
    worst = max(some, key=lambda row: row.overhead.median)
    return (
        f"blocks of {AIM_FROM_US:.0f} us and more: median {middle:+.1%} ({cpu:+.1%} of processor "
        f"time), {within} of {len(some)} within {AIM:.0%}, worst {worst.overhead.median:+.1%} "
        f"({worst.kernel}, {worst.block_us.median:.0f} us)"
    )


def keep(rows: list[Row], sms: int, rounds: int, before: dict[str, Any]) -> None:
    """Write bench/results/persistent_cost.json."""
    import llvmlite.binding as llvm

    command = f"python bench/bench_persistent_cost.py --rounds {rounds}"
    version = ".".join(map(str, llvm.llvm_version_info))
    used = cores_used(side for row in rows for side in row.samples.values())
    plain = {
        "command": command,
        "machine": describe() | before,
        "llvm": version,
        "sms": sms,
        "rounds": rounds,
        "cores_used": used,
        "overhead": "persistent time / unmodified time - 1, median over rounds",
        "summary": _summary(rows),
        "rows": [row.plain() for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "persistent_cost.json").write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
