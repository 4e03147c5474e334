"""Where LLVM's time goes for the kernels that compile slowest, and what other ways to use it give.

    python bench/bench_compile_steps.py [--only CASE ...] [--runs N] [--output FILE]

Problem: nine tenths of the time to a kernel's first result are LLVM's. Before anything is changed
for it, one has to know which step takes it, for which code, and what each remedy gives.

Measured for each kernel, in processor time, the least of some runs, all ways in turns:

* the steps as the daemon runs them: parsing IR, verifying it, passes, machine code;
* the sum of the steps in other ways, each different in one thing. Two of them leave out code, to
  see what it costs: the functions of diverged threads, or the one of threads in lockstep.

Prints tables and writes bench/results/compile_steps.json.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import llvmlite.binding as llvm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.abi.linked_memory import LinkedMemory
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from tests.conformance.runner import source_of
from tests.conformance.suite import find

RESULT = Path(__file__).parent / "results" / "compile_steps.json"
KERNELS = ("permute", "video_bytes", "reductions_parted", "grid_scan")
STEPS = ("parse", "verify", "passes", "emit")
_DIVERGED = r"(define internal void @region\.\d+\([^\n]*\)) nounwind \{"
_LOCKSTEP = r"(define i32 @run_lockstep\([^\n]*\)) nounwind \{\n.*?\n\}"


class Way(NamedTuple):
    """A way to compile: how the IR differs, and LLVM's options."""

    change: Callable[[str], str] = str
    level: int = 2
    machine_level: int = 2
    unroll: bool | None = None
    verify: bool = True


def _with(attribute: str) -> Callable[[str], str]:
    return lambda ir: re.sub(_DIVERGED, rf"\1 nounwind {attribute} {{", ir)


def _without_diverged(ir: str) -> str:
    empty = r"\1 nounwind {\nret void\n}"
    return re.sub(_DIVERGED + r"\n.*?\n\}", empty, ir, flags=re.DOTALL)


def _without_lockstep(ir: str) -> str:
    return re.sub(_LOCKSTEP, r"\1 nounwind {\nret i32 0\n}", ir, flags=re.DOTALL)


WAYS = {
    "as the daemon does": Way(),
    "without verifying": Way(verify=False),
    "passes at level 1": Way(level=1),
    "machine code at level 1": Way(machine_level=1),
    "machine code at level 0": Way(machine_level=0),
    "no unrolling": Way(unroll=False),
    "code of diverged threads: optsize": Way(_with("optsize")),
    "code of diverged threads: minsize": Way(_with("minsize")),
    "code of diverged threads: cold": Way(_with("cold")),
    "no code of diverged threads": Way(_without_diverged),
    "no code of threads in lockstep": Way(_without_lockstep),
}


def ir_of(name: str) -> str:
    """Return the IR of a kernel of the conformance suite, as a daemon has it generated."""
    case, source = find(name), source_of(name)
    x, y, z = (*case.block, 1, 1)[:3]
    program = compile_program(source.ptx, progress=case.progress)
    entry = program.kernels[source.entry].entry_for((x, y, z), killable=True)
    module = flatten_module(parse(program.ptx))
    arenas = LinkedMemory(4096, 1 << 28), LinkedMemory(4096, 1 << 23)
    return generate_kernel(module, entry, Shape(x, y, z), layout_module(module), *arenas).ir


def steps(ir: str, way: Way) -> dict[str, float]:
    """Return the processor time of each step, in seconds; as `gpud.device.jit.object_code`."""
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=way.machine_level,
        jit=True,
    )
    text = way.change(ir)
    context = llvm.create_context()
    times = [time.process_time()]
    module = llvm.parse_assembly(text, context=context)
    module.triple = llvm.get_default_triple()
    module.data_layout = str(machine.target_data)
    times.append(time.process_time())
    if way.verify:
        module.verify()
    times.append(time.process_time())
    tuning = llvm.create_pipeline_tuning_options(speed_level=way.level)
    tuning.loop_vectorization = True
    tuning.slp_vectorization = False
    if way.unroll is not None:
        tuning.loop_unrolling = way.unroll
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    times.append(time.process_time())
    machine.emit_object(module)
    times.append(time.process_time())
    module.close()
    context.close()
    return {step: after - before for step, before, after in zip(STEPS, times, times[1:])}  # noqa: B905


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="*", default=KERNELS, metavar="CASE")
    parser.add_argument("--runs", type=int, default=3, help="the least counts")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    rows: list[dict[str, Any]] = []
    for name in options.only:
        ir = ir_of(name)
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.runs):
            for label, way in WAYS.items():
                found = steps(ir, way)
                if label not in best or sum(found.values()) < sum(best[label].values()):
                    best[label] = found
        first = best["as the daemon does"]
        whole = sum(first.values())
        rows.append(
            {
                "case": name,
                "ir_lines": ir.count("\n"),
                "seconds": {step: round(value, 4) for step, value in first.items()},
                "ways": {way: round(sum(one.values()) / whole, 3) for way, one in best.items()},
            }
        )
        parts = ", ".join(f"{step} {value / whole:.0%}" for step, value in first.items())
        print(f"{name:<24}{whole:6.2f} s: {parts}", flush=True)
    print(f"\n{'way':<40}{'time, by the first (median)':>28}")
    for label in WAYS:
        print(f"{label:<40}{median(row['ways'][label] for row in rows):>28.2f}")
    options.output.write_text(json.dumps({"machine": describe(), "kernels": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
