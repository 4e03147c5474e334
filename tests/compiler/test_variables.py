"""A program's variables in one block: which are placed, and what becomes of the code."""

from __future__ import annotations

import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.runtime.arena_variables import pass_arena_variables
from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import Program
from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.variables import VariableBlock, place_variables
from gpud.errors import KernelRejected

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def flat(declared: str, body: str = "") -> Module:
    registers = ".reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .f32 %f<9>; .reg .pred %p<3>;"
    entry = f".visible .entry k() {{ {registers} {body} ret; }}"
    return flatten_module(parse(f"{HEAD}{declared}\n{entry}\n"))


def code_of(declared: str, body: str) -> str:
    made = pass_arena_variables(flat(declared, body), {})
    verify(parse(print_module(made)))
    return " ".join(print_module(made).split())


def bytes_of(block: VariableBlock, base: int) -> bytes:
    memory = bytearray(block.size)
    for at, data in block.written(base):
        memory[at : at + len(data)] = data
    return bytes(memory)


def test_apart() -> None:
    block = place_variables(
        flat(".global .b8 a[3]; .const .align 64 .f64 b; .visible .global .v4 .f32 c[2];")
    )
    assert block.offsets == {"a": 0, "b": 64, "c": 80}
    assert block.size == 112


def test_initial_values_and_addresses() -> None:
    block = place_variables(
        flat(
            ".global .u16 a[4] = {1, 2, 0xffff}; .const .f32 f = 1.0;"
            ".global .u64 p[2] = {generic(a)+2, f}; .global .b8 q[4] = {0xFF(a), 0xFF00(a), 9};"
        )
    )
    at, memory = block.offsets, bytes_of(block, 0x7000_0000_1200)
    assert memory[at["a"] : at["a"] + 8] == bytes([1, 0, 2, 0, 255, 255, 0, 0])
    assert memory[at["f"] : at["f"] + 4] == bytes([0, 0, 128, 63])
    pointers = memory[at["p"] : at["p"] + 16]
    assert int.from_bytes(pointers[:8], "little") == 0x7000_0000_1202
    assert int.from_bytes(pointers[8:], "little") == 0x7000_0000_1200 + at["f"]
    assert memory[at["q"] : at["q"] + 4] == bytes([0, 0x12, 9, 0])


@pytest.mark.parametrize(
    ("declared", "placed"),
    [
        (".extern .global .u32 e; .global .u32 a;", ["a"]),
        (".func f() { ret; } .global .u64 t[2] = {f, f}; .global .u32 a;", ["a"]),
        # Whatever a variable that stays names stays, and what names one that stays.
        (".func f() { ret; } .global .u32 a; .global .u64 t[2] = {f, a};", []),
        (".func f() { ret; } .global .u64 t = f; .global .u64 u = t; .global .u32 a;", ["a"]),
        # Constants all or none.
        (".func f() { ret; } .const .u64 t = f; .const .u32 c; .global .u32 a;", ["a"]),
        (".const .u32 c; .const .u32 d; .global .u32 a;", ["c", "d", "a"]),
        (".global .align 4 .b8 nothing[0];", []),
    ],
)
def test_closed(declared: str, placed: list[str]) -> None:
    assert list(place_variables(flat(declared)).offsets) == placed


def test_code_uses_the_block() -> None:
    code = code_of(
        ".global .u32 a[4]; .const .f32 c;",
        "ld.global.u32 %r1, [a+4]; mov.u64 %rd1, a; cvta.global.u64 %rd2, %rd1; mov.u64 %rd3, a+8;"
        "@%p1 ld.const.f32 %f1, [c]; mov.u64 %rd4, c; cvta.const.u64 %rd5, %rd4;"
        "ld.const.f32 %f2, [%rd4]; atom.global.add.u32 %r2, [a], 1;",
    )
    for text in (
        ".const .align 16 .b64 gpud_variables[2] = {0, 20};",
        "ld.const.b64 %gpud_variables, [gpud_variables];",
        "ld.global.u32 %r1, [%gpud_variables+4];",
        "add.s64 %gpud_variables_at0, %gpud_variables, 0; mov.u64 %rd1, %gpud_variables_at0;",
        "add.s64 %gpud_variables_at1, %gpud_variables, 8; mov.u64 %rd3, %gpud_variables_at1;",
        "@%p1 ld.global.f32 %f1, [%gpud_variables+16];",
        "cvta.global.u64 %rd5, %rd4; ld.global.f32 %f2, [%rd4];",
        "atom.global.add.u32 %r2, [%gpud_variables], 1;",
    ):
        assert text in code
    assert " a[4]" not in code


def test_names_of_a_function_hide_variables() -> None:
    code = code_of(".global .u32 a;", ".local .u32 a; st.local.u32 [a], 1; mov.u64 %rd1, a;")
    assert "st.local.u32 [a], 1; mov.u64 %rd1, a;" in code
    assert "%gpud_variables" not in code


def test_accesses_by_name_need_no_check() -> None:
    text = flat_text(".global .u32 a[4];", "ld.global.u32 %r1, [a+12]; st.global.u32 [a], %r1;")
    beyond = flat_text(".global .u32 a[4];", "ld.global.u32 %r1, [a+16]; st.global.u32 [a], %r1;")
    assert "gpud_bounds" not in compile_program("", images=[text]).ptx
    assert "gpud_bounds" in compile_program("", images=[beyond]).ptx


def test_a_program_keeps_its_block_when_it_is_encoded() -> None:
    image = flat_text(".global .u32 a[2] = {1, 2}; .global .u64 p = a;", "mov.u64 %rd1, p;")
    program = compile_program("", images=[image])
    assert Program.decode(program.encode()) == program
    assert program.symbols["p"].offset == 16
    outside = Program.decode(program.encode())
    broken = VariableBlock(
        8, outside.block.offsets, outside.block.pieces, outside.block.relocations
    )
    with pytest.raises(ValueError, match="outside of the variables' block"):
        broken.check()


def test_variables_of_a_source_stay() -> None:
    text = flat_text(".global .u32 a[2] = {1, 2};", "ld.global.u32 %r1, [a];").decode()
    program = compile_program(text)
    assert program.symbols["a"].offset is None
    assert ".global .u32 a[2]" in program.ptx


def test_the_base_cannot_be_changed() -> None:
    text = flat_text(".global .u32 a;", ".reg .b64 %gpud_variables; mov.u64 %gpud_variables, 0;")
    with pytest.raises(KernelRejected, match="a name that gpud uses"):
        compile_program("", images=[text])


def flat_text(declared: str, body: str) -> bytes:
    return print_module(flat(declared, body)).encode()
