"""Run conformance cases on a device: compile, copy in, launch in one form, copy out.

The comparison is `tests.conformance.suite.comparison`; nothing here knows a case by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpud.compiler.abi.control_words import ONE_AT_A_TIME, Claims
from gpud.compiler.kernel_names import plain_names
from gpud.compiler.pipeline import Program, compile_program
from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.cuda_headers import cuda_include_paths
from gpud.compiler.toolchain.nvrtc import compile_cuda, nvrtc_version
from gpud.device import jit
from gpud.device.interface import Device, LaunchSpec
from tests.conformance.suite import find
from tests.conformance.suite.case import (
    RUNS_SYMBOL,
    AddressOf,
    Case,
    Expected,
    Form,
    Hidden,
    Struct,
)
from tests.conformance.suite.comparison import Results, mismatches
from tests.support.resizable_run import ResizableRun

Conduct = Callable[[ResizableRun], None]
"""Sees a job from its first block to its end: resizes it as it likes, returns when it is done."""

DEFAULT_TIMEOUT_S = 60.0


def straight(blocks: int = 3) -> Conduct:
    """Gives a job ``blocks`` persistent blocks and waits for the end."""

    def conduct(job: ResizableRun) -> None:
        job.resize(blocks)
        job.result(DEFAULT_TIMEOUT_S)

    return conduct


@contextmanager
def unoptimised() -> Iterator[None]:
    """Within this context the CPU device compiles in a tenth of the time, and code is slower."""
    with pytest.MonkeyPatch.context() as change:
        change.setattr(jit, "object_code", functools.partial(jit.object_code, optimise=False))
        yield


@functools.cache
def headers_installed() -> bool:
    """Whether CUDA's own headers are there for cases that include them."""
    return bool(cuda_include_paths(nvrtc_version()[0]))


class Source(NamedTuple):
    """A case as PTX, before rewriting, and the name of its kernel there."""

    ptx: str
    entry: str


@functools.cache
def source_of(name: str) -> Source:
    """The PTX of the case of that name; NVRTC runs once for each."""
    case = find(name)
    if case.is_ptx:
        return Source(case.source, case.entry)
    expressions = (case.entry,) if any(mark in case.entry for mark in "<:") else ()
    compiled = compile_cuda(
        case.program, arch=case.arch, options=case.options, name_expressions=expressions
    )
    if f".entry {case.entry}(" in compiled.ptx:
        return Source(compiled.ptx, case.entry)
    names = plain_names(parse(compiled.ptx).entries()) | compiled.lowered_names
    return Source(compiled.ptx, names[case.entry])


@functools.cache
def rewritten(name: str, form: Form | None = None) -> Program:
    """The case's program with its kernels in ``form``, or as gpud chooses.

    Raises:
        KernelRejected: gpud cannot run it.
    """
    return compile_program(source_of(name).ptx, form=form, progress=find(name).progress)


class LoadedCase:
    """A case in one form, compiled and loaded once, to be run any number of times.

    Args:
        device: where.
        case: what.
        form: how; one of ``case.forms``.
        ptx: run this program instead of what the rewriter makes.
        claims: how blocks in persistent form claim task blocks.

    Raises:
        KernelRejected: gpud cannot bring the case into ``form``.
    """

    def __init__(
        self,
        device: Device,
        case: Case,
        form: Form,
        ptx: str | None = None,
        claims: Claims = ONE_AT_A_TIME,
    ) -> None:
        source = source_of(case.name)
        program = rewritten(case.name, None if form == "unmodified" else form)
        if ptx is None:
            ptx = source.ptx if form == "unmodified" else program.ptx
        self.device = device
        self.case = case
        self.form: Form = form
        self.claims = claims
        self.module = device.load(ptx)
        self.kernel = self.module.kernel(source.entry)
        # Asking for the occupancy makes a device compile now, not in the first launch.
        x, y, z = (*case.block, 1, 1)[:3]
        device.occupancy(self.kernel, (x, y, z), case.shared)
        # Module variables as they were loaded, so that every run starts from the same state.
        self._fresh = {name: self.module.symbol(name).tobytes() for name in program.symbols}

    def start(self, seed: int = 0) -> Run:
        """A run that has its arguments in place and nothing launched."""
        for name, raw in self._fresh.items():
            self.module.symbol(name)[:] = np.frombuffer(raw, np.uint8)
        for name, value in self.case.symbols.items():
            raw_value = np.ascontiguousarray(value).view(np.uint8).ravel()
            self.module.symbol(name)[: raw_value.size] = raw_value
        return Run(self, seed)


