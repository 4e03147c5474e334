"""What a running daemon dumps of the kernels that it compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gpud_client as gc

pytestmark = pytest.mark.ci

SOURCE = """
extern "C" __global__ void fill(int* x, int v) { x[threadIdx.x] = v; }
extern "C" __global__ void other(int* x, int v) { x[threadIdx.x] = -v; }
"""
ALONE = 'extern "C" __global__ void alone(int* x, int v) { x[threadIdx.x] = v; }'
TIMEOUT_S = 60.0


def run(gpu: gc.Session, source: str, *kernels: str) -> None:
    x = gpu.zeros(64, np.int32)
    program = gpu.module(source)
    for number, name in enumerate(kernels):
        program.kernel(name).submit(1, 64, (x, number)).result(TIMEOUT_S)
        assert abs(x.get()).tolist() == [number] * 64


def test_stages_and_llvm_ir_of_the_named_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "dumps"
    monkeypatch.setenv("GPUD_DUMP", str(folder))
    monkeypatch.setenv("GPUD_DUMP_KERNELS", "fi*,nothing")
    for _ in range(2):  # the second daemon has the program in the cache, and dumps it all the same
        with gc.local("cpu:1", cache_dir=str(tmp_path / "cache")) as gpu:
            run(gpu, ALONE, "alone")
            run(gpu, SOURCE, "fill", "other")
        (program,) = folder.iterdir()
        assert program.name.startswith("fill-")
        (ir,) = program.glob("llvm-*")
        assert ir.name == "llvm-fill-64x1x1.ll"
        assert "@gpud.exact" in ir.read_text()
        stages = sorted(path.name.split("-", 1)[1] for path in program.glob("[0-9]*"))
        assert {"source.cu", "nvrtc.ptx", "bounds-checks.ptx", "persistent.ptx"} <= set(stages)
        assert (program / "00-source.cu").read_text() == SOURCE
        for path in program.iterdir():
            path.unlink()
        program.rmdir()


def test_a_folder_that_cannot_be_used_costs_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    folder.write_text("a file")
    with gc.local("cpu:1", dump=str(folder), cache_dir=str(tmp_path / "cache")) as gpu:
        run(gpu, SOURCE, "fill", "other")
    assert folder.read_text() == "a file"
