"""``make demo``: kernels that keep running, and stay right, while their share of a device changes.

For each example: compile CUDA C++ without a GPU, show what the rewriter decided and changed, run
the result on the CPU device while the number of its persistent blocks is changed at random, and
compare with NumPy. The kernels count the runs of each task block themselves. The exit status is 1
if anything differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from gpud.compiler import ptxas
from gpud.compiler.nvrtc import nvrtc_version
from gpud.compiler.pipeline import KernelInfo, Program, compile_program
from gpud.demo_kernels import Example, examples
from gpud.device.cpu.device import CPUDevice, CPUMemory
from gpud.device.job import Form, Job
from gpud.errors import GpudError

__all__ = ["Sample", "main", "problems"]

_RESIZES = 400
_RESIZES_PER_LINE = 20
_PAUSE_S = 0.002
_TIMEOUT_S = 120.0
_ARCH = "sm_90"
_BAR = 18


@dataclass(frozen=True)
class Sample:
    """A job at one moment; blocks are persistent blocks, ``claimed`` and ``done`` task blocks."""

    seconds: float
    resizes: int
    commanded: int
    live: int
    claimed: int
    done: int
    total: int


def main(arguments: list[str] | None = None) -> int:
    """Runs the demo; 0 if every result is right."""
    parser = argparse.ArgumentParser(prog="python -m gpud.demo", description="What gpud does.")
    parser.add_argument("--small", action="store_true", help="problems of milliseconds")
    parser.add_argument("--seed", type=int, default=1, help="of the random sizes (default 1)")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    rng = random.Random(options.seed)  # noqa: S311  (sizes, not secrets)
    began = time.perf_counter()
    wrong = 0
    with CPUDevice() as device:
        major, minor = nvrtc_version()
        print(f"{device.name}; CUDA C++ compiled by NVRTC {major}.{minor}; no GPU is used")
        for example in examples(small=options.small):
            print(f"\n== {example.name}: {example.what}")
            try:
                found = _show(device, example, rng, console, options.small)
            except (GpudError, TimeoutError) as error:
                found = [f"{type(error).__name__}: {error}"]
            for problem in found:
                print(f"   WRONG: {problem}")
            wrong += bool(found)
    seconds = time.perf_counter() - began
    verdict = "every result is right" if not wrong else f"{wrong} of the kernels went wrong"
    print(f"\n{verdict}; {seconds:.1f} s")
    return 1 if wrong else 0


def problems(
    example: Example,
    result: npt.NDArray[np.generic],
    runs: npt.NDArray[np.uint32],
    progress: tuple[int, int, int],
) -> list[str]:
    """What is wrong with a finished job, nothing if all is well.

    Args:
        example: what ran.
        result: its output array as the device left it.
        runs: how often each task block ran, as the kernel counted.
        progress: (claimed, done, total) task blocks at the end.
    """
    found = []
    missed, twice = int((runs == 0).sum()), int((runs > 1).sum())
    if missed or twice:
        found.append(f"{missed} task blocks never ran, {twice} ran more than once")
    if progress != (example.total,) * 3:
        found.append(f"progress ended at {progress}, not at {example.total} task blocks")
    differs = np.asarray(result != example.expected)
    if example.tolerance:
        differs = ~np.isclose(result, example.expected, rtol=example.tolerance, atol=1e-6)
    if differs.any():
        found.append(f"{int(differs.sum())} of {differs.size} results differ from NumPy's")
    return found


# -- one example ---------------------------------------------------------------------------------


def _show(
    device: CPUDevice, example: Example, rng: random.Random, console: Console, small: bool
) -> list[str]:
    began = time.perf_counter()
    program = compile_program(example.source)
    compiled = time.perf_counter()
    info = program.kernel(example.name)
    kernel = device.load(program.ptx).kernel(info.entry)
    kernel.compiled(example.block)
    native = time.perf_counter()
    print(f"   form      {info.form}" + (", exit-aware barriers" if info.exit_aware else ""))
    for reason in info.why:
        print(f"   why       {reason}")
    print(f"   PTX       {_change(program, info)}")
    print(
        f"   compiled  {1e3 * (compiled - began):.0f} ms to rewritten PTX, "
        f"{1e3 * (native - compiled):.0f} ms to machine code"
    )
    memory, values = _upload(device, example)
    job = Job(device, kernel, cast(Form, info.form.value), example.grid, example.block, values)
    most = device.occupancy(kernel, example.block) * device.sms
    resizes = _run(job, most, rng, console, 0.001 if small else _PAUSE_S)
    output = memory[example.output].view.view(example.expected.dtype)
    runs = memory[len(example.arguments) - 1].view.view(np.uint32)
    found = problems(example, output.reshape(example.expected.shape), runs, job.progress)
    if not found:
        same = "equal to" if not example.tolerance else f"within {example.tolerance:g} of"
        print(
            f"   result    {same} NumPy's; each of {example.total} task blocks ran once; "
            f"resized {resizes} times"
        )
    return found


def _change(program: Program, info: KernelInfo) -> str:
    """Instructions before and after rewriting; registers where ptxas is there to count them."""
    counts = [_instructions(text) for text in (program.original_ptx, program.ptx)]
    text = f"{counts[0]} -> {counts[1]} instructions"
    if ptxas.find_ptxas() is None:
        return f"{text} (with ptxas on PATH, registers are shown too)"
    before, after = (
        ptxas.assemble(ptx, _ARCH)[info.entry] for ptx in (program.original_ptx, program.ptx)
    )
    return f"{text}, {before.registers} -> {after.registers} registers on {_ARCH} (ptxas)"


def _instructions(ptx: str) -> int:
    lines = (line.strip() for line in ptx.splitlines())
    return sum(line.endswith(";") and not line.startswith((".", "//")) for line in lines)


def _upload(device: CPUDevice, example: Example) -> tuple[dict[int, CPUMemory], list[bytes]]:
    """Device memory by position of the argument, and the parameters' bytes."""
    memory: dict[int, CPUMemory] = {}
    values = []
    for position, argument in enumerate(example.arguments):
        if isinstance(argument, np.ndarray):
            memory[position] = device.allocate(argument.nbytes)
            memory[position].view[:] = argument.reshape(-1).view(np.uint8)
            values.append(memory[position].address.to_bytes(8, "little"))
        else:
            values.append(argument.tobytes())
    return memory, values