class Run:
    """One run of a loaded case: its memory, and its launches one after another."""

    def __init__(self, loaded: LoadedCase, seed: int) -> None:
        case, device = loaded.case, loaded.device
        self.loaded = loaded
        self.arguments, self.expected = _reference(case.name, seed)
        self._memories = _copy_in(device, self.arguments)
        self.values = _values(self.arguments, self._memories)
        """The arguments, as the bytes of each parameter."""
        if case.counts == "argument":
            counters = device.allocate(4 * case.blocks)
            self.values.append(counters.address.to_bytes(8, "little"))
            self._runs = counters.view
            self._keep = counters
        else:
            self._runs = loaded.module.symbol(RUNS_SYMBOL)
        self._launches = 0
        self._output = b""

    @property
    def counters(self) -> np.ndarray[Any, Any]:
        """How often each task block has run so far, in all launches; live while a job runs."""
        counters: np.ndarray[Any, Any] = self._runs[: 4 * self.loaded.case.blocks].view(np.uint32)
        return counters

    @property
    def launches_left(self) -> int:
        """How many jobs are still to be made by `launch`."""
        return self.loaded.case.launches - self._launches

    def launch(self) -> ResizableRun:
        """The next job, with no blocks yet."""
        case = self.loaded.case
        self._launches += 1
        launch = LaunchSpec.of(
            self.loaded.kernel,
            self.loaded.form,
            case.grid,
            case.block,
            self.values,
            shared=case.shared,
        )
        return ResizableRun(self.loaded.device, [launch._replace(claims=self.loaded.claims)])

    def ended(self, job: ResizableRun) -> None:
        """Take over what a job printed."""
        self._output += job.output

    def results(self) -> Results:
        """The results of the run."""
        buffers = {}
        for index, memory in self._memories.items():
            argument = self.arguments[index]
            array = _array(argument)
            assert array is not None
            if isinstance(argument, Hidden) and argument.pointers:
                continue  # holds device addresses
            raw = memory.view[: array.nbytes].tobytes()
            buffers[index] = np.frombuffer(raw, array.dtype).reshape(array.shape)
        names = [key for key in self.expected if isinstance(key, str)]
        symbols = {name: self.loaded.module.symbol(name).tobytes() for name in names}
        output = self._output.decode(errors="replace")
        return Results(buffers, self.counters.copy(), symbols, output)


def run_case(
    device: Device,
    case: Case,
    form: Form,
    seed: int = 0,
    conduct: Conduct | None = None,
    claims: Claims = ONE_AT_A_TIME,
) -> Run:
    """Run ``case`` in ``form`` on ``device`` to the end.

    Args:
        device: where.
        case: what.
        form: how; one of ``case.forms``.
        seed: for the arguments.
        conduct: resizes the job while it runs; `straight` by default. A case with several
            launches is conducted through each.
        claims: how blocks in persistent form claim task blocks.

    Raises:
        TimeoutError: a launch did not end in time.
        GpudError: as the job raised it.
    """
    run = LoadedCase(device, case, form, claims=claims).start(seed)
    while run.launches_left:
        job = run.launch()
        (conduct or straight())(job)
        run.ended(job)
    return run


def problems_of(run: Run) -> list[str]:
    """Sentences about what a run, now over, left behind that it should not have."""
    return mismatches(run.loaded.case, run.arguments, run.results(), run.expected)


# -- helpers -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def _reference(name: str, seed: int) -> tuple[list[Any], Mapping[int | str, Expected]]:
    """Arguments and expected results; exact references take up to a fifth of a second."""
    case = find(name)
    arguments = case.arguments(seed)
    return arguments, case.expect(list(arguments))


def _array(argument: Any) -> np.ndarray[Any, Any] | None:
    if isinstance(argument, Hidden):
        return argument.array
    return argument if isinstance(argument, np.ndarray) else None


def _copy_in(device: Device, arguments: Sequence[Any]) -> dict[int, Any]:
    memories = {}
    for index, argument in enumerate(arguments):
        array = _array(argument)
        if array is not None:
            memories[index] = device.allocate(max(array.nbytes, 1))
            memories[index].view[: array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    for index, argument in enumerate(arguments):
        if isinstance(argument, Hidden):
            for offset, target in argument.pointers.items():
                raw = _address(target, memories)
                memories[index].view[offset : offset + 8] = np.frombuffer(raw, np.uint8)
    return memories


def _address(target: AddressOf, memories: dict[int, Any]) -> bytes:
    return int(memories[target.index].address + target.offset).to_bytes(8, "little")


def _values(arguments: Sequence[Any], memories: dict[int, Any]) -> list[bytes]:
    """The arguments that are passed, as the bytes of the parameter buffer."""
    values = []
    for index, argument in enumerate(arguments):
        if isinstance(argument, Hidden):
            continue
        if argument is None:
            values.append(bytes(8))
        elif isinstance(argument, AddressOf):
            values.append(_address(argument, memories))
        elif isinstance(argument, Struct):
            data = bytearray(argument.data)
            for offset, target in argument.pointers.items():
                data[offset : offset + 8] = _address(target, memories)
            values.append(bytes(data))
        elif isinstance(argument, np.ndarray):
            values.append(int(memories[index].address).to_bytes(8, "little"))
        elif isinstance(argument, bytes):
            values.append(argument)
        else:
            values.append(argument.tobytes())
    return values
