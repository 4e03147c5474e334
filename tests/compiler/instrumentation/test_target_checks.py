"""Checks of jump and call targets: `fold` finds exactly what `emit` writes."""

from __future__ import annotations

import pytest

from gpud.compiler.instrumentation.target_checks import TargetCheck, declarations, emit, fold
from gpud.compiler.ptx.model import (
    Function,
    Guard,
    Immediate,
    Instruction,
    Register,
    Statement,
    opcode,
)
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module

VALUE, PREDICATE = Register("%rd1"), Register("%p1")
NOTE = Instruction(opcode("membar.cta"))


def checks() -> list[TargetCheck]:
    """All kinds, with and without guards."""
    made: list[TargetCheck] = []
    for guard in (None, Guard(PREDICATE), Guard(PREDICATE, negated=True)):
        for functions in ((), ("one",), ("one", "two", "three")):
            made.append(TargetCheck(len(made), VALUE, 100 + len(made), functions, None, guard))
        made.append(TargetCheck(len(made), Register("%r1"), 100 + len(made), (), 3, guard))
    made.append(TargetCheck(len(made), Immediate("7", 7), 9, (), 5))
    return made


def written(parts: list[tuple[list[Statement], list[Statement]]]) -> Function:
    """A function with these checks, printed and parsed."""
    module = parse(HEAD)
    (function,) = module.functions()
    function.body = [
        *(function.body or ()),
        *declarations(),
        *(s for hot, _ in parts for s in (NOTE, *hot)),
        Instruction(opcode("ret")),
        *(s for _, cold in parts for s in cold),
    ]
    return parse(print_module(module)).entries()["k"]


HEAD = """
.version 8.0
.target sm_75
.address_size 64
.entry k() { .reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .pred %p<4>; }
"""


def test_every_check_is_read_back() -> None:
    found: list[TargetCheck] = []

    def note(check: TargetCheck, line: int) -> Statement:
        assert line > 0
        found.append(check)
        return NOTE

    folded = fold(written([emit(check) for check in checks()]), note)
    assert found == checks()
    code = [s for s in folded.body or () if isinstance(s, Instruction)]
    assert code == [NOTE] * 2 * len(found) + [Instruction(opcode("ret"))]


@pytest.mark.parametrize("part", [0, 1])
def test_nothing_else_is_taken_for_one(part: int) -> None:
    for check in checks():
        whole = emit(check)
        for at in range(len(whole[part])):
            parts = (list(whole[0]), list(whole[1]))
            changed = parts[part][at]
            if not isinstance(changed, Instruction):
                continue
            if changed.opcode.base == "mov" or (changed.opcode.base == "bra"):
                continue  # another function, which is another check; a jump that has no check
            parts[part][at] = NOTE
            function = written([parts])
            assert fold(function, lambda *_: NOTE) is function


def test_a_program_without_checks_stays_the_same_object() -> None:
    function = written([])
    assert fold(function, lambda *_: NOTE) is function
