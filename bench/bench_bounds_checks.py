"""The cost of bounds checks and kill polls, for every kernel of the conformance suite.

    python bench/bench_bounds_checks.py [--rounds N] [--only CASE ...] [--tiny]

Each kernel runs on one CPU device in its own form, as a job of many launches in a row so that
starting a job does not count: without bounds checks, with bounds checks (all its arrays in one
arena), and, where it has loops, with kill polls and no bounds checks. The sides are interleaved in
one process and work on the same arrays. Processor times are compared within rounds; reported are
the median ratio of each kernel, their geometric mean, and the ten worst.

Prints a table and writes bench/results/bounds_checks.json; a run of some kernels only prints.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from bench.harness.timing import Spread, batch_for, geometric_mean, interleave, load, ratios, spread
from gpud.compiler.pipeline import Program, compile_program
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from gpud.errors import GpudError
from tests.conformance.checked_device import CheckedDevice
from tests.conformance.runner import LoadedCase, Run, headers_installed, source_of
from tests.conformance.suite import CASES, Case
from tests.conformance.suite.case import Form
from tests.support.resizable_run import ResizableRun

RESULT = Path(__file__).parent / "results" / "bounds_checks.json"
AIM = 1.04
SAMPLE_S, TINY_SAMPLE_S = 0.02, 0.002
MOST_LAUNCHES = 400
PATIENCE_S = 20.0


@dataclass(frozen=True)
class Row:
    """One kernel: times of a launch in microseconds, and ratios to the plain side's."""

    case: str
    form: Form
    launches: int
    plain_us: Spread
    checked: Spread
    polled: Spread | None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "case": self.case,
            "form": self.form,
            "launches": self.launches,
            "plain_us": self.plain_us.plain(),
            "checked": self.checked.plain(),
            "polled": None if self.polled is None else self.polled.plain(),
        }


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each side")
    parser.add_argument("--only", action="append", help="one case only, repeatable")
    parser.add_argument("--tiny", action="store_true", help="samples of 2 ms")
    options = parser.parse_args()
    before = load()
    cases = [case for case in CASES if not options.only or case.name in options.only]
    rows, left_out = measure(cases, options.rounds, options.tiny)
    report(rows, left_out)
    if not (options.only or options.tiny):
        keep(rows, left_out, options.rounds, before)
    return 0


def measure(
    cases: Sequence[Case], rounds: int, tiny: bool = False
) -> tuple[list[Row], dict[str, str]]:
    """Return a row for each case that can run repeatedly, and why the others are left out."""
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    for case in cases:
        form = form_of(case)
        if form is None or (case.headers and not headers_installed()):
            continue
        # Each case has its own device: a job that does not end would keep it busy.
        with CPUDevice(1) as device:
            try:
                rows.append(_measure(device, case, form, rounds, tiny))
            except (GpudError, TimeoutError) as error:
                left_out[case.name] = f"{type(error).__name__}: {error}"
                continue
        row = rows[-1]
        polled = "" if row.polled is None else f"{row.polled.median:8.3f}"
        print(
            f"{row.case:<28}{row.form:<12}{row.plain_us.median:10.1f} us"
            f"{row.checked.median:8.3f}{polled}",
            flush=True,
        )
    return rows, left_out


def form_of(case: Case) -> Form | None:
    """Return the resizable form in which the case runs here."""
    for form in ("persistent", "sliced"):
        if form in case.forms:
            return form
    return None


def _measure(device: CPUDevice, case: Case, form: Form, rounds: int, tiny: bool) -> Row:
    arena = CheckedDevice(device)
    source = source_of(case.name)
    programs = {
        "plain": compile_program(source.ptx, form=form, bounds_checks=False, kill=False),
        "checked": compile_program(source.ptx, form=form, bounds_checks=True, kill=False),
        "polled": compile_program(source.ptx, form=form, bounds_checks=False, kill=True),
    }
    if not programs["polled"].kernels[source.entry].killable:
        del programs["polled"]
    run, calls = _sides(device, arena, case, form, programs, 1)
    launches = min(MOST_LAUNCHES, batch_for([calls["plain"]], TINY_SAMPLE_S if tiny else SAMPLE_S))
    run, calls = _sides(device, arena, case, form, programs, launches)
    samples = interleave(calls, rounds)
    del run
    times = {name: one.cpu for name, one in samples.items()}
    return Row(
        case.name,
        form,
        launches,
        spread([1e6 * seconds / launches for seconds in times["plain"]]),
        ratios(times["checked"], times["plain"]),
        ratios(times["polled"], times["plain"]) if "polled" in times else None,
    )


def _sides(
    device: CPUDevice,
    arena: CheckedDevice,
    case: Case,
    form: Form,
    programs: dict[str, Program],
    launches: int,
) -> tuple[Run, dict[str, Callable[[], None]]]:
    """One run's arrays, and for each side a call that launches the kernel on them."""
    calls: dict[str, Callable[[], None]] = {}
    run: Run | None = None
    for name, program in programs.items():
        loader: Any = arena if name == "checked" else arena.unchecked
        loaded = LoadedCase(loader, case, form, program.ptx)
        if run is None:
            run = loaded.start()
        else:
            loaded.start()  # its module's variables
        kernel = loaded.kernel
        if name == "polled":
            x, y, z = (*case.block, 1, 1)[:3]
            info = program.kernels[source_of(case.name).entry]
            kernel = loaded.module.kernel(info.entry_for((x, y, z), killable=True))
        spec = LaunchSpec.of(kernel, form, case.grid, case.block, run.values, shared=case.shared)
        sequence = device.prepare([spec] * launches)
        calls[name] = _call(device, sequence)
        calls[name]()
    assert run is not None
    return run, calls


def _call(device: CPUDevice, sequence: Any) -> Callable[[], None]:
    def call() -> None:
        job = ResizableRun(device, sequence)
        job.resize(1)
        job.result(PATIENCE_S)

    return call


def report(rows: Sequence[Row], left_out: dict[str, str]) -> None:
    """Print the summary."""
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    for side, values in _columns(rows).items():
        if not values:
            continue
        worst = sorted(values, key=lambda one: one[1], reverse=True)[:10]
        mean = geometric_mean(value for _, value in values)
        print(f"{side}: geometric mean {mean:.3f} of {len(values)} kernels; worst:")
        for name, value in worst:
            print(f"    {name:<28}{value:.3f}")


def _columns(rows: Sequence[Row]) -> dict[str, list[tuple[str, float]]]:
    return {
        "bounds checks": [(row.case, row.checked.median) for row in rows],
        "kill polls": [(row.case, row.polled.median) for row in rows if row.polled is not None],
    }


def keep(
    rows: Sequence[Row], left_out: dict[str, str], rounds: int, before: dict[str, Any]
) -> None:
    """Write the figures."""
    summary = {}
    for side, values in _columns(rows).items():
        numbers = [value for _, value in values]
        if numbers:
            summary[side] = {
                "kernels": len(numbers),
                "geometric_mean": round(geometric_mean(numbers), 4),
                "ratios": spread(numbers).plain(),
                "worst": sorted(values, key=lambda one: one[1], reverse=True)[:10],
            }
    found = {
        "machine": describe(),
        "aim": AIM,
        "rounds": rounds,
        "load_before": before,
        "load_after": load(),
        "summary": summary,
        "left_out": left_out,
        "rows": [row.plain() for row in rows],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
