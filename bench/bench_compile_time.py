"""Time to compile kernels to machine code, and how it grows with the length of a kernel.

    python bench/bench_compile_time.py [--only CASE ...] [--no-suite] [--no-growth] [--no-first]
        [--baseline FILE] [--output FILE]

Problem: the first launch of a kernel on the CPU device waits for LLVM. If the generated code grows
faster than the program, real kernels exceed the compiler's time limit.

Measured, as a daemon compiles (bounds checks, and the variant with kill polls if there is one):

* growth: programs that repeat one piece k times, for k = 1, 2, 4, 8, 16: calls of ``sinf``, loops
  that threads leave one by one, guarded bodies, and branches inside one loop;
* the first result: from ``gpu.kernel`` to the result of a launch, in a daemon that finds an empty
  cache, in another session of it, and in the next daemon;
* the suite: every kernel of the conformance suite with the block shape of its case.

Reported are lines of LLVM IR, and processor time of the code generator and of LLVM (the least of
some runs). ``--baseline`` adds an earlier result, of another version, to each row as ``before``. It
was not measured in turns: lines are comparable, times only roughly.

Prints tables and writes bench/results/compile_time.json.
"""

from __future__ import annotations

import argparse
import json
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
from bench.harness.machine import describe
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import Program, compile_program
from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.device import jit
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from gpud.errors import GpudError
from tests.conformance.runner import headers_installed, source_of
from tests.conformance.suite import CASES, Case

RESULT = Path(__file__).parent / "results" / "compile_time.json"
COUNTS = (1, 2, 4, 8, 16)
SLOWEST = 20
FIRST_COUNT = 4
_ARENA = LinkedMemory(4096, 1 << 28)
_HEAP = LinkedMemory(4096, 1 << 23)

_PIECES = {
    "calls of sinf": "x = sinf(x + in[i + {k}]);",
    "loops of diverging length": (
        "for (int j = i + {k}; x > in[j & 4095] && j < n; j += 3) x = x * 0.5f + in[j & 1023];"
    ),
    "guarded bodies": (
        "if (in[i + {k}] > 0.5f) {{ "
        + " ".join(f"x += in[(i * {3 + j} + {j}) & 4095] / (x + {j}.25f);" for j in range(6))
        + " out[i + {k}] = x; }}"
    ),
}
_KERNEL = """
extern "C" __global__ void grown(float* out, const float* in, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float x = in[i];
    {body}
    out[i] = x;
}}
"""


def growing(family: str, count: int) -> str:
    """Return CUDA C++ of a kernel that repeats a family's piece ``count`` times."""
    if family == "branches in one loop":
        pieces = (_PIECES["guarded bodies"].format(k=k) for k in range(count))
        body = "for (int r = 0; r < n; r++) {{ {} }}".format("\n".join(pieces))
    else:
        body = "\n    ".join(_PIECES[family].format(k=k) for k in range(count))
    return _KERNEL.format(body=body)


FAMILIES = (*_PIECES, "branches in one loop")


def measure(program: Program, entry: str, shape: tuple[int, int, int], runs: int) -> dict[str, Any]:
    """Return lines and times of one kernel."""
    name = program.kernels[entry].entry_for(shape, killable=True)
    module = flatten_module(parse(program.ptx))
    layout = layout_module(module)
    generating, optimising, lines = [], [], 0
    for _ in range(runs):
        start = time.process_time()
        ir = generate_kernel(module, name, Shape(*shape), layout, _ARENA, _HEAP).ir
        between = time.process_time()
        jit.object_code(ir)
        generating.append(between - start)
        optimising.append(time.process_time() - between)
        lines = ir.count("\n")
    return {
        "ir_lines": lines,
        "generate_s": round(min(generating), 4),
        "llvm_s": round(min(optimising), 4),
        "total_s": round(min(generating) + min(optimising), 4),
    }


def growth() -> list[dict[str, Any]]:
    """Measure every family for every count."""
    rows = []
    print(f"{'family':<28}{'k':>4}{'PTX lines':>11}{'IR lines':>11}{'seconds':>9}")
    for family in FAMILIES:
        for count in COUNTS:
            ptx = compile_cuda(growing(family, count)).ptx
            program = compile_program(ptx)
            row = {
                "family": family,
                "k": count,
                "ptx_lines": ptx.count("\n"),
                **measure(program, "grown", (128, 1, 1), 1),
            }
            rows.append(row)
            print(
                f"{family:<28}{count:>4}{row['ptx_lines']:>11}{row['ir_lines']:>11}"
                f"{row['total_s']:>9.2f}",
                flush=True,
            )
    return rows


