"""Flattening: one test for each property that the pass names, and the cases that renaming has."""

from __future__ import annotations

import re

import pytest

from gpud.compiler.passes.flatten import flatten, flatten_module
from gpud.compiler.ptx.model import (
    Function,
    Instruction,
    Label,
    Register,
    RegisterDeclaration,
    Variable,
)
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from tests.compiler.support.ptx_samples import SAMPLES

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n.global .align 4 .b32 g;\n"
needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


def flattened(body: str, head: str = ".entry k(.param .u64 p)") -> list[str]:
    """The lines of the flat body, without indentation."""
    module = parse(f"{HEADER}{head}\n{{\n{body}\n}}\n")
    before = print_module(module)
    flat = flatten_module(module)
    assert print_module(module) == before, "the pass changed its input"
    verify(flat)
    if find_ptxas() is not None:
        assemble(print_module(flat), "sm_90")
    text = print_module(flat).split("{\n", 1)[1]
    return [line.strip() for line in text.splitlines() if line != "}"]


def test_a_plain_body_only_moves_its_declarations() -> None:
    assert flattened(
        "mov.u32 %r1, 5;\n.shared .b32 s;\n.reg .b32 %r2;\nret;".replace(
            "mov.u32 %r1", ".reg .b32 %r1;\nmov.u32 %r1"
        )
    ) == [
        ".reg .b32 %r1;",
        ".reg .b32 %r2;",
        ".shared .b32 s;",
        "mov.u32 %r1, 5;",
        "ret;",
    ]


def test_no_scopes_and_unique() -> None:
    scope = "{ .reg .pred p; .reg .b32 t; setp.ne.b32 p, %r1, 0; @p bra L; mov.b32 t, 1; L: }"
    assert flattened(f".reg .b32 %r<3>;\n{scope}\n{scope}\nret;") == [
        ".reg .b32 %r<3>;",
        ".reg .pred %p;",
        ".reg .b32 %t;",
        ".reg .pred %p_1;",
        ".reg .b32 %t_1;",
        "setp.ne.b32 %p, %r1, 0;",
        "@%p bra L;",
        "mov.b32 %t, 1;",
        "L:",
        "setp.ne.b32 %p_1, %r1, 0;",
        "@%p_1 bra L_1;",
        "mov.b32 %t_1, 1;",
        "L_1:",
        "ret;",
    ]


def test_percent() -> None:
    lines = flattened(".reg .b32 x, %x, y<2>, tid;\nmov.u32 x, %tid.x;\nadd.s32 %x, y1, tid;")
    assert lines == [
        ".reg .b32 %x_1;",
        ".reg .b32 %x;",
        ".reg .b32 %y<2>;",
        ".reg .b32 %tid_1;",
        "mov.u32 %x_1, %tid.x;",
        "add.s32 %x, %y1, %tid_1;",
    ]


def test_a_register_that_hides_a_predefined_one_is_renamed() -> None:
    lines = flattened(".reg .b32 %laneid, %pm<2>;\nmov.u32 %laneid, %pm1;")
    assert lines == [
        ".reg .b32 %laneid_1;",
        ".reg .b32 %pm_1_<2>;",
        "mov.u32 %laneid_1, %pm_1_1;",
    ]


def test_an_inner_name_hides_the_outer_one_until_its_scope_ends() -> None:
    lines = flattened(
        ".reg .b32 %r<3>;\nmov.u32 %r1, 1;\n{ mov.u32 %r1, 2; .reg .b64 %r1; mov.u64 %r1, 3;\n"
        "{ .reg .b16 %r1; mov.u16 %r1, 4; } mov.u64 %r1, 5; }\nmov.u32 %r1, 6;"
    )
    assert lines[:3] == [".reg .b32 %r<3>;", ".reg .b64 %r1_1;", ".reg .b16 %r1_2;"]
    assert lines[3:] == [
        "mov.u32 %r1, 1;",
        "mov.u32 %r1, 2;",
        "mov.u64 %r1_1, 3;",
        "mov.u16 %r1_2, 4;",
        "mov.u64 %r1_1, 5;",
        "mov.u32 %r1, 6;",
    ]


