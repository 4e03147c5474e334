"""Bounds checks as records: `recognise` finds exactly what `emit` writes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.abi.reserved_names import ARENA, FAULT, GRID_SYNC, HEAP, RANGES
from gpud.compiler.instrumentation.bounds_checks import (
    BoundsCheck,
    Member,
    Range,
    declarations,
    emit,
    fold,
    recognise,
)
from gpud.compiler.ptx.model import (
    Function,
    Guard,
    Instruction,
    Label,
    Module,
    Register,
    Statement,
    opcode,
)
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from tests.compiler.support.flat_programs import program

ALIGNS = st.sampled_from((1, 2, 4, 8, 16, 32))
LOWS = st.integers(-(1 << 31), (1 << 31) - 1)
MEMBERS = st.builds(
    Member, low=LOWS, span=st.integers(1, 4096), align=ALIGNS, site=st.integers(0, 1 << 20)
)
NAMES = st.sampled_from(("table", "coef", "x"))
WINDOWS = st.lists(
    st.sampled_from(("shared", "shared::cluster", "local", "param")), unique=True, max_size=3
)
GUARDS = st.none() | st.builds(Guard, st.builds(Register, st.just("%p1")), st.booleans())


@st.composite
def checks(draw: st.DrawFn, number: int = 0) -> BoundsCheck:
    """Any bounds check: its variables are large enough for one of its members."""
    rows = draw(st.sampled_from((1, 1, 1, 2, 16)))
    members = draw(st.lists(MEMBERS, min_size=1, max_size=4 if rows == 1 else 1))
    least = min(member.span for member in members)
    spaces = st.sampled_from(("global", "const"))
    sizes = st.integers(least, 1 << 20)
    ranges = st.one_of(
        st.builds(Range, NAMES, spaces, sizes),
        st.just(Range(HEAP, "global", 0)),
        st.builds(Range, st.just(GRID_SYNC), st.just("global"), sizes),
    )
    return BoundsCheck(
        number,
        Register(draw(st.sampled_from(("%d1", "%d2")))),
        tuple(members),
        draw(GUARDS),
        tuple(draw(WINDOWS)),
        tuple(draw(st.lists(ranges, max_size=3, unique_by=lambda one: one.name))),
        rows,
        draw(st.sampled_from((0, 0, 1, 3, 1000))),
    )


def placed(*some: BoundsCheck) -> Function:
    """A function with ``some`` bounds checks, each before an instruction, numbered in order."""
    table = any(check.table for check in some)
    body: list[Statement] = [*declarations(len(some), table=table)]
    cold: list[Statement] = []
    for check in some:
        first, second = emit(check, line=7)
        body += [*first, Instruction(opcode("membar.gl"))]
        cold += second
    return Function("entry", "k", body=[*body, Instruction(opcode("ret")), *cold])


def through_text(function: Function) -> Function:
    module = Module((9, 0), ("sm_90",), 64, [function])
    return parse(print_module(module)).functions()[0]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_inverse(data: st.DataObject) -> None:
    some = [data.draw(checks(number)) for number in range(data.draw(st.integers(1, 4)))]
    function = placed(*some)
    again = through_text(function)
    assert again == function
    found = recognise(again)
    assert [one.check for one in found] == some
    body = again.body or []
    for one in found:
        last, first = body[one.hot[1] - 1], body[one.cold[0]]
        assert isinstance(last, Label)
        assert isinstance(first, Label)
        assert last.name.endswith(f"warm_{one.check.number}")
        assert first.name.endswith(f"cold_{one.check.number}")


@settings(max_examples=80, deadline=None)
@given(checks(), st.data())
def test_what_differs_is_no_check(check: BoundsCheck, data: st.DataObject) -> None:
    """A bounds check of which any single instruction is missing or changed is not recognised."""
    function = placed(check)
    body = list(function.body or [])
    hot, cold = recognise(function)[0].hot, recognise(function)[0].cold
    index = data.draw(st.sampled_from([*range(*hot), *range(*cold)]))
    statement = body[index]
    if isinstance(statement, Instruction) and statement.operands and data.draw(st.booleans()):
        operands = (*statement.operands[:-1], Register("%other"))
        body[index] = replace(statement, operands=operands)
    else:
        del body[index]
    found = recognise(replace(function, body=body))
    # Another register or guard is another bounds check, and a bounds check all the same.
    for one in found:
        first, second = emit(one.check)
        assert body[slice(*one.hot)] == first
        assert body[slice(*one.cold)] == second


def test_fold_leaves_one_statement_for_each() -> None:
    some = [
        BoundsCheck(n, Register("%d1"), (Member(4 * n, 4, 4, n),), windows=("shared", "local"))
        for n in range(3)
    ]
    function = placed(*some)
    pseudo = [Instruction(opcode("gpud.bounds"), (Register(f"%d{n}"),)) for n in range(3)]
    folded = fold(function, lambda check: pseudo[check.number])
    barrier = Instruction(opcode("membar.gl"))
    expected = [s for one in pseudo for s in (one, barrier)]
    assert folded.body == [*declarations(3), *expected, Instruction(opcode("ret"))]
    assert fold(folded, lambda _: pseudo[0]) is folded


def test_hull() -> None:
    check = BoundsCheck(0, Register("%d1"), (Member(8, 4, 4, 1), Member(0, 8, 8, 2)))
    assert (check.low, check.span, check.align, check.site) == (0, 12, 8, 1)
    assert (check.generic, check.space) == (False, "global")
    assert replace(check, windows=("local",)).space == "generic"


@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_assembles(arch: str) -> None:
    windows = ("shared", "local", "param")
    variables = (
        Range("table", "global", 16),
        Range("coef", "const", 64),
        Range(HEAP, "global", 0),
    )
    register, guard = Register("%d1"), Guard(Register("%p1"), negated=True)
    some = [
        BoundsCheck(0, register, (Member(0, 4, 4, 0),)),
        BoundsCheck(
            1,
            register,
            (Member(0, 1, 1, 0), Member(-16, 16, 16, 5)),
            guard,
            windows,
            variables,
            table=2,
        ),
        BoundsCheck(2, register, (Member(1 << 31, 32, 32, 0),), replace(guard, negated=False)),
    ]
    head = (
        f".const .align 16 .b64 {ARENA}[2]; .const .align 16 .b64 {HEAP}[2];"
        ".const .align 4 .b8 coef[64]; .global .align 4 .b8 table[16];"
        f".global .align 16 .u64 {RANGES}[4] = {{table, 16, generic(coef), 64}};"
        f".func {FAULT}(.reg .u32 a, .reg .u32 b, .reg .u64 c) {{ exit; }}"
    )
    body = [*(placed(*some).body or [])]
    module = program(
        head, ".visible .entry k() { .reg .b64 %d<3>; .reg .pred %p<3>; }", target=arch
    )
    k = module.entries()["k"]
    k.body = [*(k.body or []), *body]
    assert set(assemble(print_module(module), arch)) == {"k"}
