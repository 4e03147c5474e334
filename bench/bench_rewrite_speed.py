"""Speed of the compiler's rewriting: milliseconds for 1,000 lines of PTX, by stage.

    python bench/bench_rewrite_speed.py [--repeat N]

Runs are cold and cached. Cold means that the compiler has not seen the program: its tables of
operands and opcodes are emptied before every run, and the disk cache is off; code and regular
expressions are warm, as in a daemon. Programs are rewritten as for a client: with bounds checks,
and with variants of kernels that have kill polls. Lines are those of NVRTC's PTX. Programs: every
kernel of the conformance suite that compiles, in one sum, and generated kernels of 1,000 to 20,000
lines, each separately.

Measured in the same run: NVRTC, the peer (how much rewriting adds to compiling); the floor, one
regular-expression match and one split for each line, which any parser in Python needs; and
rewriting without bounds checks and variants, for which the aim was set. On a shared machine only
the ratios to NVRTC and the floor are meaningful. Prints a table and writes
bench/results/rewrite_speed.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.analysis.effects import FLAGS
from gpud.compiler.cache import Cache
from gpud.compiler.pipeline import Compilation, compile_program, gc_paused
from gpud.compiler.ptx.model import opcode
from gpud.compiler.ptx.operands import shared_table
from gpud.compiler.request import Request
from gpud.compiler.toolchain.nvrtc import DEFAULT_ARCH, compile_cuda, nvrtc_version
from gpud.errors import CompileError, KernelRejected
from tests.conformance.suite import CASES

RESULT = Path(__file__).parent / "results" / "rewrite_speed.json"
STAGES = ("parse", "flatten", "analyse", "rewrite", "print")
AIM_COLD_MS = 10.0
AIM_CACHED_MS = 0.2

T = TypeVar("T")

GENERATED = r"""
// Straight-line arithmetic, loops, shared memory and barriers, as unrolled numeric kernels have.
template <int N> __device__ void mix(float2* v) {
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float2 a = v[i], b = v[(i * 7 + j) % N];
            v[i].x = a.x * b.x - a.y * b.y;
            v[i].y = a.x * b.y + a.y * b.x + 1.5f;
        }
}
extern "C" __global__ void big(float2* x, double* d, int n) {
    __shared__ float2 s[256];
    float2 v[32];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
#pragma unroll
    for (int k = 0; k < 32; k++) v[k] = x[i * 32 + k];
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        mix<32>(v);
        s[threadIdx.x] = v[round % 32];
        __syncthreads();
        if (v[(round + 1) % 32].x > 0.5f) v[round % 32] = s[(threadIdx.x + round) & 255];
        __syncthreads();
        for (int k = 0; k < n; k++) d[i] += sin(d[k]) * v[(round * 5) % 32].y;
    }
#pragma unroll
    for (int k = 0; k < 32; k++) x[i * 32 + k] = v[k];
}
"""


@dataclass
class Row:
    """Times of one program, or summed over several, in seconds."""

    name: str
    programs: int
    lines: int
    nvrtc: float
    floor: float
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    cached: float = 0.0
    bare: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.stages.values())

    def per_thousand(self, seconds: float) -> float:
        """Milliseconds for 1,000 lines."""
        return seconds * 1e6 / self.lines

    def plain(self) -> dict[str, Any]:
        """Return the row as it is kept."""
        stages = {name: round(self.per_thousand(s), 3) for name, s in self.stages.items()}
        return {
            "name": self.name,
            "programs": self.programs,
            "lines": self.lines,
            "cold_ms_per_1000_lines": round(self.per_thousand(self.total), 3),
            "stages_ms_per_1000_lines": stages,
            "bare_ms_per_1000_lines": round(self.per_thousand(self.bare), 3),
            "nvrtc_ms_per_1000_lines": round(self.per_thousand(self.nvrtc), 3),
            "floor_ms_per_1000_lines": round(self.per_thousand(self.floor), 3),
            "times_floor": round(self.total / self.floor, 2),
            "share_of_nvrtc": round(self.total / self.nvrtc, 3) if self.nvrtc else None,
            "cached_ms": round(self.cached / self.programs * 1e3, 3),
        }


def main() -> int:
    """Measure, print and write the results."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    arguments.add_argument("--repeat", type=int, default=5, help="runs; the fastest counts")
    repeat = arguments.parse_args().repeat
    rows = [suite(repeat)]
    rows += [generated(rounds, repeat) for rounds in (1, 5, 20)]
    head = f"{'program':<22}{'lines':>7}" + "".join(f"{stage:>9}" for stage in STAGES)
    print(
        "ms for 1,000 lines of PTX, cold; bare: no bounds checks or variants; "
        "cached: ms for a program"
    )
    print(f"{head}{'total':>9}{'bare':>9}{'floor':>9}{'NVRTC':>9}{'cached':>9}")
    for row in rows:
        stages = "".join(f"{row.per_thousand(row.stages[stage]):9.2f}" for stage in STAGES)
        print(
            f"{row.name:<22}{row.lines:>7}{stages}{row.per_thousand(row.total):9.2f}"
            f"{row.per_thousand(row.bare):9.2f}{row.per_thousand(row.floor):9.2f}"
            f"{row.per_thousand(row.nvrtc):9.2f}{row.cached / row.programs * 1e3:9.3f}"
        )
    print(f"aims: {AIM_COLD_MS:g} ms cold, {AIM_CACHED_MS:g} ms cached for 1,000 lines")
    found = {
        "machine": describe(),
        "nvrtc": ".".join(map(str, nvrtc_version())),
        "repeat": repeat,
        "aims": {"cold_ms_per_1000_lines": AIM_COLD_MS, "cached_ms": AIM_CACHED_MS},
        "rows": [row.plain() for row in rows],
    }
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def suite(repeat: int) -> Row:
    """Return the sum over the conformance suite."""
    row = Row("conformance suite", 0, 0, 0.0, 0.0)
    for case in CASES:
        try:
            one = measure(case.name, case.program, case.options, case.arch, repeat)
        except (CompileError, KernelRejected):
            continue  # cases that must be refused
        row.programs += 1
        row.lines += one.lines
        row.nvrtc += one.nvrtc
        row.floor += one.floor
        row.cached += one.cached
        row.bare += one.bare
        for stage, seconds in one.stages.items():
            row.stages[stage] += seconds
    return row


