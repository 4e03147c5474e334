"""Run conformance cases on a device: compile, copy in, launch in one form, copy out.

The comparison is `tests.conformance.suite.checking`; nothing here knows a case by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gpud.compiler.cuda_headers import cuda_include_paths
from gpud.compiler.nvrtc import compile_cuda, nvrtc_version
from gpud.compiler.pipeline import Program, compile_program
from gpud.device.interface import Device
from gpud.device.job import Job
from tests.conformance.suite import find
from tests.conformance.suite.case import RUNS_SYMBOL, AddressOf, Case, Form, Hidden, Struct
from tests.conformance.suite.checking import Results

__all__ = [
    "Conduct",
    "Source",
    "headers_installed",
    "rewritten",
    "run_case",
    "source_of",
    "straight",
]

Conduct = Callable[[Job], None]
"""Sees a job from its first block to its end: resizes it as it likes and returns when it is done."""

DEFAULT_TIMEOUT_S = 60.0


def straight(blocks: int = 3) -> Conduct:
    """Gives a job ``blocks`` persistent blocks and waits for the end."""

    def conduct(job: Job) -> None:
        job.resize(blocks)
        job.result(DEFAULT_TIMEOUT_S)

    return conduct


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
    return Source(compiled.ptx, compiled.lowered_names.get(case.entry, case.entry))


@functools.cache
def rewritten(name: str, form: Form | None = None) -> Program:
    """The case's program with its kernels in ``form``, or as gpud chooses.

    Raises:
        KernelRejected: gpud cannot run it.
    """
    return compile_program(source_of(name).ptx, form=form)


def run_case(
    device: Device,
    case: Case,
    form: Form,
    seed: int = 0,
    conduct: Conduct | None = None,
    ptx: str | None = None,
) -> tuple[list[Any], Results]:
    """Run ``case`` in ``form`` on ``device``.

    Args:
        device: where.
        case: what.
        form: how; one of ``case.forms``.
        seed: for the arguments.
        conduct: resizes the job while it runs; `straight` by default. A case with several
            launches is conducted through each.
        ptx: run this program instead of what the rewriter makes.

    Returns:
        The arguments as they were made and what the run left behind.

    Raises:
        TimeoutError: a launch did not end in time.
        GpudError: as the job raised it.
    """
    source = source_of(case.name)
    if ptx is None:
        ptx = source.ptx if form == "unmodified" else rewritten(case.name, form).ptx
    module = device.load(ptx)
    kernel = module.kernel(source.entry)
    arguments = case.arguments(seed)
    memories = _copy_in(device, arguments)
    values = _values(arguments, memories)
    if case.counts == "argument":
        counters = device.allocate(4 * case.blocks)
        values.append(counters.address.to_bytes(8, "little"))
        runs = counters.view
    else:
        runs = module.symbol(RUNS_SYMBOL)
    for name, value in case.symbols.items():
        raw = np.ascontiguousarray(value).view(np.uint8).ravel()
        module.symbol(name)[: raw.size] = raw
    output = b""
    for _ in range(case.launches):
        job = Job(device, kernel, form, case.grid, case.block, values, shared=case.shared)
        (conduct or straight())(job)
        output += job.output
    return arguments, _copy_out(case, arguments, memories, runs, module, output)


# -- helpers -----------------------------------------------------------------------------------


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


def _copy_out(
    case: Case,
    arguments: Sequence[Any],
    memories: dict[int, Any],
    runs: np.ndarray[Any, Any],
    module: Any,
    output: bytes,
) -> Results:
    buffers = {}
    for index, memory in memories.items():
        array = _array(arguments[index])
        assert array is not None
        raw = memory.view[: array.nbytes].tobytes()
        buffers[index] = np.frombuffer(raw, array.dtype).reshape(array.shape)
    names = [key for key in case.expect(list(arguments)) if isinstance(key, str)]
    symbols = {name: module.symbol(name).tobytes() for name in names}
    counters = np.frombuffer(runs[: 4 * case.blocks].tobytes(), np.uint32)
    return Results(buffers, counters, symbols, output.decode(errors="replace"))
