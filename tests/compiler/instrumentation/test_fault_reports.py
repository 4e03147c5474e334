"""Fault reports: merging and splitting are inverse, and each gives a valid program."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.analysis.bodies import ends_in_terminator
from gpud.compiler.instrumentation.fault_reports import (
    claim_beside,
    merge_tails,
    split_tails,
)
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.passes.runtime.fault_functions import fault_functions
from gpud.compiler.ptx.model import Function, Module, Register
from gpud.compiler.ptx.operands import parse_operand
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from tests.compiler.support.flat_programs import entry, instructions

CONTEXTS = ["%d1, %r_claim, %r_slot", "%d1, -1, -1", "0, -1, -1", "%d1, %r1, %r2"]


def joined(function: Function, context: str = CONTEXTS[0]) -> Function:
    operands = tuple(parse_operand(text, {}) for text in context.split(", "))
    return Function(
        "entry", "k", function.parameters, body=merge_tails(function.body or [], operands)
    )


def fault(kind: int, site: int, address: str) -> str:
    return f"call gpud_fault, ({kind}, {site}, {address}); trap;"


def assertion(site: int) -> str:
    return f"call gpud_assert, ({site}, %d2, %d3, 7, %d4); trap;"


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
            lines.append(fault(pick.choice([1, 2, 5]), pick.randrange(99), address))
        else:
            lines.append(assertion(pick.randrange(99)))
        lines.append(f"L{number}: add.u32 %r3, %r3, 1;")
    if pick.random() < 0.5:
        lines.append("ret;")
    before = kernel("\n".join(lines))
    after = joined(before, context)
    assert ends_in_terminator(after.body or [])
    text = print_module(Module((7, 0), ("sm_75",), 64, [*fault_functions().values(), after]))
    module = flatten_module(parse(text))
    verify(module)
    assert len([i for i in instructions(after) if i.opcode.base == "call"]) <= 2
    back = split_tails(module.entries()["k"])
    complete = kernel("\n".join(lines).replace(", (", f", ({context}, "))
    expected = [print_instruction(i) for i in instructions(complete)]
    found = [print_instruction(i) for i in instructions(back)]
    if not ends_in_terminator(before.body or []):
        expected.append("ret;")
    assert found == expected
    assert "gpud_report" not in repr(back.body)


def test_a_body_without_reports_has_no_tails() -> None:
    function = kernel("add.u32 %r1, %r1, 1; call gpud_leave, (); trap;")
    expected = "add.u32 %r1, %r1, 1; call gpud_leave, (%d1, 4294967295, %r_slot); trap;"
    assert joined(function).body == kernel(expected).body
    assert split_tails(function) is function


def test_a_call_without_its_trap_is_completed_and_stays() -> None:
    function = kernel(fault(1, 2, "0").removesuffix(" trap;"))
    expected = "call gpud_fault, (%d1, %r_claim, %r_slot, 1, 2, 0);"
    assert joined(function).body == kernel(expected).body
    assert split_tails(function) is function


def test_lines_stay_with_the_reports() -> None:
    before = kernel("\n\n" + fault(1, 2, "0"))
    after = split_tails(joined(before))
    assert [i.line for i in instructions(after)] == [i.line for i in instructions(before)]


def test_the_claims_register_is_beside_the_slots() -> None:
    assert claim_beside(Register("%gpud_loop2_slot")) == Register("%gpud_loop2_claim")
