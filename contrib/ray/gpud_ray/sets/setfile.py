"""Task sets as TOML files: what runs, with which arguments, and what it needs.

    [set]                        # optional
    parallel = 2                 # tasks of a GPU at once
    mode = "split"               # each has its part of the device; or "in turn"

    [[task]]
    kernel = "matrix_product"    # one of ours: also stencil, graph_search, detector
    size = 512
    repeat = 10                  # so many tasks, each with a seed of its own

    [[task]]
    kernel = "saxpy"             # of a file with CUDA C++ or PTX
    source = "saxpy.cu"
    grid = 64
    block = 256
    arguments = [2.0, "arange:f32:16384", "zeros:f32:16384", "i32:16384"]  # as for gpuctl run
    memory = "1 MiB"

    [[task]]
    executable = "./render"
    arguments = ["--frame", "7"]
    memory = "700 MiB"
    capsm = 0.5                  # SMs that it can use; also duration, arrival, timeout in seconds

An error names the file, the line, the task and the field.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

from gpud.errors import InvalidArgument
from gpud.units import byte_size, share
from gpud_ray.sets.kernels import KERNELS
from gpud_ray.sets.model import MAX_MEMORY_MB, MAX_THREADS, Task

__all__ = ["MODES", "Program", "SetTask", "TaskSet", "read", "write"]

Mode = Literal["split", "in turn"]
MODES: Final = ("split", "in turn")
_MOST_BYTES = 64 << 20
_MOST_TASKS = 100_000
_COMMON = {
    "memory", "threads", "capsm", "duration", "arrival", "timeout", "repeat", "name", "arguments",
}  # fmt: skip
_FIELDS = {
    "own": {"kernel", "size", "seed"},
    "source": {"kernel", "source", "grid", "block"},
    "executable": {"executable"},
}


@dataclass(frozen=True, slots=True)
class Program:
    """What a task runs.

    Attributes:
        kind: ``own`` (a kernel of ours), ``source`` (a kernel of a file), or ``executable``.
        name: of the kernel, or the executable's path.
        arguments: texts; of a kernel as for ``gpuctl run --arg``.
        source: the kernel's source.
        grid: task blocks; up to three extents.
        block: threads; up to three extents.
        size: of a kernel of ours.
        seed: of its input.
        timeout_s: after which it fails; None: never.
    """

    kind: str
    name: str
    arguments: tuple[str, ...] = ()
    source: str = ""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    size: int = 0
    seed: int = 0
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class SetTask:
    """A task: its needs, and what it runs."""

    needs: Task
    program: Program
    name: str


@dataclass(frozen=True, slots=True)
class TaskSet:
    """What a file holds."""

    tasks: list[SetTask] = field(default_factory=list)
    parallel: int = 2
    mode: Mode = "split"


def read(path: Path, *, limits: bool = True) -> TaskSet:
    """Read a task set.

    Args:
        path: the file.
        limits: whether tasks have fewer than 1,024 threads, and 2,048 MiB at most.

    Raises:
        InvalidArgument: it is not valid; the message names line and field.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InvalidArgument(f"{path} is no task set: it is over {_MOST_BYTES >> 20} MiB")
    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path} is no valid TOML: {error}") from None
    return _Reader(path, text, limits).read(table)


