"""Helpers that turn PTX text into the input of the CPU code generator's analyses."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from gpud.compiler.analysis.effects import written
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction
from gpud.device.cpu.codegen.analysis.convergence import Convergence
from gpud.device.cpu.codegen.analysis.regions import CodeRegions
from gpud.device.cpu.codegen.preparation.pipeline import prepare
from tests.property.structured_kernels import Generator
from tests.property.structured_ptx import to_ptx

_HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"


def kernel(body: str, before: str = "") -> ptx.Module:
    """A flattened module with one entry ``k(out, n)``."""
    return flatten_module(
        parse(f"{_HEAD}{before}\n.visible .entry k(.param .u64 out, .param .u32 n)\n{{\n{body}\n}}")
    )


def prepared(body: str, before: str = "") -> ptx.Function:
    """The kernel with that body, prepared for code generation."""
    module = kernel(body, before)
    return prepare(module, module.entries()["k"]).entry


def analysed(
    body: str, before: str = "", private: frozenset[str] = frozenset()
) -> tuple[CodeRegions, Convergence]:
    """CodeRegions and convergence of the kernel with that body."""
    regions = CodeRegions(prepared(body, before))
    return regions, Convergence(regions, private)


def instructions(function: ptx.Function, base: str = "") -> list[ptx.Instruction]:
    """The instructions of a flat body, all or those of one opcode."""
    return [
        s
        for s in function.body or ()
        if isinstance(s, ptx.Instruction) and base in ("", s.opcode.base)
    ]


def text_of(function: ptx.Function) -> list[str]:
    """The instructions of a flat body, printed."""
    return [print_instruction(ins).strip() for ins in instructions(function)]


def named(regions: CodeRegions, register: str) -> int:
    """The first block in which ``register`` is written."""
    for block in regions.flow.blocks:
        for place in block.places:
            if register in (r.name for r in written(place.instruction)):
                return block.index
    raise AssertionError(f"nothing writes {register}")


def random_programs(count: int, size: int = 24) -> Iterator[tuple[CodeRegions, Convergence]]:
    """Structured kernels, analysed."""
    for seed in range(count):
        module = flatten_module(parse(to_ptx(Generator(Random(seed), size).kernel())))
        regions = CodeRegions(prepare(module, module.entries()["k"]).entry)
        yield regions, Convergence(regions, frozenset(("loc",)))