# -- resizing, and the picture of it -------------------------------------------------------------


def _run(job: Job, most: int, rng: random.Random, console: Console, pause_s: float) -> int:
    """Resizes at random until the job is done or has been resized often enough, then ends it.

    Returns:
        How often it was resized.
    """
    began = time.perf_counter()
    resizes = 0

    def sample() -> Sample:
        claimed, done, total = job.progress
        seconds = time.perf_counter() - began
        return Sample(seconds, resizes, job.blocks, job.live, claimed, done, total)

    with _Timeline(console, most).open() as timeline:
        while not job.done and resizes < _RESIZES:
            job.resize(rng.randrange(most + 1))
            resizes += 1
            job.wait(pause_s)
            timeline.add(sample(), keep=resizes % _RESIZES_PER_LINE == 1 and not job.done)
        if not job.done:
            job.resize(most)
        job.result(_TIMEOUT_S)
        timeline.add(sample(), keep=True)
    return resizes


class _Timeline:
    """Kept samples as lines; on a terminal, the latest sample as a moving line below them."""

    def __init__(self, console: Console, most: int) -> None:
        self._console = console
        self._most = most
        self._lines: list[Text] = []
        self._live: Live | None = None

    @contextmanager
    def open(self) -> Iterator[_Timeline]:
        """Show samples while the context lasts."""
        head = f"   {'s':>6} {'told':>5} {'live':>5}  {'persistent blocks':<{_BAR + 2}}"
        legend = "#: persistent block, -: told to leave, .: to come; live: launched and not left"
        self._lines.append(Text(f"   {legend} (it may wait for room)"))
        self._lines.append(Text(f"{head}  task blocks done"))
        if not self._console.is_terminal:
            self._console.print(*self._lines, sep="\n", soft_wrap=True)
            yield self
            return
        with Live(console=self._console, auto_refresh=False) as self._live:
            yield self

    def add(self, sample: Sample, *, keep: bool) -> None:
        """Show a sample; one that is kept stays."""
        line = self._line(sample)
        if keep:
            self._lines.append(line)
        if self._live is not None:
            shown = self._lines if keep else [*self._lines, line]
            self._live.update(Group(*shown), refresh=True)
        elif keep:
            self._console.print(line, soft_wrap=True)

    def _line(self, sample: Sample) -> Text:
        """``#`` is a live block, ``-`` one that is told to leave, ``.`` one that is to come.

        Blocks that were launched and wait for room are live too, so live may exceed what fits.
        """
        live, told = (
            min(_BAR, round(_BAR * n / self._most)) for n in (sample.live, sample.commanded)
        )
        told = 0 if sample.done == sample.total else told
        both = min(live, told)
        done = sample.done / sample.total
        text = Text(f"   {sample.seconds:6.3f} {sample.commanded:5} {sample.live:5}  [")
        text.append("#" * both, "green").append("-" * (live - both), "red")
        text.append("." * (told - both), "yellow").append(" " * (_BAR - max(live, told)) + "]  [")
        text.append("#" * int(_BAR * done), "cyan").append(" " * (_BAR - int(_BAR * done)))
        return text.append(f"] {sample.done:>6} of {sample.total}")


if __name__ == "__main__":
    sys.exit(main())