def generated(rounds: int, repeat: int) -> Row:
    """Return a large kernel of about 1,000 lines a round."""
    options = (f"-DROUNDS={rounds}",)
    return measure(f"generated x{rounds}", GENERATED, options, "compute_75", repeat)


def measure(name: str, source: str, options: tuple[str, ...], arch: str, repeat: int) -> Row:
    """Time every stage for one program: the least of ``repeat`` runs, as the machine is shared.

    Raises:
        CompileError, KernelRejected: it does not compile, or no kernel of it can be rewritten.
    """
    ptx = ".version" in source.split(".target", 1)[0]
    text, nvrtc = source, 0.0
    if not ptx:
        nvrtc, compiled = timed(lambda: compile_cuda(source, arch=arch, options=options))
        text = compiled.ptx
    runs: list[dict[str, float]] = [_stages(text) for _ in range(repeat + 1)][1:]
    stages = {stage: min(run[stage] for run in runs) for stage in STAGES}
    bares = [_stages(text, safe=False) for _ in range(repeat)]
    bare = min(sum(run[stage] for stage in STAGES) for run in bares)
    floor = min(timed(lambda: _floor(text))[0] for _ in range(repeat))
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        compile_program(source, options=options, arch=arch, cache=cache)
        hits = [
            timed(lambda: compile_program(source, options=options, arch=arch, cache=cache))[0]
            for _ in range(4 * repeat)
        ]
    return Row(name, 1, text.count("\n"), nvrtc, floor, stages, min(hits), bare)


def _stages(text: str, *, safe: bool = True) -> dict[str, float]:
    """One cold run of all stages; ``safe``: with bounds checks, and variants with kill polls."""
    _forget()
    run = _Clocked(Request(text, (), DEFAULT_ARCH, (), None, None, bounds_checks=safe, kill=safe))
    with gc_paused():
        run.program()
    run.stage = "over"
    return run.seconds


class _Clocked(Compilation):
    """A compilation that records the duration of each stage."""

    def __init__(self, request: Request) -> None:
        self.seconds: dict[str, float] = {}
        self._stage, self._since = "", 0.0
        super().__init__(request, None, None)

    @property
    def stage(self) -> str:
        return self._stage

    @stage.setter
    def stage(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[self._stage] = now - self._since
        self._stage, self._since = name, now


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """(seconds, result)"""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


_LINE = re.compile(r"[ \t]*+(?:@(\S+)[ \t]++)?([a-z][\w.]*+)[ \t]*([^;\n]*+);")


def _floor(text: str) -> int:
    """Return the least work to read a program line by line."""
    found = 0
    for line in text.split("\n"):
        match = _LINE.match(line)
        if match is not None:
            found += len(match[3].split(", "))
    return found


def _forget() -> None:
    """Empty the compiler's tables of operands and opcodes."""
    shared_table().clear()
    opcode.cache_clear()
    FLAGS.clear()


if __name__ == "__main__":
    raise SystemExit(main())