class _Reader:
    def __init__(self, path: Path, text: str, limits: bool) -> None:
        self._path, self._limits = path, limits
        self._lines = dict(_lines(text))
        self._sources: dict[Path, str] = {}
        self._at: tuple[str, int] = ("", 0)

    def read(self, table: dict[str, Any]) -> TaskSet:
        self._known(table, {"set", "task"})
        general = table.get("set", {})
        if not isinstance(general, dict):
            self._refuse("set", "a table: [set]", general)
        self._at = ("set", 0)
        self._known(general, {"parallel", "mode"})
        parallel = self._whole(general, "parallel", 2, most=1024)
        mode = general.get("mode", "split")
        if mode not in MODES:
            self._refuse("mode", "split or in turn", mode)
        rows = table.get("task")
        self._at = ("", 0)
        if not isinstance(rows, list) or not rows or not all(isinstance(r, dict) for r in rows):
            self._refuse("task", "one or more tables [[task]]", rows)
        tasks: list[SetTask] = []
        for index, row in enumerate(rows):
            self._at = ("task", index)
            for repetition in range(self._whole(row, "repeat", 1, most=_MOST_TASKS)):
                if len(tasks) == _MOST_TASKS:
                    self._refuse("repeat", f"such that there are {_MOST_TASKS} tasks", "more")
                tasks.append(self._task(row, len(tasks), repetition))
        return TaskSet(tasks, parallel, mode)

    def _task(self, row: dict[str, Any], number: int, repetition: int) -> SetTask:
        kind = "executable" if "executable" in row else "source" if "source" in row else "own"
        self._known(row, _COMMON | _FIELDS[kind], all_known=_COMMON.union(*_FIELDS.values()))
        program = getattr(self, f"_{kind}")(row, repetition)
        threads = self._threads(row, program)
        memory = self._memory(row, program)
        capsm = row.get("capsm")
        milli = None
        if capsm is not None:
            try:
                milli = math.ceil(1000 * share(capsm, capacity=Fraction(1)))
            except (TypeError, ValueError) as error:
                self._refuse("capsm", f"a number of SMs ({error})", capsm)
            if isinstance(capsm, str) and capsm.rstrip().endswith("%"):
                self._refuse("capsm", "a number of SMs, as GPUs differ", capsm)
        needs = Task(
            number, memory, threads, milli,
            self._seconds(row, "duration", None), self._seconds(row, "arrival", 0.0) or 0.0,
        )  # fmt: skip
        name = self._text(row, "name", f"{Path(program.name).name} {number}")
        return SetTask(needs, program, name)

    def _own(self, row: dict[str, Any], repetition: int) -> Program:
        name = row.get("kernel")
        if not isinstance(name, str) or name not in KERNELS:
            self._refuse("kernel", f"one of {', '.join(KERNELS)}, or have a source", name)
        kernel = KERNELS[name]
        if "arguments" in row:
            self._refuse("arguments", "left out: our kernels have a size", row["arguments"])
        size = self._whole(row, "size", None, most=1 << 20)
        if size % kernel.multiple:
            self._refuse("size", f"a multiple of {kernel.multiple}", size)
        seed = self._whole(row, "seed", 0, least=0, most=1 << 31) + repetition
        timeout_s = self._seconds(row, "timeout", None)
        return Program("own", name, size=size, seed=seed, timeout_s=timeout_s)

    def _source(self, row: dict[str, Any], repetition: int) -> Program:
        name = self._text(row, "kernel", None)
        path = self._path.parent / self._text(row, "source", None)
        if path not in self._sources:
            try:
                self._sources[path] = path.read_text()
            except (OSError, UnicodeDecodeError) as error:
                said = getattr(error, "strerror", None) or error
                self._refuse("source", f"a file that can be read ({path}: {said})", row["source"])
        return Program(
            "source", name, self._arguments(row, kernel=True), self._sources[path],
            self._extents(row, "grid"), self._extents(row, "block"),
            timeout_s=self._seconds(row, "timeout", None),
        )  # fmt: skip

    def _executable(self, row: dict[str, Any], repetition: int) -> Program:
        name = self._text(row, "executable", None)
        if "memory" not in row:
            self._refuse("memory", "given: an executable does not say what it needs", None)
        timeout_s = self._seconds(row, "timeout", None)
        return Program("executable", name, self._arguments(row), timeout_s=timeout_s)

    # -- fields

    def _arguments(self, row: dict[str, Any], *, kernel: bool = False) -> tuple[str, ...]:
        given = row.get("arguments", [])
        if not isinstance(given, list) or not all(
            type(a) in (str, int, float, bool) for a in given
        ):
            self._refuse("arguments", "a list of texts and numbers", given)
        words = {True: "true", False: "false"}
        texts = tuple(words[a] if isinstance(a, bool) else str(a) for a in given)
        if kernel:
            import typer

            from gpud_client.cli.kernel_arguments import parse_argument

            for text in texts:
                try:
                    parse_argument(text)
                except typer.BadParameter as error:
                    said = error.message.removeprefix("--arg ")
                    self._refuse("arguments", f"as for gpuctl run ({said})", text)
        return texts

    def _extents(self, row: dict[str, Any], name: str) -> tuple[int, ...]:
        given = row.get(name)
        extents = given if isinstance(given, list) else [given]
        if not 1 <= len(extents) <= 3 or not all(type(e) is int and e > 0 for e in extents):
            self._refuse(name, "a number from 1 on, or a list of up to three", given)
        return tuple(extents)

    def _threads(self, row: dict[str, Any], program: Program) -> int:
        default = math.prod(program.block) if program.block else 256
        most = MAX_THREADS if self._limits else 1 << 31
        threads = self._whole(row, "threads", default, most=1 << 31)
        if threads > most:
            name = "threads" if "threads" in row or not program.block else "block"
            self._refuse(name, f"fewer than {most + 1} threads", threads)
        return threads

    def _memory(self, row: dict[str, Any], program: Program) -> int:
        given = row.get("memory")
        if given is None:
            size = KERNELS[program.name].memory_bytes(program.size) if program.kind == "own" else 0
            if program.kind == "source":
                size = _argument_bytes(program.arguments)
        else:
            try:
                size = byte_size(given)
            except (TypeError, ValueError) as error:
                self._refuse("memory", f"an amount of memory ({error})", given)
        memory_mb = -(-size >> 20)
        if self._limits and memory_mb > MAX_MEMORY_MB:
            name = "memory" if given is not None or program.kind != "own" else "size"
            self._refuse(name, f"such that the task needs {MAX_MEMORY_MB} MiB at most", size)
        return memory_mb

    def _whole(
        self, row: dict[str, Any], name: str, default: int | None, *, least: int = 1, most: int
    ) -> int:
        value = row.get(name, default)
        if type(value) is not int or not least <= value <= most:
            self._refuse(name, f"a whole number from {least} to {most}", value)
        return value

    def _seconds(self, row: dict[str, Any], name: str, default: float | None) -> float | None:
        value = row.get(name, default)
        if value is None:
            return None
        if type(value) not in (int, float) or not (0 <= value < 1e9):
            self._refuse(name, "a number of seconds", value)
        return float(value)

    def _text(self, row: dict[str, Any], name: str, default: str | None) -> str:
        value = row.get(name, default)
        if not isinstance(value, str) or not value or "\0" in value:
            self._refuse(name, "a text", value)
        return value

    def _known(
        self, table: dict[str, Any], known: set[str], all_known: set[str] | None = None
    ) -> None:
        for name, value in table.items():
            if name in known:
                continue
            if all_known is not None and name in all_known:
                self._refuse(name, "left out for a task of this kind", value)
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
            raise InvalidArgument(f"{self._place(name)}{name} is unknown; {hint}")

    # -- errors

    def _place(self, name: str) -> str:
        table, index = self._at
        line = self._lines.get((table, index, name)) or self._lines.get((table, index, ""))
        where = f"{self._path}:{line}: " if line else f"{self._path}: "
        return where + (f"task {index + 1}: " if table == "task" else "")

    def _refuse(self, name: str, wanted: str, given: Any) -> NoReturn:
        place = self._place(name)
        if given is None and "given:" not in wanted:
            raise InvalidArgument(f"{place}{name} is missing; it must be {wanted}")
        shown = repr(given)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise InvalidArgument(f"{place}{name} must be {wanted}; not {shown}")


