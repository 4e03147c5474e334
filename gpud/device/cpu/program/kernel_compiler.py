"""Compiles a kernel to machine code: runs the code generator, then LLVM."""

from __future__ import annotations

from functools import lru_cache

from gpud.compiler.abi.reserved_names import ARENA
from gpud.compiler.dump_folder import DumpFolder
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.parser import parse
from gpud.device import jit
from gpud.device.cpu.abi.layout import ModuleLayout, Shape
from gpud.device.cpu.codegen.kernel import generate_kernel
from gpud.device.cpu.codegen.preparation.module_layout import layout_module
from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult

__all__ = ["compile_kernel"]


def compile_kernel(wanted: CompileRequest, dumps: DumpFolder | None = None) -> CompileResult:
    """Compile a kernel in this process; ``dumps`` gets its LLVM IR, before LLVM does.

    Raises:
        KernelRejected: the kernel uses something that the CPU device does not support.
        InternalError: LLVM refuses the code.
    """
    program, layout = _program(wanted.text)
    shape = Shape(*wanted.block)
    arena = wanted.arena if ARENA in layout.data.offsets else None
    generated = generate_kernel(program, wanted.entry, shape, layout, arena, wanted.heap)
    if dumps is not None:
        dumps.kernel(wanted.text, program.entries(), wanted.entry, wanted.block, generated.ir)
    return CompileResult(generated, jit.object_code(generated.ir))


@lru_cache(maxsize=4)
def _program(text: str) -> tuple[ptx.Module, ModuleLayout]:
    """Return the parsed program; kept, since its kernels are mostly requested in a row."""
    program = flatten_module(parse(text))
    return program, layout_module(program)
