"""``parse(print(m)) == m`` over hand-written, NVRTC-made, Numba- and Triton-shaped programs."""

from __future__ import annotations

import re

import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from tests.compiler.support.cuda_samples import KERNELS, compiled
from tests.compiler.support.ptx_samples import ASSEMBLED, SAMPLES

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


def round_trips(module: Module) -> str:
    text = print_module(module)
    again = parse(text)
    assert again == module
    assert print_module(again) == text
    return text


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    module = parse(SAMPLES[name])
    round_trips(module)
    round_trips(flatten_module(module))


@pytest.mark.parametrize("name", SAMPLES)
def test_layout_does_not_matter(name: str) -> None:
    """The fast path and the token-level path make the same tree."""
    module = parse(SAMPLES[name])
    printed = print_module(module)
    instructions = re.compile(r"^\t(@?[!%\w][^\"\n]*;)\n", re.MULTILINE)
    assert len(instructions.findall(printed)) > 5
    for comma in (",", " , ", ",\n\n", "/* , */,// ;\n"):
        parts = instructions.split(printed)  # every other part is an instruction
        parts[1::2] = [f"{part.replace(', ', comma)}\n" for part in parts[1::2]]
        assert parse("".join(parts)) == module
    assert parse(instructions.sub(r"\1 /**/ ", printed)) == module


@pytest.mark.parametrize("name", ASSEMBLED)
@needs_ptxas
def test_ptxas_takes_printed_and_flattened_samples(name: str) -> None:
    module = parse(SAMPLES[name])
    before = assemble(SAMPLES[name], ASSEMBLED[name])
    assert assemble(print_module(module), ASSEMBLED[name]) == before
    assert assemble(print_module(flatten_module(module)), ASSEMBLED[name]) == before


@pytest.mark.parametrize("arch", ["compute_75", "compute_90"])
@pytest.mark.parametrize("name", KERNELS)
def test_nvrtc_output(name: str, arch: str) -> None:
    module = parse(compiled(name, arch))
    verify(module)
    round_trips(module)
    flat = flatten_module(module)
    verify(flat)
    round_trips(flat)


@pytest.mark.parametrize("name", KERNELS)
@needs_ptxas
def test_ptxas_sees_no_difference(name: str) -> None:
    text = compiled(name, "compute_90")
    before = assemble(text, "sm_90")
    module = parse(text)
    assert assemble(print_module(module), "sm_90") == before
    assert assemble(print_module(flatten_module(module)), "sm_90") == before
