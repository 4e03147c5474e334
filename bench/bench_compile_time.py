"""Time to compile kernels to machine code.

    python bench/bench_compile_time.py [--only CASE ...] [--runs N]

The first launch of a kernel on the CPU device waits for LLVM. Measured, as a daemon compiles
(bounds checks, and the variant with kill polls if there is one):

* the first result: from ``gpu.kernel`` to the result of a launch, in a daemon that finds an empty
  cache, in another session of it, and in the next daemon, for programs that repeat one piece four
  times (`tests.support.growing_kernels`);
* the suite: every kernel of the conformance suite with the block shape of its case: lines of LLVM
  IR, and processor time of the code generator and of LLVM, the least of some runs.

How code grows with a program is a test's: tests/unit/cpu/codegen/test_code_size.py. Prints tables
and writes bench/results/compile_time.json; a run of some cases only prints.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpud_client as gc
from bench.harness.results import keep
from bench.harness.timing import load
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.device import jit
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from gpud.errors import GpudError
from tests.conformance.runner import headers_installed, source_of
from tests.conformance.suite import CASES, Case
from tests.support.growing_kernels import FAMILIES, growing

SLOWEST = 20
PIECES = 4
_ARENA = LinkedMemory(4096, 1 << 28)
_HEAP = LinkedMemory(4096, 1 << 23)

Row = dict[str, Any]


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=(), metavar="CASE", help="only these cases")
    parser.add_argument("--runs", type=int, default=1, help="the fastest counts")
    options = parser.parse_args()
    before = load()
    first = [] if options.only else first_results()
    rows = suite(options.only, options.runs)
    print(f"{'case':<32}{'IR lines':>10}{'generate':>10}{'LLVM':>8}{'total':>8}")
    for row in rows[:SLOWEST]:
        print(
            f"{row['case']:<32}{row['ir_lines']:>10}{row['generate_s']:>10.2f}"
            f"{row['llvm_s']:>8.2f}{row['total_s']:>8.2f}"
        )
    print(f"all {len(rows)}: {sum(row['total_s'] for row in rows):.1f} s")
    if not options.only:
        keep("compile_time", {"first_result": first, "suite": rows}, before)
    return 0


def first_results() -> list[Row]:
    """Measure the time to the first result of each family."""
    rows = []
    print(f"{'first result [s]':<28}{'empty cache':>12}{'session':>9}{'daemon':>8}")
    for family in FAMILIES:
        source = growing(family, PIECES)
        with TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            with gc.local("cpu:2") as gpu:
                empty = _first_result(gpu, source)
                with gc.connect(gpu.path) as other:
                    session = _first_result(other, source)
            with gc.local("cpu:2") as gpu:
                daemon = _first_result(gpu, source)
        rows.append({"family": family, "empty_s": empty, "session_s": session, "daemon_s": daemon})
        print(f"{family:<28}{empty:>12.2f}{session:>9.2f}{daemon:>8.2f}", flush=True)
    return rows


def _first_result(gpu: gc.Session, source: str) -> float:
    begin = time.perf_counter()
    out, values = gpu.zeros(1 << 13, np.float32), gpu.zeros(1 << 13, np.float32)
    gpu.kernel(source, "grown").submit(4, 128, (out, values, 8)).result()
    return round(time.perf_counter() - begin, 4)


def suite(names: Sequence[str], runs: int) -> list[Row]:
    """Measure the kernels of the conformance suite, or of those cases in ``names``."""
    rows = []
    for case in CASES:
        if (names and case.name not in names) or not case.forms:
            continue
        if case.headers and not headers_installed():
            continue
        try:
            rows.append(_measure(case, runs))
        except GpudError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
    return sorted(rows, key=lambda row: -row["total_s"])


def _measure(case: Case, runs: int) -> Row:
    source = source_of(case.name)
    x, y, z = (*case.block, 1, 1)[:3]
    program = compile_program(source.ptx)
    name = program.kernels[source.entry].entry_for((x, y, z), killable=True)
    module = flatten_module(parse(program.ptx))
    layout = layout_module(module)
    generating, optimising, lines = [], [], 0
    for _ in range(runs):
        start = time.process_time()
        ir = generate_kernel(module, name, Shape(x, y, z), layout, _ARENA, _HEAP).ir
        between = time.process_time()
        jit.object_code(ir)
        generating.append(between - start)
        optimising.append(time.process_time() - between)
        lines = ir.count("\n")
    return {
        "case": case.name,
        "ir_lines": lines,
        "generate_s": round(min(generating), 4),
        "llvm_s": round(min(optimising), 4),
        "total_s": round(min(generating) + min(optimising), 4),
    }


if __name__ == "__main__":
    sys.exit(main())
