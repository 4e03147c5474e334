"""The CPU device against PoCL on kernels written in CUDA C++ and in OpenCL C.

    python bench/bench_pocl.py [--rounds N] [--kernel NAME ...] [--math default|fast] [--tiny]

Both sides use all cores of this process and the same block shapes and data; both results are
checked against NumPy before anything is timed. Launches of the two sides alternate. A ratio is
PoCL's time divided by the CPU device's, so above 1 the CPU device is faster. Times are wall-clock
from the call that launches to the return of the call that waits; compilation is listed separately.
Prints a table and writes bench/results/pocl.json and .md; a run that leaves out kernels or uses
tiny data only prints.

Default mathematics is what each language gives without options; fast is ``--use_fast_math`` and
``-cl-fast-relaxed-math``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.arrays import Arrays
from bench.harness.machine import describe
from bench.harness.markdown import markdown, quartiles
from bench.harness.timing import (
    Samples,
    Spread,
    batch_for,
    cores_used,
    geometric_mean,
    interleave,
    load,
    ratios,
    spread,
)
from bench.kernel_pairs import PAIRS, Pair, wrong
from bench.kernel_pairs.cpu_side import CPUSide
from bench.kernel_pairs.opencl_side import OpenCLSide, PoCL, missing_pocl
from gpud.device.cpu.device import CPUDevice

RESULTS = Path(__file__).parent / "results"
OPTIONS: dict[str, tuple[list[str], list[str]]] = {
    "default": ([], []),
    "fast": (["--use_fast_math"], ["-cl-fast-relaxed-math"]),
}
AIM = 1.0
SAMPLE_S = 0.02
"""A sample lasts about this long: thousands of times the resolution of the clock."""


@dataclass(frozen=True)
class Row:
    """One kernel with one kind of mathematics; times in seconds."""

    kernel: str
    what: str
    math: str
    gpud: Spread
    pocl: Spread
    ratio: Spread
    cpu_ratio: Spread
    operations: float
    bytes: float
    counts: bool
    compile_s: dict[str, float]
    samples: dict[str, Samples] = field(repr=False)

    def plain(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "what": self.what,
            "math": self.math,
            "in_mean": self.counts,
            "gpud_s": self.gpud.plain(),
            "pocl_s": self.pocl.plain(),
            "ratio": self.ratio.plain(),
            "cpu_ratio": self.cpu_ratio.plain(),
            "gpud_gop_per_s": round(self.operations / self.gpud.median / 1e9, 3),
            "gpud_gb_per_s": round(self.bytes / self.gpud.median / 1e9, 3),
            "compile_s": {name: round(value, 4) for name, value in self.compile_s.items()},
            "samples_s": {name: samples.plain() for name, samples in self.samples.items()},
        }


@dataclass(frozen=True)
class Failure:
    """A kernel that one side does not run, or runs with a wrong result."""

    kernel: str
    math: str
    side: str
    error: str


def main() -> int:
    """Measure, print and write the results; 1 if a kernel failed on either side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="samples of each side")
    parser.add_argument("--kernel", action="append", help="one kernel only, repeatable")
    parser.add_argument("--math", choices=OPTIONS, help="default: both")
    parser.add_argument("--tiny", action="store_true", help="data as in the tests")
    options = parser.parse_args()
    why = missing_pocl()
    if why:
        print(f"nothing to compare with: {why}")
        return 0
    pairs = [pair for pair in PAIRS if not options.kernel or pair.name in options.kernel]
    kinds = [options.math] if options.math else list(OPTIONS)
    pocl = PoCL()
    before = load()
    with CPUDevice(pocl.device.max_compute_units) as device:
        rows, failures = measure(device, pocl, pairs, kinds, options.rounds, options.tiny)
    report(rows, failures)
    if not (options.kernel or options.math or options.tiny):
        keep(rows, failures, pocl, options.rounds, before)
    return 1 if failures else 0


def measure(
    device: CPUDevice, pocl: PoCL, pairs: list[Pair], kinds: list[str], rounds: int, tiny: bool
) -> tuple[list[Row], list[Failure]]:
    """All rows, in the order of ``kinds`` and ``pairs``."""
    rows: list[Row] = []
    failures: list[Failure] = []
    for pair in pairs:
        arrays = Arrays(pair.make(pair.tiny if tiny else pair.full))
        for kind in kinds:
            row = _measure_one(device, pocl, pair, arrays, kind, rounds)
            if isinstance(row, Row):
                rows.append(row)
            else:
                failures.append(row)
    rows.sort(key=lambda row: kinds.index(row.math))
    return rows, failures


def _measure_one(
    device: CPUDevice, pocl: PoCL, pair: Pair, arrays: Arrays, kind: str, rounds: int
) -> Row | Failure:
    cuda_options, opencl_options = OPTIONS[kind]
    side = "gpud"
    try:
        ours = CPUSide(device, pair, arrays, cuda_options)
        _check(arrays, ours.run)
        side = "pocl"
        theirs = OpenCLSide(pocl, pair, arrays, opencl_options)
        _check(arrays, theirs.run)
    except Exception as error:  # noqa: BLE001 - a failure is recorded, and the others run on
        return Failure(pair.name, kind, side, f"{type(error).__name__}: {error}")
    calls = {"gpud": ours.run, "pocl": theirs.run}
    samples = interleave(calls, rounds, batch_for(calls.values(), SAMPLE_S))
    gpud, peer = samples["gpud"], samples["pocl"]
    return Row(
        pair.name,
        pair.what,
        kind,
        spread(gpud.wall),
        spread(peer.wall),
        ratios(peer.wall, gpud.wall),
        ratios(peer.cpu, gpud.cpu),
        arrays.problem.operations,
        arrays.problem.bytes,
        pair.counts,
        {
            "gpud_to_ptx": ours.compile_s,
            "gpud_to_machine_code": ours.load_s,
            "pocl_build": theirs.compile_s,
            "pocl_first_launch": theirs.load_s,
        },
        samples,
    )