def test_numbered_registers_of_scopes_get_prefixes_of_their_own() -> None:
    scope = "{ .reg .b32 %r<2>; .reg .b32 t<2>; mov.u32 %r1, t0; }"
    lines = flattened(f".reg .b32 %r<12>;\nmov.u32 %r11, 1;\n{scope}\n{scope}")
    declared = [line for line in lines if line.startswith(".reg")]
    prefixes = [re.sub(r"\.reg \.b32 (.*)<\d+>;", r"\1", line) for line in declared]
    assert len(set(prefixes)) == 5
    names = [f"{prefix}{i}" for prefix in prefixes for i in range(12)]
    assert len(set(names)) == len(names)


def test_jumps_reach_the_label_in_sight() -> None:
    lines = flattened("{ bra L; }\nL:\n{ bra L; L: bra L; }\nbra L;\n{ L: ret; }")
    assert lines == ["bra L;", "L:", "bra L_1;", "L_1:", "bra L_1;", "bra L;", "L_2:", "ret;"]


def test_branch_targets_are_renamed_with_their_labels() -> None:
    body = "{ L: t: .branchtargets L; brx.idx %r1, t; }\n"
    lines = flattened(".reg .b32 %r<2>;\n" + body + body + "ret;")
    assert lines[1:] == [
        "L:",
        "t: .branchtargets L;",
        "brx.idx %r1, t;",
        "L_1:",
        "t_1: .branchtargets L_1;",
        "brx.idx %r1, t_1;",
        "ret;",
    ]


def test_call_sequences_keep_their_parameters_apart() -> None:
    call = "{ .reg .b32 unused; .param .b32 a; st.param.b32 [a+0], %r1; call f, (a); }\n"
    text = f"{HEADER}.func f(.param .b32 a) {{ ret; }}\n"
    module = parse(f"{text}.entry k() {{ .reg .b32 %r<2>; mov.u32 %r1, 1; {call}{call} ret; }}")
    flat = flatten_module(module)
    verify(flat)
    assert ".param .b32 a_1;\n" in print_module(flat)
    assert "unused" not in print_module(flat)
    if find_ptxas() is not None:
        assemble(print_module(flat), "sm_90")


def test_a_nested_variable_hides_no_module_level_name_elsewhere() -> None:
    lines = flattened(
        ".reg .b32 %r<2>;\n{ .shared .b32 g; st.shared.u32 [g], 1; }\nld.global.u32 %r1, [g];"
    )
    assert ".shared .b32 g_1;" in lines
    assert "st.shared.u32 [g_1], 1;" in lines
    assert "ld.global.u32 %r1, [g];" in lines


def test_vector_registers_become_scalars() -> None:
    lines = flattened(
        ".reg .v4 .f32 %v; .reg .v2 .b32 w<2>; .reg .b64 %rd1;\nld.param.u64 %rd1, [p];\n"
        "ld.global.v4.f32 %v, [%rd1];\nadd.f32 %v.x, %v.y, %v.a;\nst.global.v2.b32 [%rd1], w1;"
    )
    assert lines[-3:] == [
        "ld.global.v4.f32 {%v_x, %v_y, %v_z, %v_w}, [%rd1];",
        "add.f32 %v_x, %v_y, %v_w;",
        "st.global.v2.b32 [%rd1], {%w1_x, %w1_y};",
    ]


def test_register_parameters_are_renamed_in_the_signature() -> None:
    module = parse(
        HEADER + ".func (.reg .b32 r) f(.reg .b32 %a, .reg .b32 b) { add.s32 r, %a, b; }"
    )
    flat = flatten_module(module).functions()[0]
    assert [p.name for p in (*flat.returns, *flat.parameters)] == ["%r", "%a", "%b"]


def test_operands_of_every_kind_are_renamed() -> None:
    lines = flattened(
        ".reg .b32 %r<2>; .reg .pred %p<2>; .shared .b32 s[4];\n"
        "{ .reg .b32 t; .reg .pred q; .reg .b64 u; .shared .b32 s[4];\n"
        " mov.b64 {t, %r1}, u;\n setp.eq.or.s32 q|%p1, t, 1, !q;\n @!q mov.u64 u, s+4;\n"
        " ld.shared.u32 t, [s+8];\n ld.u32 t, [u+4];\n vadd.s32.s32.s32 t, t.b0, %r1.h1;\n}"
    )
    assert lines[-6:] == [
        "mov.b64 {%t, %r1}, %u;",
        "setp.eq.or.s32 %q|%p1, %t, 1, !%q;",
        "@!%q mov.u64 %u, s_1+4;",
        "ld.shared.u32 %t, [s_1+8];",
        "ld.u32 %t, [%u+4];",
        "vadd.s32.s32.s32 %t, %t.b0, %r1.h1;",
    ]


