"""The cost of rewriting on a GPU: the same kernels unmodified, and as gpud runs them.

    python bench/gpu/rewrite_cost.py [--rounds N] [--only NAME ...] [--claims auto|CHUNK,AHEAD]
        [--first N] [--tiny]

Each side launches a batch of the same grid in a row on one stream, between two events of the
device; the sides take turns, and ratios are taken within rounds (`bench.harness.timing`). All sides
must leave identical bytes. Programs are loaded by gpud's CUDA device; the persistent kernel has as
many blocks as the GPU holds, and its control words are in the same memory as the device's. They are
reset before the batch, outside of the timed span. The sides:

``native``       the unmodified kernel
``rewritten``    persistent, as gpud runs it: words in host memory, the same split of SM memory for
                 all kernels, claims as gpud chooses them from the block time
                 (`gpud.device.claim_size`)
``checked``       the same with bounds checks
``split``        ``rewritten`` with the largest part of an SM's memory as shared memory, which gpud
                 has only kernels ask for that use some: what it would cost the others
``own cache``    ``rewritten`` with the driver's default split into cache and shared memory for all
``no bus``       ``rewritten`` with launch records and status records in device memory: nothing
                 crosses the bus, so the rest of the cost is that of the loop
``singly``       ``rewritten`` with claims of one task block, where gpud would claim several

With ``--claims 4,0`` or such all kernels have these claims. Prints a table and writes
bench/results/gpu_rewrite_cost.json row by row; an interrupted run is continued. A run of some
kernels with ``--only`` only prints; ``--first N`` is a whole run of the first N. ``--tiny``: sizes
for a trial without a GPU.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.bare_launch import Arrays, Native, Persistent, loaded
from bench.gpu.instrumentation.driver import Function, Gpu
from bench.gpu.instrumentation.warm_up import warm_up
from bench.gpu.record import Rows, cuda_device, need_gpu
from bench.gpu.workloads.programs import PROGRAMS, OneProgram
from bench.harness.timing import Spread, geometric_mean, ratios, spread
from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims
from gpud.demo.metrics import percentile
from gpud.device.claim_size import choose_claims

SIDES = ("rewritten", "checked", "split", "own cache", "no bus", "singly")
FIRST = ("triad", "softmax", "scan", "stencil_3d", "polynomial", "early_exit", "copy")
"""The most telling kernels are measured first: time on a GPU may end in the middle."""

AIM_MEAN, AIM_P95, AIM_FROM_US = 1.01, 1.03, 20.0
BATCH_US, LEAST_BATCH, MOST_BATCH = 2000.0, 8, 50


class Side(Protocol):
    """One way of running the kernel."""

    function: Function

    def prepare(self) -> None:
        """Prepare a batch; nothing runs."""

    def launch(self, number: int, stream: object) -> None:
        """Make one launch of a batch."""


@dataclass(frozen=True)
class Row:
    """One kernel; times are per launch, ``sides`` has ratios to the native side by name."""

    name: str
    what: str
    task_blocks: int
    native_us: Spread
    sides: dict[str, Spread]
    registers: dict[str, int]
    claims: Claims = ONE_AT_A_TIME

    @property
    def counts(self) -> bool:
        """Whether the kernel is long enough for the aim to apply."""
        return self.native_us.median >= AIM_FROM_US

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        head = {"name": self.name, "what": self.what, "task_blocks": self.task_blocks}
        spreads = {"native_us": self.native_us, **self.sides}
        plain: dict[str, Any] = {name: value.plain() for name, value in spreads.items()}
        return {**head, **plain, "claims": list(self.claims), "registers": self.registers}


class DifferentBytesError(Exception):
    """A rewritten kernel computed something else than the unmodified one."""


def main() -> int:
    """Measure, print and save the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--only", action="append", help="one kernel only, repeatable")
    parser.add_argument("--claims", default="auto", help="CHUNK,AHEAD: for every kernel")
    parser.add_argument("--first", type=int, help="so many kernels")
    parser.add_argument("--tiny", action="store_true", help="small arrays")
    options = parser.parse_args()
    claims = None if options.claims == "auto" else Claims(*map(int, options.claims.split(",")))
    need_gpu()
    gpu = Gpu()
    settings = {"rounds": options.rounds, "tiny": options.tiny, "claims": options.claims,
                "first": options.first}  # fmt: skip
    warm_up(gpu)
    kept = Rows("rewrite_cost", gpu, settings)
    print(f"{'kernel':<22}{'native us':>10}" + "".join(f"{side:>11}" for side in SIDES))
    with cuda_device() as cuda:
        wrong = _all(gpu, cuda, kept, options, claims)
    found = {**summary(kept.rows), "wrong": wrong}
    print(*(f"{name}: {value}" for name, value in found.items()), sep="\n")
    if not options.only and claims is None:
        print(f"wrote {kept.end(**found).name}")
    return 1 if wrong else 0