class WrongResultError(Exception):
    """A side's result differs from NumPy's."""


def _check(arrays: Arrays, run: Callable[[], None]) -> None:
    """Run once on the first contents and compare with NumPy."""
    arrays.reset()
    run()
    for index in arrays.problem.expect:
        text = wrong(arrays.problem, index, arrays.result(index))
        if text:
            raise WrongResultError(text)


def report(rows: list[Row], failures: list[Failure]) -> None:
    """Print the table."""
    for kind in dict.fromkeys(row.math for row in rows):
        some = [row for row in rows if row.math == kind]
        print(f"\n{kind} mathematics; PoCL / gpud: above 1 the CPU device is faster")
        print(f"{'kernel':<16}{'gpud ms':>10}{'PoCL ms':>10}{'ratio':>8}{'(CPU)':>8}  quartiles")
        for row in some:
            print(
                f"{row.kernel:<16}{1e3 * row.gpud.median:>10.3f}{1e3 * row.pocl.median:>10.3f}"
                f"{row.ratio.median:>8.2f}{row.cpu_ratio.median:>8.2f}"
                f"  {quartiles(row.ratio, '.2f')}"
            )
        counted = [row.ratio.median for row in some if row.counts]
        if counted:
            mean = geometric_mean(counted)
            cpu = geometric_mean(row.cpu_ratio.median for row in some if row.counts)
            print(
                f"geometric mean of {len(counted)}: {mean:.3f} (aim: {AIM} or more), {cpu:.3f} by "
                "processor time"
            )
    for failure in failures:
        print(f"FAILED {failure.kernel} ({failure.math}) on {failure.side}: {failure.error}")


def keep(
    rows: list[Row], failures: list[Failure], pocl: PoCL, rounds: int, before: dict[str, Any]
) -> None:
    """Write bench/results/pocl.json and .md."""
    import llvmlite.binding as llvm

    from gpud.compiler.toolchain.nvrtc import nvrtc_version

    versions = {
        "llvm_of_gpud": ".".join(map(str, llvm.llvm_version_info)),
        "target_of_gpud": llvm.get_host_cpu_name(),
        "nvrtc": ".".join(map(str, nvrtc_version())),
    }
    means = {
        kind: round(geometric_mean(r.ratio.median for r in rows if r.math == kind and r.counts), 3)
        for kind in dict.fromkeys(row.math for row in rows if row.counts)
    }
    plain = {
        "command": f"python bench/bench_pocl.py --rounds {rounds}",
        "machine": describe() | before,
        "versions": versions,
        "pocl": pocl.describe(),
        "rounds": rounds,
        "cores_used": {
            side: cores_used(row.samples[side] for row in rows if row.counts)
            for side in ("gpud", "pocl")
        },
        "ratio": "PoCL time / gpud time, median over rounds; cpu_ratio: the same of processor time",
        "geometric_means": means,
        "failures": [vars(failure) for failure in failures],
        "rows": [row.plain() for row in rows],
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "pocl.json").write_text(json.dumps(plain, indent=1) + "\n")
    (RESULTS / "pocl.md").write_text("\n".join(_markdown(rows, failures, plain)) + "\n")


def _markdown(rows: list[Row], failures: list[Failure], plain: dict[str, Any]) -> list[str]:
    machine, versions = plain["machine"], plain["versions"]
    where = (
        f"`{plain['command']}` on {machine['cores']} cores of {machine['cpu']}, load "
        f"{machine['load_1min']} before it; {plain['pocl']['platform']}; gpud with LLVM "
        f"{versions['llvm_of_gpud']}, NVRTC {versions['nvrtc']}. Cores used on average: gpud "
        f"{plain['cores_used']['gpud']}, PoCL {plain['cores_used']['pocl']}. Ratio: PoCL's time / "
        "gpud's, median and quartiles over the rounds; above 1 the CPU device is faster."
    )
    lines = [
        "# The CPU device against PoCL",
        "",
        where,
    ]
    for kind, mean in plain["geometric_means"].items():
        lines += ["", f"## {kind.capitalize()} mathematics: geometric mean {mean}", ""]
        columns = ("kernel", "", "gpud ms", "PoCL ms", "ratio", "quartiles", "of CPU time")
        lines += markdown(
            (*columns, "gpud compiles s", "PoCL compiles s"),
            (_cells(row) for row in rows if row.math == kind),
            texts=2,
        )
    if failures:
        lines += ["", "Failures:", ""]
        lines += [f"* {f.kernel} ({f.math}) on {f.side}: {f.error}" for f in failures]
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    ours = row.compile_s["gpud_to_ptx"] + row.compile_s["gpud_to_machine_code"]
    theirs = row.compile_s["pocl_build"] + row.compile_s["pocl_first_launch"]
    return (
        *(f"`{row.kernel}`", row.what),
        *(f"{1e3 * row.gpud.median:.3f}", f"{1e3 * row.pocl.median:.3f}"),
        *(f"{row.ratio.median:.2f}", quartiles(row.ratio, ".2f")),
        *(f"{row.cpu_ratio.median:.2f}", f"{ours:.2f}", f"{theirs:.2f}"),
    )


if __name__ == "__main__":
    raise SystemExit(main())