def test_debug_information_and_lines_stay() -> None:
    module = parse(HEADER + ".entry k()\n{\n.loc 1 2 3\n{ .reg .b32 t;\n mov.u32 t, 1;\n}\nret;\n}")
    body = flatten_module(module).entries()["k"].body or []
    assert [statement.line for statement in body] == [8, 7, 9, 11]


def test_a_declaration_is_returned_as_it_is() -> None:
    (function,) = parse(HEADER + ".extern .func f(.param .b32 x);").functions()
    assert flatten(function) is function


@pytest.mark.parametrize("name", SAMPLES)
def test_hoisted(name: str) -> None:
    for function in flatten_module(parse(SAMPLES[name])).functions():
        kinds = [_rank(statement) for statement in function.body or []]
        assert kinds == sorted(kinds)
        assert _names(function) == sorted(set(_names(function)))


def _rank(statement: object) -> int:
    return (
        [RegisterDeclaration, Variable].index(type(statement))
        if isinstance(statement, (RegisterDeclaration, Variable))
        else 2
    )


def _names(function: Function) -> list[str]:
    names = [p.name for p in (*function.returns, *function.parameters) if p.name != "_"]
    for statement in function.body or []:
        if isinstance(statement, RegisterDeclaration):
            names.append(statement.name if statement.count is None else f"{statement.name}<>")
            assert Register(statement.name).name.startswith("%")
        elif isinstance(statement, (Variable, Label)):
            names.append(statement.name)
    return sorted(names)


def test_vectors_among_parameters_become_scalars() -> None:
    """In declarations, definitions and calls alike."""
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    signature = ".func (.reg .v2 .f32 r) f(.reg .v2 .f32 p, .reg .b32 n)"
    module = parse(
        f"{head}{signature};\n{signature} {{ mov.f32 r.x, p.y; mov.f32 r.y, p.x; ret; }}\n"
        ".entry k() { .reg .v2 .f32 a, b; .reg .b32 n; call (b), f, (a, n); ret; }"
    )
    declared, defined, kernel = flatten_module(module).functions()
    for one in (declared, defined):
        assert [p.name for p in one.parameters] == ["%p_x", "%p_y", "%n"]
        assert [p.name for p in one.returns] == ["%r_x", "%r_y"]
    call = next(s for s in kernel.body or () if isinstance(s, Instruction))
    assert print_instruction(call) == "call (%b_x, %b_y), f, (%a_x, %a_y, %n);"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ld.volatile.u32 %r1, [s+4];", "ld.volatile.shared.u32 %r1, [s+4];"),
        ("st.release.gpu.u32 [s], %r1;", "st.release.gpu.shared.u32 [s], %r1;"),
        ("atom.relaxed.cta.add.u32 %r1, [s], 1;", "atom.relaxed.cta.shared.add.u32 %r1, [s], 1;"),
        ("red.add.u32 [s], 1;", "red.shared.add.u32 [s], 1;"),
        ("ld.u32 %r1, [own];", "ld.local.u32 %r1, [own];"),
        ("ld.u32 %r1, [g];", "ld.u32 %r1, [g];"),
        ("ld.global.u32 %r1, [%d1];", "ld.global.u32 %r1, [%d1];"),
        ("ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [s];",
         "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [s];"),
        ("@%p stmatrix.sync.aligned.m8n8.x1.trans.b16 [%d1+16], {%r1};",
         ("@%p cvta.to.shared.u64 %to_shared, %d1;\n"
          "@%p stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%to_shared+16], {%r1};")),
    ],
)  # fmt: skip
def test_accesses_with_a_known_space_name_it(text: str, named: str) -> None:
    module = parse(
        ".version 8.0\n.target sm_90\n.address_size 64\n.shared .b8 s[64];\n"
        ".global .b8 g[8];\n.entry k() { .local .b8 own[8];\n"
        f".reg .b32 %r<4>; .reg .b64 %d<3>; .reg .pred %p;\n{text}\nret; }}"
    )
    body = flatten_module(module).entries()["k"].body or []
    made = [print_instruction(s) for s in body if isinstance(s, Instruction)]
    assert "\n".join(made[:-1]) == named
