"""The texture pass: which instructions become calls, and what is left alone."""

from __future__ import annotations

import pytest

from gpud.compiler.forms.form import Form
from gpud.compiler.passes.runtime.textures import pass_textures
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Instruction
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.errors import KernelRejected

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
DECLARED = (
    ".reg .f32 %f<9>; .reg .b32 %r<9>; .reg .b16 %h<4>; .reg .b64 %rd<9>; .reg .pred %p<3>;"
    "ld.param.u64 %rd1, [k_p];"
)


def program(body: str, top: str = "") -> str:
    return f"{HEAD}{top}.visible .entry k(.param .u64 k_p) {{ {DECLARED} {body} ret; }}\n"


def functions_of(text: str) -> list[str]:
    return [one.name for one in pass_textures(parse(text)).functions() if one.kind == "func"]


FETCH = "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}];"
KNOWN = {
    FETCH: "2d",
    "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [%rd1, {%r5}];": "at_1d",
    "tex.1d.v4.u32.f32 {%r1, %r2, %r3, %r4}, [%rd1, {%f5}];": "1d",
    "tex.3d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %r2, %r3, %r3}];": "at_3d",
    "tex.level.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}], %f7;": "2d",
    "suld.b.1d.b32.trap {%r1}, [%rd1, {%r2}];": "surface",
    "suld.b.2d.v4.b8.clamp {%h0, %h1, %h2, %h3}, [%rd1, {%r2, %r3}];": "surface",
    "sust.b.3d.v2.b64.zero [%rd1, {%r2, %r3, %r4, %r4}], {%rd3, %rd4};": "surface",
}


@pytest.mark.parametrize("text", KNOWN)
def test_becomes_calls_of_the_functions_that_it_needs(text: str) -> None:
    made = functions_of(program(text))
    needed = {f"gpud_texture_{KNOWN[text]}"}
    if KNOWN[text] != "surface":
        needed.add("gpud_texture_element")
    assert needed <= set(made) <= needed | {"gpud_texture_element"}
    for guard in ("", "@%p1 ", "@!%p1 "):
        kernel = compile_program(program(guard + text)).kernels["k"]
        assert kernel.form is Form.PERSISTENT


@pytest.mark.parametrize(
    "text",
    [
        "tex.a2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%r1, %f5, %f6, %f6}];",
        "tex.cube.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f4, %f5, %f6, %f6}];",
        "tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, %rd2, {%f5, %f6}];",
        "tld4.r.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%rd1, {%f5, %f6}];",
        "sured.b.add.2d.u32.trap [%rd1, {%r1, %r2}], %r3;",
        "sust.p.2d.v4.b32.trap [%rd1, {%r1, %r2}], {%r1, %r2, %r3, %r4};",
        "txq.num_samples.b32 %r1, [%rd1];",
    ],
)
def test_what_has_no_function_is_left_and_refused(text: str) -> None:
    module = parse(program(text))
    assert [one.name for one in pass_textures(module).functions()] == ["k"]
    with pytest.raises(KernelRejected) as caught:
        compile_program(program(text))
    assert caught.value.reason == "texture"


def test_a_program_without_textures_is_the_same_object() -> None:
    module = parse(program("add.f32 %f1, %f2, %f3;"))
    assert pass_textures(module) is module


def test_the_size_is_read_from_the_description() -> None:
    text = print_module(pass_textures(parse(program("txq.height.b32 %r1, [%rd1];"))))
    assert "ld.global.b32 %r1, [%rd1+12];" in text


def test_fetches_in_scopes_and_functions_are_found() -> None:
    top = f".func f(.param .b64 k_p) {{ {DECLARED} {{ {{ {FETCH} }} }} ret; }}\n"
    made = pass_textures(parse(program("", top)))
    left = [s for s in made.entries()["k"].body or [] if isinstance(s, Instruction)]
    assert all(one.opcode.base != "tex" for one in left)
    assert "tex." not in print_module(made)


def test_a_name_of_the_functions_is_refused() -> None:
    top = ".func gpud_texture_mine { ret; }\n"
    pass_textures(parse(program("", top)))  # without a texture it is as good as any
    with pytest.raises(KernelRejected, match=r"defines gpud_texture_mine, .* rename it"):
        pass_textures(parse(program(FETCH, top)))
