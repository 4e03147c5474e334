"""Fault reports: merging and splitting are inverse, and each gives a valid program."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.analysis.effects import ends_in_terminator
from gpud.compiler.instrumentation.fault_reports import (
    claim_beside,
    merge_tails,
    split_tails,
)
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.runtime.fault_functions import fault_functions
from gpud.compiler.ptx.model import Function, Module, Register
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from tests.compiler.support.flat_programs import entry, instructions

CONTEXTS = ["%d1, %r_claim, %r_slot", "%d1, -1, -1", "0, -1, -1", "%d1, %r1, %r2"]


def joined(function: Function) -> Function:
    return Function("entry", "k", function.parameters, body=merge_tails(function.body or []))


def fault(context: str, kind: int, site: int, address: str) -> str:
    return f"call gpud_fault, ({context}, {kind}, {site}, {address}); trap;"


def assertion(context: str, site: int) -> str:
    return f"call gpud_assert, ({context}, {site}, %d2, %d3, 7, %d4); trap;"


def kernel(body: str) -> Function:
    registers = ".reg .b32 %r_claim, %r_slot;"
    return entry(f"{registers} {body}").entries()["k"]


@given(seed=st.integers(0, 2**32), context=st.sampled_from(CONTEXTS))
@settings(max_examples=60, deadline=None)
def test_split_undoes_merge(seed: int, context: str) -> None:
    pick = random.Random(seed)
    lines = []
    for number in range(pick.randrange(1, 9)):
        lines.append(f"@%p{number} bra L{number};")
        if pick.random() < 0.7:
            address = pick.choice(["0", "%d5", "4096"])
            lines.append(fault(context, pick.choice([1, 2, 5]), pick.randrange(99), address))
        else:
            lines.append(assertion(context, pick.randrange(99)))
        lines.append(f"L{number}: add.u32 %r3, %r3, 1;")
    if pick.random() < 0.5:
        lines.append("ret;")
    before = kernel("\n".join(lines))
    after = joined(before)
    assert ends_in_terminator(after.body or [])
    text = print_module(Module((7, 0), ("sm_75",), 64, [*fault_functions().values(), after]))
    module = flatten_module(parse(text))
    verify(module)
    assert len([i for i in instructions(after) if i.opcode.base == "call"]) <= 2
    back = split_tails(module.entries()["k"])
    expected = [print_instruction(i) for i in instructions(before)]
    found = [print_instruction(i) for i in instructions(back)]
    if not ends_in_terminator(before.body or []):
        expected.append("ret;")
    assert found == expected
    assert "gpud_report" not in repr(back.body)


def test_a_body_without_reports_is_the_same_object() -> None:
    function = kernel("call gpud_leave, (%d1, -1, -1); trap;")
    body = function.body or []
    assert merge_tails(body) is body
    assert split_tails(function) is function


@pytest.mark.parametrize("body", [fault("%d1, -1, -1", 1, 2, "0").removesuffix(" trap;"),
                                  "call gpud_fault, (1, 2, 0); trap;"])  # fmt: skip
def test_what_is_no_complete_report_stays(body: str) -> None:
    function = kernel(body)
    assert merge_tails(function.body or []) == function.body


def test_lines_stay_with_the_reports() -> None:
    before = kernel("\n\n" + fault("%d1, -1, -1", 1, 2, "0"))
    after = split_tails(joined(before))
    assert [i.line for i in instructions(after)] == [i.line for i in instructions(before)]


def test_the_claims_register_is_beside_the_slots() -> None:
    assert claim_beside(Register("%gpud_loop2_slot")) == Register("%gpud_loop2_claim")
