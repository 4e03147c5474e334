"""The checking mode through client, daemon and CPU device: faults are found, and only faults."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpud_client as gc
from tests.integration.faulty_kernels import COUNT, FAULTS, Fault


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2", check=True) as session:
        yield session


def _argument(gpu: gc.Session, written: str) -> tuple[Any, list[gc.Array]]:
    """Return an argument, and the arrays that it refers to."""
    values = np.arange(COUNT)
    match written:
        case "n":
            return np.int32(COUNT), []
        case "null":
            return None, []
        case "list":
            data = gpu.array(values.astype(np.float32))
            packed = np.zeros((), [("data", "u8"), ("count", "i4"), ("", "i4")])
            packed["data"] = data.ptr
            return packed[()], [data]
        case "node":
            data = gpu.array(values.astype(np.float32))
            return gpu.array(np.array([data.ptr], np.uint64)), [data]
        case "ptr":
            data = gpu.array(values.astype(np.float32))
            return np.uint64(data.ptr), [data]
        case "freed":
            data = gpu.array(values.astype(np.float32))
            address = data.ptr
            data.free()
            return np.uint64(address), []
    if written.endswith("?"):
        return gpu.empty(COUNT, written[:-1]), []
    return gpu.array((values % 100).astype(written)), []


def _run(gpu: gc.Session, fault: Fault) -> BaseException | None:
    kernel = gpu.kernel(fault.program, "kernel")
    made = [_argument(gpu, written) for written in fault.arguments.split()]
    shared = 4 * fault.block if "extern __shared__" in fault.source else 0
    job = kernel.submit(
        grid=fault.grid, block=fault.block, args=tuple(one for one, _ in made), shared=shared
    )
    return job.exception(timeout=60)


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_planted_fault_is_found(gpu: gc.Session, fault: Fault) -> None:
    error = _run(gpu, fault)
    assert isinstance(error, gc.CheckFailed), f"not found; {error}"
    first = error.findings[0]
    said = str(first)
    assert fault.kind in (None, first.kind), said
    if first.other_line is None:  # a race is found at the access that comes second
        assert first.access == fault.access, said
    places = {f"{first.file}:{first.file_line}", first.other_line}
    assert f"kernel.cu:{fault.line}" in places, said
    assert first.file == "kernel.cu", said
    assert first.kernel == "kernel", said
    if fault.element is not None:
        index = first.address if first.space == "shared" else first.element
        assert index == fault.element, said
    if fault.argument is not None:
        assert first.argument == fault.argument, said
    assert first.thread is not None
    assert first.task_block is not None


COPY = r"""
extern "C" __global__ void copy(const float* x, float* y, int times) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; k < times; k++) y[i] = x[i] + k;
}"""


def test_arrays_that_jobs_still_use_do_not_count_as_freed(gpu: gc.Session) -> None:
    copy = gpu.kernel(COPY, "copy")
    y = gpu.empty(256, "f4")
    values = np.arange(256, dtype=np.float32)
    jobs = [copy.submit(2, 128, (gpu.array(values + n), y, 200)) for n in range(8)]
    for job in jobs:
        job.result(timeout=60)
    assert (y.get() == values + 7 + 199).all()


def test_what_was_written_stays_known(gpu: gc.Session) -> None:
    copy = gpu.kernel(COPY, "copy")
    x, y, z = (gpu.empty(256, "f4") for _ in range(3))
    x.set(np.ones(256, np.float32))
    copy.submit(2, 128, (x, y, 1)).result(timeout=60)
    copy.submit(2, 128, (y, z, 1)).result(timeout=60)
    assert (z.get() == 1).all()


def test_findings_are_those_of_their_job(gpu: gc.Session) -> None:
    copy = gpu.kernel(COPY, "copy")
    x, y = gpu.zeros(256, "f4"), gpu.zeros(256, "f4")
    jobs = [copy.submit(2 + n % 2, 128, (x, y, 1), stream=gpu.stream()) for n in range(8)]
    found = [job.exception(timeout=60) for job in jobs]
    assert [error is not None for error in found] == [n % 2 == 1 for n in range(8)]


def test_a_sequence_names_its_launch(gpu: gc.Session) -> None:
    copy = gpu.kernel(COPY, "copy")
    x, y = gpu.zeros(256, "f4"), gpu.zeros(256, "f4")
    job = gpu.sequence([copy.call(2, 128, (x, y, 1)), copy.call(3, 128, (x, y, 1))])
    error = job.exception(timeout=60)
    assert isinstance(error, gc.CheckFailed)
    assert {one.launch for one in error.findings} == {1}
    assert job.state == "failed"


def test_other_sessions_are_not_checked(gpu: gc.Session) -> None:
    with gc.connect(gpu.path) as other:
        copy = other.kernel(COPY, "copy")
        x, y = other.empty(256, "f4"), other.zeros(256, "f4")
        copy.submit(2, 128, (x, y, 1)).result(timeout=60)


@pytest.mark.ci
def test_with_asyncio() -> None:
    async def run() -> BaseException | None:
        async with gc.alocal("cpu:1", check=True) as gpu:
            copy = await gpu.kernel(COPY, "copy")
            x, y = await gpu.zeros(128, "f4"), await gpu.zeros(128, "f4")
            job = await copy.submit(2, 128, (x, y, 1))
            return await job.exception()

    assert isinstance(asyncio.run(run()), gc.CheckFailed)


def test_it_does_not_go_with_reconnecting(gpu: gc.Session) -> None:
    with pytest.raises(ValueError, match="another daemon"):
        gc.connect(gpu.path, reconnect=True, check=True)


TYPES = """
extern "C" __global__ void plain(const float* x, double* y, int n) { y[0] = x[0]; }
template <typename T> __global__ void made(T* x, unsigned* n) { x[0] = n[0]; }
namespace ns { __global__ void mangled(const volatile long long* x) {} }
extern "C" __global__ void any(const char* x, void* y, bool* z, float4* v) {}
"""


@pytest.fixture(scope="module")
def types(gpu: gc.Session) -> Any:
    return gpu.module(TYPES, names=("made<double>",))


def test_pointers_take_arrays_of_their_type(gpu: gc.Session, types: Any) -> None:
    single, double = gpu.zeros(4, "f4"), gpu.zeros(4, "f8")
    types.kernel("plain").submit(1, 1, (single, double, 1)).result(timeout=60)
    types.kernel("plain").call(1, 1, (None, double, 1))
    types.kernel("plain").call(1, 1, (double.ptr, gpu.zeros(2, "c16"), 1))
    types.kernel("made<double>").call(1, 1, (double, gpu.zeros(4, "i4")))
    types.kernel("mangled").call(1, 1, (gpu.zeros(4, "u8"),))
    types.kernel("any").call(1, 1, (double, single, single, single))


def test_another_session_warns_once(gpu: gc.Session) -> None:
    with gc.connect(gpu.path) as other:
        module = other.module(TYPES, names=("made<double>",))
        single, double = other.zeros(4, "f4"), other.zeros(4, "f8")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(3):
                module.kernel("plain").submit(1, 1, (double, double, 1)).result(timeout=60)
                module.kernel("mangled").submit(1, 1, (single,)).result(timeout=60)
            module.kernel("made<double>").call(1, 1, (single, single))
            module.kernel("any").call(1, 1, (double, single, single, single))
        texts = [str(one.message).partition(";")[0] for one in warned]
        assert texts == [
            "argument 0 of plain: the array is float64, the kernel's pointer is to float32",
            "argument 0 of mangled: the array is float32, the kernel's pointer is to int64",
            "argument 0 of made<double>: the array is float32, the kernel's pointer is to float64",
            "argument 1 of made<double>: the array is float32, the kernel's pointer is to int32",
        ]
        assert {one.filename for one in warned} == {__file__}


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("plain", ("f8", "f8", 1), "argument 0 of plain: the array is float64, .* to float32"),
        ("plain", ("f4", "f4", 1), "argument 1 of plain: the array is float32, .* to float64"),
        ("plain", ("i4", "f8", 1), "argument 0 .* int32, .* to float32; make it with"),
        ("made<double>", ("f4", "u4"), "argument 0"),
        ("made<double>", ("f8", "u8"), "argument 1"),
        ("mangled", ("i4",), "argument 0 of mangled: the array is int32, .* to int64"),
    ],
)
def test_an_array_of_another_type_is_refused(
    gpu: gc.Session, types: Any, name: str, arguments: tuple[Any, ...], said: str
) -> None:
    given = [gpu.zeros(4, one) if isinstance(one, str) else one for one in arguments]
    with pytest.raises(TypeError, match=said):
        types.kernel(name).submit(1, 1, tuple(given))


def test_gpuctl_run_checks(gpu: gc.Session, tmp_path: Path) -> None:
    source = tmp_path / "copy.cu"
    source.write_text(COPY)
    command = [
        *(sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"),
        *("run", str(source), "copy", "--block", "128", "--check", "--socket", gpu.path),
        *("--arg", "ones:f32:256", "--arg", "zeros:f32:256", "--arg", "1", "--grid"),
    ]
    right, wrong = (
        subprocess.run([*command, grid], capture_output=True, text=True, timeout=120, check=False)
        for grid in ("2", "3")
    )
    assert (right.returncode, wrong.returncode) == (0, 1), right.stderr + wrong.stderr
    assert "checked: nothing was found" in right.stdout
    assert "index 256 of argument 0, float32 (256,)" in wrong.stderr
    assert "copy.cu:" in wrong.stderr
    assert "kernel.cu" not in wrong.stderr
    assert "nothing was found" not in wrong.stdout