def _all(
    gpu: Gpu, cuda: Any, kept: Rows, options: argparse.Namespace, claims: Claims | None
) -> list[str]:
    """Measure the wanted kernels; returns the errors."""
    whole = not options.only and claims is None
    wrong: list[str] = []
    assert {*FIRST} <= {program.name for program in PROGRAMS}
    ordered = sorted(PROGRAMS, key=lambda one: one.name not in FIRST)
    for program in ordered[: options.first]:
        if options.only and program.name not in options.only:
            continue
        if whole and kept.has(name=program.name):
            continue
        try:
            row = measure(gpu, cuda, program, options.rounds, claims, tiny=options.tiny)
        except DifferentBytesError as error:
            wrong.append(str(error))
            print(f"{program.name:<22}WRONG: {error}", flush=True)
            continue
        print(line(row), flush=True)
        if whole:
            kept.add(row.plain(), **summary([*kept.rows, row.plain()]), wrong=wrong)
        else:
            kept.rows.append(row.plain())
    return wrong


def measure(
    gpu: Gpu,
    cuda: Any,
    program: OneProgram,
    rounds: int,
    claims: Claims | None = None,
    *,
    tiny: bool = False,
) -> Row:
    """Measure one kernel; ``claims``: of all persistent sides but ``singly``, None: gpud's choice.

    Raises:
        DifferentBytesError: the forms disagree, or a task block did not run exactly once.
    """
    stream = gpu.stream()
    arrays = Arrays(gpu, program.make(tiny))
    native = Native(gpu, program, arrays)

    kernel = loaded(cuda, program)

    def form(kernel: Any, *, own: bool = False) -> Persistent:
        return Persistent(gpu, kernel, program, arrays, MOST_BATCH, own=own)

    forms = {
        "rewritten": form(kernel),
        "checked": form(loaded(cuda, program, bounds_checks=True)),
        "split": form(loaded(cuda, program, most_shared=True)),
        "own cache": form(loaded(cuda, program, own_cache=True)),
        "no bus": form(kernel, own=True),
    }
    total = math.prod(arrays.launch.grid)
    right: list[bytes] = []

    def check(name: str, side: Side) -> None:
        arrays.reset()
        timed(gpu, side, 1, stream)
        found = arrays.outputs()
        if found != (right or found):
            raise DifferentBytesError(f"{name} {program.name} leaves other bytes")
        right[:] = found
        if isinstance(side, Persistent) and side.words.done()[0] != total:
            ran = side.words.done()[0]
            raise DifferentBytesError(f"{name} {program.name} ran {ran} of {total}")

    check("native", native)
    once = min(timed(gpu, native, LEAST_BATCH, stream) for _ in range(3))
    batch = min(max(math.ceil(BATCH_US / once), LEAST_BATCH), MOST_BATCH)
    blocks = forms["rewritten"].blocks
    chosen = claims or choose_claims(1e3 * once * blocks / total, total, blocks)
    for one in forms.values():
        one.words.claim(chosen)
    if chosen != ONE_AT_A_TIME:
        forms["singly"] = form(kernel)
    sides: dict[str, Side] = {"native": native, **forms}
    for name, side in sides.items():
        check(name, side)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(timed(gpu, sides[name], batch, stream))
    return Row(
        program.name,
        program.what,
        total,
        spread(samples["native"]),
        {name: ratios(samples[name], samples["native"]) for name in forms},
        {name: sides[name].function.registers for name in ("native", "rewritten", "checked")},
        chosen,
    )


def timed(gpu: Gpu, side: Side, batch: int, stream: object) -> float:
    """Microseconds per launch of ``batch`` launches in a row, by the device."""
    begin, end = gpu.event(), gpu.event()
    side.prepare()
    begin.record(stream)
    for number in range(batch):
        side.launch(number, stream)
    end.record(stream)
    return end.since_us(begin) / batch


def line(row: Row) -> str:
    """Return a row of the printed table."""
    used = "/".join(str(count) for count in row.registers.values())
    short = "" if row.counts else "  short: not in the mean"
    told = (f"{row.sides[side].median:.3f}" if side in row.sides else "-" for side in SIDES)
    cells = "".join(f"{one:>11}" for one in told)
    return f"{row.name:<22}{row.native_us.median:>10.1f}{cells}  registers {used}{short}"


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Of plain rows: geometric means, 95th percentiles, the worst, and whether the aims are met."""
    some = [row for row in rows if row["native_us"]["median"] >= AIM_FROM_US]
    if not some:
        return {"kernels": 0}
    sides: dict[str, Any] = {}
    found: dict[str, Any] = {"kernels": len(some), "from_us": AIM_FROM_US, "sides": sides}
    for side in SIDES:
        values = {row["name"]: row[side]["median"] for row in some if side in row}
        if not values:
            continue
        worst = max(values, key=lambda name: values[name])
        sides[side] = {
            "kernels": len(values),
            "geometric_mean": geometric_mean(values.values()),
            "p95": percentile(list(values.values()), 95),
            "worst": [worst, values[worst]],
        }
    mean, p95 = sides["rewritten"]["geometric_mean"], sides["rewritten"]["p95"]
    found["aims"] = {"geometric_mean": AIM_MEAN, "p95": AIM_P95}
    found["met"] = {"geometric_mean": mean <= AIM_MEAN, "p95": p95 <= AIM_P95}
    return found


if __name__ == "__main__":
    raise SystemExit(main())
