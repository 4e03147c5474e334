"""Generated code grows in proportion to the program, wherever its threads diverge."""

from __future__ import annotations

import pytest

from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.nvrtc import compile_cuda
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.emit.region_writer import OWN_LENGTH
from gpud.device.cpu.device import CPUDevice
from tests.support.growing_kernels import FAMILIES, growing
from tests.unit.cpu.codegen.prepared import random_programs

COUNTS = (2, 4, 8)
ARENA = (1 << 32, 1 << 28)


@pytest.mark.parametrize("family", FAMILIES)
def test_twice_the_program_gives_twice_the_code(family: str) -> None:
    lines = []
    with CPUDevice(1) as device:
        for count in COUNTS:
            program = compile_program(compile_cuda(growing(family, count)).ptx)
            entry = program.kernels["grown"].entry_for((128, 1, 1), killable=True)
            kernel = device.load(program.ptx, ARENA).kernel(entry)
            lines.append(kernel.generate(Shape(128)).ir.count("\n"))
    first, second = lines[1] - lines[0], lines[2] - lines[1]
    assert second < 2.3 * first, lines


@pytest.mark.parametrize(
    ("does", "diverges"),
    [
        ("if (i < n) x[i] = sqrtf(x[i]);", False),
        ("x[i] = __shfl_down_sync(~0u, x[i], 1);", False),
        ("for (int k = 0; k < i % 7; k++) { __syncwarp(1u << i % 32); x[i] += k; }", True),
    ],
)
def test_where_threads_cannot_diverge_is_no_code_for_it(does: str, diverges: bool) -> None:
    source = f"""extern "C" __global__ void k(float* x, int n) {{
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        {does}
    }}"""
    program = compile_program(compile_cuda(source).ptx)
    entry = program.kernels["k"].entry_for((128, 1, 1), killable=True)
    with CPUDevice(1) as device:
        generated = device.load(program.ptx, ARENA).kernel(entry).generate(Shape(128))
    assert ("@region." in generated.ir) == diverges


def test_long_regions_with_common_blocks_are_together() -> None:
    together = 0
    for regions, _ in random_programs(4):
        for limit in (0, 5, OWN_LENGTH):
            parts = regions.parts(regions.cuts, limit)
            assert sorted(cut for part in parts for cut in part) == sorted(regions.cuts)
            blocks = [{b for cut in part for b in regions.region(cut).blocks} for part in parts]
            for part, inside in zip(parts, blocks, strict=True):
                length = sum(len(regions.flow.blocks[b].places) for b in inside)
                if length > limit:
                    together += len(part) > 1
                    others = [
                        other
                        for one, other in zip(parts, blocks, strict=True)
                        if one != part and len(one) > 1
                    ]
                    assert all(inside.isdisjoint(other) for other in others)
    assert together
