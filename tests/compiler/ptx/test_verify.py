"""Structural checks: each kind of mistake is found and named; good programs pass."""

from __future__ import annotations

import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.verify import verify
from gpud.errors import PTXSyntaxError
from tests.compiler.support.ptx_samples import SAMPLES

HEADER = (
    ".version 8.0\n.target sm_90\n.address_size 64\n.global .b32 g; .func callee(.param .b32 a);\n"
)


@pytest.mark.parametrize("name", SAMPLES)
def test_good_programs_pass_nested_and_flat(name: str) -> None:
    module = parse(SAMPLES[name])
    verify(module)
    verify(flatten_module(module))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("mov.u32 %r9, 1;", "register '%r9' is not declared"),
        ("mov.u32 %r04, 1;", "register '%r04' is not declared"),
        ("mov.u32 x, 1;", "'x' is not declared"),
        ("@%q ret;", "register '%q' is not declared"),
        ("st.global.u32 [nowhere], 1;", "'nowhere' is not declared"),
        ("mov.b64 {%r1, %s1}, %rd1;", "register '%s1' is not declared"),
        ("setp.eq.s32 %p1|%q, %r1, 0;", "register '%q' is not declared"),
        (
            ".shared .b32 %q1; .reg .b32 %q<3>; mov.u32 %r1, %q2; mov.u32 %r1, %q1;",
            "register '%q1' is not declared",
        ),
        ("bra L;", "'L' is not declared"),
        ("bra g;", "'g' is no label in sight"),
        ("{ L: ret; } bra L;", "'L' is not declared"),
        ("{ .reg .b32 t; } mov.u32 t, 1;", "'t' is not declared"),
        ("L: ret; L: ret;", "'L' is declared twice in one scope"),
        (".reg .b32 %r1;", "'%r1' is declared twice in one scope"),
        (".reg .b32 t; .reg .b32 t;", "'t' is declared twice in one scope"),
        (".reg .b64 %r<7>;", "'%r<n>' is declared twice in one scope"),
        (".shared .b32 s; .shared .b32 s;", "'s' is declared twice in one scope"),
        ("t: .branchtargets L; brx.idx %r1, t;", "'L' is no label in sight"),
        ("brx.idx %r1, g;", "'g' is no list in sight"),
        ("t: .calltargets g; ret;", "'g' is no function in sight"),
        ("call missing, (%r1);", "'missing' is not declared"),
        ("call callee, (%r1, %r1);", "does not pass what 'callee' declares"),
        ("call (%r1), callee, (%r1);", "does not pass what 'callee' declares"),
        (".param .b8 p[4]; call callee, (p);", "does not pass what 'callee' declares"),
        (".param .b64 p; call callee, (p);", "does not pass what 'callee' declares"),
        (
            "p: .callprototype _ (.param .b8 _[8]); call %rd1, (%r1), p;",
            "does not pass what 'p' declares",
        ),
        (".shared .u64 s = missing;", "the initialiser's 'missing' is not declared"),
        ("add.s32 %r1, %r2;", "add takes 3 operands, not 2"),
        ("mov.u32 %r1, %r2, %r3;", "mov takes 2 operands, not 3"),
        ("ret 5;", "ret takes 0 operands, not 1"),
        ("add.s32 %r1, %r1, %r2, %r3;", "add takes 3 operands, not 4"),
        ("bar.sync;", "bar takes 1 to 2 operands, not 0"),
        ("barrier.cta.arrive 0;", "barrier takes 2 operands, not 1"),
        ("bar.warp.sync;", "bar takes 1 operands, not 0"),
        ("bar.red.popc.u32 %r1, 0;", "bar takes 3 to 4 operands, not 2"),
        ("bra %r1;", "bra needs a label"),
        ("@%p1 bra %tid.x;", "bra needs a label"),
        ("brx.idx %r1, %r2;", "brx needs a list"),
        ("call (%r1);", "call needs a function"),
        ("call (%r1), (%r2);", "call needs a function"),
        ("st.global.u32 [%rd1], [%rd1];", "operand 2 of st is no address or list"),
        ("ld.global.u32 %r1, %rd1;", "operand 2 of ld is an address"),
        ("setp.eq.s32 %p1, %r1, [%rd1];", "operand 3 of setp is no address or list"),
        ("add.s32 %r1, (%r1), %r2;", "operand 2 of add is no address or list"),
        ("shfl.sync.bfly.b32 %r1, %r2, 1;", "shfl takes 4 to 5 operands, not 3"),
    ],
)
def test_mistakes_are_named_with_their_line(body: str, problem: str) -> None:
    text = (
        f"{HEADER}.entry k() {{\n.reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<3>;\n{body}\n}}\n"
    )
    module = parse(text)
    with pytest.raises(PTXSyntaxError) as caught:
        verify(module)
    assert problem in str(caught.value)
    assert caught.value.line == 7


def test_module_level_mistakes() -> None:
    for text, problem in [
        (".func f() { ret; }\n.func f() { ret; }", "function 'f' is defined twice"),
        (".global .b32 g;", "'g' is declared twice"),
        (".global .u64 t = missing;", "'missing' is not declared"),
    ]:
        with pytest.raises(PTXSyntaxError) as caught:
            verify(parse(HEADER + text))
        assert problem in str(caught.value)
    verify(parse(HEADER + ".func f();\n.func f() { ret; }\n.global .u64 t = f;"))


def test_unknown_opcodes_are_not_counted() -> None:
    verify(parse(HEADER + ".entry k() { tcgen99.op 1, 2, 3, 4, 5, 6, 7, 8; }"))