def first_results(count: int) -> list[dict[str, Any]]:
    """Measure the time to the first result of each family, its piece repeated ``count`` times."""
    rows = []
    print(f"{'first result [s]':<28}{'empty cache':>12}{'session':>9}{'daemon':>8}")
    for family in FAMILIES:
        source = growing(family, count)
        with TemporaryDirectory() as folder:
            os.environ["XDG_CACHE_HOME"] = folder
            with gc.local("cpu:2") as gpu:
                empty = _first_result(gpu, source)
                with gc.connect(gpu.path) as other:
                    session = _first_result(other, source)
            with gc.local("cpu:2") as gpu:
                daemon = _first_result(gpu, source)
        row = {"family": family, "empty_s": empty, "session_s": session, "daemon_s": daemon}
        rows.append(row)
        print(f"{family:<28}{empty:>12.2f}{session:>9.2f}{daemon:>8.2f}", flush=True)
    return rows


def _first_result(gpu: gc.Session, source: str) -> float:
    begin = time.perf_counter()
    out, values = gpu.zeros(1 << 13, np.float32), gpu.zeros(1 << 13, np.float32)
    gpu.kernel(source, "grown").submit(4, 128, (out, values, 8)).result()
    return round(time.perf_counter() - begin, 4)


def suite(names: Sequence[str], runs: int) -> list[dict[str, Any]]:
    """Measure the kernels of the conformance suite, or of those cases in ``names``."""
    rows = []
    for case in CASES:
        if (names and case.name not in names) or not case.forms:
            continue
        if case.headers and not headers_installed():
            continue
        row = _case(case, runs)
        if row is not None:
            rows.append(row)
    rows.sort(key=lambda row: -row["total_s"])
    return rows


def _case(case: Case, runs: int) -> dict[str, Any] | None:
    source = source_of(case.name)
    x, y, z = (*case.block, 1, 1)[:3]
    try:
        program = compile_program(source.ptx)
        return {"case": case.name, **measure(program, source.entry, (x, y, z), runs)}
    except GpudError as error:
        print(f"{case.name}: {error}", file=sys.stderr)
        return None


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=(), metavar="CASE", help="only these cases")
    parser.add_argument("--no-suite", action="store_true", help="only growth")
    parser.add_argument("--no-growth", action="store_true", help="only the suite")
    parser.add_argument("--no-first", action="store_true", help="without first results")
    parser.add_argument("--runs", type=int, default=1, help="the fastest counts")
    parser.add_argument("--baseline", type=Path, help="an earlier result, to compare with")
    parser.add_argument("--output", type=Path, default=RESULT, help="where results are written")
    options = parser.parse_args()
    old = json.loads(options.baseline.read_text()) if options.baseline else {}
    found: dict[str, Any] = {"machine": describe()}
    if not options.no_growth:
        found["growth"] = _with_before(growth(), old.get("growth", ()), ("family", "k"))
    if not options.no_first:
        found["first_result"] = first_results(FIRST_COUNT)
    if not options.no_suite:
        rows = suite(options.only, options.runs)
        found["suite"] = _with_before(rows, old.get("suite", ()), ("case",))
        _print_suite(rows)
    if not options.only:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _with_before(
    rows: list[dict[str, Any]], old: Sequence[dict[str, Any]], names: Sequence[str]
) -> list[dict[str, Any]]:
    """Add the equally named rows of an earlier result."""
    known = {tuple(row[name] for name in names): row for row in old}
    for row in rows:
        before = known.get(tuple(row[name] for name in names))
        if before is not None:
            row["before"] = {name: before[name] for name in ("ir_lines", "total_s")}
    return rows


def _print_suite(rows: Sequence[dict[str, Any]]) -> None:
    order = sorted(rows, key=lambda row: -row.get("before", row)["total_s"])
    print(f"{'case':<32}{'IR lines':>10}{'generate':>10}{'LLVM':>8}{'total':>8}{'before':>9}")
    for row in order[:SLOWEST]:
        before = row.get("before")
        text = f"{before['total_s']:9.2f}" if before is not None else ""
        print(
            f"{row['case']:<32}{row['ir_lines']:>10}{row['generate_s']:>10.2f}{row['llvm_s']:>8.2f}"
            f"{row['total_s']:>8.2f}{text}"
        )
    print(f"all {len(rows)}: {sum(row['total_s'] for row in rows):.1f} s")


if __name__ == "__main__":
    sys.exit(main())
