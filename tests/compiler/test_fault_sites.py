"""Sites: which instruction, which line of the PTX, which line of the source."""

from __future__ import annotations

import pytest

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import killable_variant, sliced_variant
from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import Program, Site
from gpud.compiler.ptx.model import Instruction
from tests.compiler.support.flat_programs import entry, instructions, program

SOURCE = """
__device__ int inlined(const int* x, int i) {
    if (i > 6) __trap();
    return x[i];
}
extern "C" __global__ void k(int* x, int n) {
    int i = threadIdx.x;
    x[i] = inlined(x, n);

    assert(x[i] != 3);
}
"""


def sites_by_text(made: Program, word: str) -> list[Site]:
    return [site for site in made.sites if word in site.instruction]


@pytest.mark.parametrize("bounds_checks", [False, True])
@pytest.mark.parametrize("options", [[], ["-lineinfo"]])
def test_sites_name_lines_of_the_ptx_as_it_was(bounds_checks: bool, options: list[str]) -> None:
    made = compile_program(SOURCE, options=options, bounds_checks=bounds_checks)
    lines = made.original_ptx.splitlines()
    assert made.sites
    for site in made.sites:
        assert site.function == "k"
        word = site.instruction.split()[0].removeprefix("@")
        assert word.rstrip(";") in lines[site.line - 1]
    assert len(sites_by_text(made, "trap;")) == 1
    assert len(sites_by_text(made, "__assertfail")) == 1
    if bounds_checks:
        assert sites_by_text(made, "ld.global") or sites_by_text(made, "ld.")


def test_without_line_information_there_is_no_source_line() -> None:
    made = compile_program(SOURCE)
    assert all(site.file is None and site.file_line is None for site in made.sites)


def test_with_line_information_the_source_line_is_there() -> None:
    made = compile_program(SOURCE, options=["-lineinfo"])
    (trap,) = sites_by_text(made, "trap;")
    (assertion,) = sites_by_text(made, "__assertfail")
    assert trap.file is not None
    assert trap.file.endswith("kernel.cu")
    assert trap.file_line == 3
    assert assertion.file_line == 10
    assert {site.file_line for site in sites_by_text(made, "ld.")} <= {4, 8, 10}
    assert "kernel.cu:3, PTX line" in str(trap)


def test_sites_go_along_with_the_program() -> None:
    made = compile_program(SOURCE, options=["-lineinfo"])
    assert Program.decode(made.encode()).sites == made.sites


def some(text: str) -> Instruction:
    return instructions(entry(text).entries()["k"])[0]


def test_the_same_instruction_has_one_number() -> None:
    table = SiteTable()
    trap = some("trap;")
    assert table.add("k", trap) == table.add(sliced_variant("k"), trap) == 0
    assert table.add(killable_variant(sliced_variant("k")), trap) == 0
    assert table.add("other", trap) == 1
    assert table.add("k", some("\n\ntrap;")) == 2
    assert table.add("k", some("brkpt;")) == 3
    assert [site.function for site in table.sites] == ["k", "other", "k", "k"]


def test_a_location_holds_until_the_next_one_and_to_the_end_of_its_function() -> None:
    module = program(
        '.file 1 "one.cu"',
        '.file 2 "two \\"2\\".cu", 1, 2',
        ".func f() {\ntrap;\n.loc 1 10 3\ntrap;\ntrap;\n.loc 2 20 1\ntrap;\n}",
        ".func g() {\ntrap;\n.loc 7 30 1\ntrap;\n}",
    )
    table = SiteTable(module)
    for function in module.functions():
        for ins in instructions(function):
            table.add(function.name, ins)
    assert [(site.file, site.file_line) for site in table.sites] == [
        (None, None), ("one.cu", 10), ("one.cu", 10), ('two \\"2\\".cu', 20),
        (None, None), (None, 30),
    ]  # fmt: skip
    made = Instruction(some("trap;").opcode)
    number = table.add("f", made)
    assert table.sites[number].file is None
    assert "made by gpud" in str(table.sites[-1])
