"""Small flat programs for the tests of analyses and passes."""

from __future__ import annotations

from functools import cache

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import Function, Instruction, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.nvrtc import compile_cuda

REGISTERS = ".reg .b32 %r<32>; .reg .b64 %d<16>; .reg .pred %p<16>; .reg .f32 %f<8>;"


def program(*functions: str, target: str = "sm_75", version: str = "9.0") -> Module:
    """A flat module from the texts of its functions and variables."""
    head = f".version {version}\n.target {target}\n.address_size 64\n"
    return flatten_module(parse(head + "\n".join(functions)))


def entry(body: str, parameters: str = ".param .u64 a, .param .u32 n", **options: str) -> Module:
    """A flat module with the one kernel ``k``."""
    return program(f".visible .entry k({parameters})\n{{ {REGISTERS}\n{body}\n}}", **options)


def kernel(body: str) -> Function:
    """The kernel of `entry`."""
    return entry(body).entries()["k"]


@cache
def compiled(source: str, arch: str = "compute_75") -> Module:
    """The flat module that NVRTC makes of CUDA C++."""
    return flatten_module(parse(compile_cuda(source, arch=arch).ptx))


def instructions(function: Function) -> list[Instruction]:
    """The instructions of a flat body."""
    return [s for s in function.body or () if isinstance(s, Instruction)]


def only(function: Function, text: str) -> Instruction:
    """The one instruction whose opcode starts with ``text``."""
    found = [ins for ins in instructions(function) if ins.opcode.text.startswith(text)]
    assert len(found) == 1, f"{len(found)} instructions start with {text}"
    return found[0]
