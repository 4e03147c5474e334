"""Generated code grows in proportion to the program, whatever is repeated in it."""

from __future__ import annotations

import pytest

from bench.bench_compile_time import FAMILIES, growing
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module

ARENA, HEAP = (1 << 32, 1 << 28), (1 << 34, 1 << 23)


def lines_of(family: str, count: int) -> int:
    """Lines of LLVM IR of a kernel, as a daemon has them generated."""
    program = compile_program(growing(family, count))
    entry = program.kernels["grown"].entry_for((128, 1, 1), killable=True)
    module = flatten_module(parse(program.ptx))
    code = generate_kernel(module, entry, Shape(128), layout_module(module), ARENA, HEAP)
    return code.ir.count("\n")


@pytest.mark.parametrize("family", FAMILIES)
def test_lines_grow_linearly(family: str) -> None:
    """From 4 to 12 pieces as much is added for each as from 4 to 8, give or take a tenth."""
    four, eight, twelve = (lines_of(family, count) for count in (4, 8, 12))
    assert twelve - eight <= 1.1 * (eight - four)