def _argument_bytes(arguments: tuple[str, ...]) -> int:
    """Sum up what arrays of arguments such as ``zeros:f32:64x64`` take."""
    import numpy as np

    from gpud_client.cli.kernel_arguments import ArraySpec, parse_argument

    total = 0
    for text in arguments:
        argument = parse_argument(text)
        if isinstance(argument, ArraySpec):
            if argument.path is not None:
                total += argument.path.stat().st_size if argument.path.exists() else 0
            else:
                total += math.prod(argument.shape) * np.dtype(argument.dtype).itemsize
    return total


_HEADER = re.compile(r"\s*(\[\[?)\s*[\"']?([\w-]+)[\"']?\s*\]")
_KEY = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]")


def _lines(text: str) -> Iterator[tuple[tuple[str, int, str], int]]:
    """Yield (table, its number, key) with its line; the header's key is empty.

    Lines within texts of several lines are left out. What is written in an unusual way is missing;
    then the message names its table's line.
    """
    table, counts, open_ = "", dict[str, int](), ""
    for number, line in enumerate(text.splitlines(), 1):
        if open_:
            open_ = "" if open_ in line else open_
            continue
        if header := _HEADER.match(line):
            table = header[2]
            counts[table] = counts.get(table, -1) + 1
            yield (table, counts[table], ""), number
            if not counts[table]:
                yield ("", 0, table), number
        elif key := _KEY.match(line):
            yield (table, counts.get(table, 0), key[1]), number
        for quotes in ('"""', "'''"):
            if line.count(quotes) % 2:
                open_ = quotes


def write(path: Path, task_set: TaskSet) -> None:
    """Write a set of kernels of ours, as `read` reads it.

    Raises:
        ValueError: a task is not of ours.
    """
    lines = ["[set]", f"parallel = {task_set.parallel}", f'mode = "{task_set.mode}"']
    for one in task_set.tasks:
        if one.program.kind != "own":
            raise ValueError(f"task {one.needs.id} is not one of our kernels")
        needs = one.needs
        lines += ["", "[[task]]", f'kernel = "{one.program.name}"', f"size = {one.program.size}"]
        lines += [f"seed = {one.program.seed}", f"threads = {needs.threads}"]
        lines.append(f'memory = "{needs.memory_mb} MiB"')
        if needs.capsm_milli is not None:
            lines.append(f"capsm = {needs.capsm_milli / 1000}")
        if needs.duration_s is not None:
            lines.append(f"duration = {needs.duration_s}")
        if needs.arrival_s:
            lines.append(f"arrival = {needs.arrival_s}")
    path.write_text("\n".join(lines) + "\n")
