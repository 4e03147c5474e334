"""Resources that the conformance suite's kernels take of an SM, before and after rewriting.

    python bench/bench_ptxas_table.py [--arch sm_75 --arch sm_90 ...]

Registers, shared memory, and how many blocks of the case's shape fit on an SM with them. Each
rewritten program is changed as the CUDA device changes it when it loads it, and assembled with
ptxas, with bounds checks and without; one that does not assemble fails the benchmark.
The default targets are sm_75, sm_90 and sm_100, as far as this ptxas knows them. CUDA C++ is
compiled for the target itself, so that the PTX is what a user of that device gets. Prints a
summary and writes bench/results/ptxas_table.json. Without ptxas it says so and ends.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import KernelInfo
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import Usage, assemble, find_ptxas, ptxas_version
from gpud.device.cpu.occupancy import SM_LIMITS, occupancy
from gpud.device.cuda.program.by_value import pass_by_value
from gpud.device.cuda.program.report_blocks import report_blocks
from gpud.errors import CompileError, KernelRejected
from tests.conformance.suite import CASES
from tests.conformance.suite.case import Case

RESULTS = Path(__file__).parent / "results"
ARCHS = ("sm_75", "sm_90", "sm_100")
_WARP, _REGISTERS, _PARTS = 32, 1 << 16, 4  # of an SM: CUDA C++ Programming Guide 13, 16.2


@dataclass(frozen=True)
class Row:
    """One kernel on one target; usages as ptxas reports them.

    Attributes:
        unchecked: after rewriting without bounds checks.
        blocks: that fit on an SM before, after, and after without bounds checks.
    """

    case: str
    kernel: str
    arch: str
    form: str
    before: Usage
    after: Usage
    unchecked: Usage
    blocks: tuple[int, int, int]


@dataclass(frozen=True)
class Failure:
    """A rewritten program that ptxas rejected."""

    case: str
    arch: str
    error: str


def main() -> int:
    """Assemble, print and write the results; 1 if a rewritten program does not assemble."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arch", action="append", help="a target, repeatable; default: three")
    archs = parser.parse_args().arch or list(ARCHS)
    if find_ptxas() is None:
        print(
            "ptxas is not installed: there is nothing to compare. It comes with the CUDA toolkit."
        )
        return 0
    rows: list[Row] = []
    failures: list[Failure] = []
    skipped: dict[str, int] = {}
    for arch in archs:
        for case in CASES:
            try:
                rows += _rows(case, arch)
            except _Skip:
                skipped[arch] = skipped.get(arch, 0) + 1
            except CompileError as error:
                failures.append(Failure(case.name, arch, str(error)))
    _print(rows, failures, skipped, archs)
    _keep(rows, failures, skipped, archs)
    return 1 if failures else 0


class _Skip(Exception):
    """A case that has no rewritten form on a target."""


def _rows(case: Case, arch: str) -> list[Row]:
    """Return the kernels of one case.

    Raises:
        _Skip: it is refused by design, or needs a newer target, or ptxas refuses the original.
        CompileError: ptxas refuses the rewritten program.
    """
    number = int(arch.removeprefix("sm_"))
    if case.target > number:
        raise _Skip
    virtual, real = _virtual(case.arch, arch), _real(case.arch, arch)
    try:
        program, plain = (
            compile_program(
                case.program,
                arch=virtual,
                options=case.options,
                name_expressions=[case.kernel] if "<" in case.kernel else [],
                bounds_checks=bounds_checks,
            )
            for bounds_checks in (True, False)
        )
        before = assemble(program.original_ptx, real)
    except (CompileError, KernelRejected) as error:
        raise _Skip from error
    after, unchecked = (assemble(_as_loaded(one.ptx), real) for one in (program, plain))
    return [
        Row(case.name, info.name, arch, _form(info), *usages, _blocks(case, number, usages))
        for name, info in program.kernels.items()
        if name in after
        for usages in [(before[name], after[name], unchecked[name])]
    ]


def _as_loaded(ptx: str) -> str:
    """Return a program as the CUDA device passes it to the driver."""
    return print_module(pass_by_value(report_blocks(flatten_module(parse(ptx)))))


def _blocks(case: Case, number: int, usages: tuple[Usage, ...]) -> tuple[int, int, int]:
    """Blocks of the case's shape on an SM of compute capability ``number`` / 10."""
    threads, limits = math.prod(case.block), SM_LIMITS[number]
    first, second, third = (
        min(
            occupancy(limits, threads, usage.shared_bytes + case.shared),
            _warps_by_registers(usage.registers) // -(-threads // _WARP),
        )
        for usage in usages
    )
    return first, second, third


def _warps_by_registers(registers: int) -> int:
    """Warps for which an SM has registers; each of its four parts allocates units of 256."""
    granule = 256
    a_warp = -(-max(1, registers) * _WARP // granule) * granule
    return _REGISTERS // _PARTS // a_warp * _PARTS


def _virtual(wanted: str, arch: str) -> str:
    """Return the architecture to compile for: the case's own where it is for one device only."""
    return wanted if wanted[-1] in "af" else f"compute_{arch.removeprefix('sm_')}"


def _real(wanted: str, arch: str) -> str:
    return f"sm_{wanted.removeprefix('compute_')}" if wanted[-1] in "af" else arch


def _form(info: KernelInfo) -> str:
    return f"{info.form}{' (exit-aware)' if info.exit_aware else ''}"


def _print(
    rows: list[Row], failures: list[Failure], skipped: dict[str, int], archs: Iterable[str]
) -> None:
    print(
        f"{'target':<8}{'form':<26}{'kernels':>8}{'registers +':>13}{'worst':>7}{'smem +':>8}"
        f"{'fewer blocks':>14}{'unchecked':>10}"
    )
    for arch in archs:
        for form in sorted({row.form for row in rows}):
            some = [row for row in rows if row.arch == arch and row.form == form]
            if some:
                more = [row.after.registers - row.before.registers for row in some]
                smem = [row.after.shared_bytes - row.before.shared_bytes for row in some]
                print(
                    f"{arch:<8}{form:<26}{len(some):>8}{statistics.mean(more):>13.1f}"
                    f"{max(more):>7}{max(smem):>8}"
                    f"{sum(row.blocks[1] < row.blocks[0] for row in some):>14}"
                    f"{sum(row.blocks[2] < row.blocks[0] for row in some):>10}"
                )
        print(f"{arch:<8}{'(none for this target)':<26}{skipped.get(arch, 0):>8}")
    spills = [row for row in rows if row.after.spill_bytes > row.before.spill_bytes]
    print(f"kernels that spill more than before: {len(spills)}")
    for failure in failures:
        print(f"FAILED {failure.case} {failure.arch}: {failure.error}")


def _keep(
    rows: list[Row], failures: list[Failure], skipped: dict[str, int], archs: list[str]
) -> None:
    version = ".".join(map(str, ptxas_version()))
    RESULTS.mkdir(exist_ok=True)
    plain = {
        "machine": describe(),
        "ptxas": version,
        "targets": archs,
        "no_rewritten_form": skipped,
        "failures": [asdict(failure) for failure in failures],
        "rows": [asdict(row) for row in rows],
    }
    (RESULTS / "ptxas_table.json").write_text(json.dumps(plain, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
