"""The suite itself: it compiles, covers real programs, and its references are deterministic."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

from gpud.compiler.ptx.model import Function, Instruction, Module, Scope, SpecialRegister, Statement
from gpud.compiler.ptx.parser import parse
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from tests.conformance.common_opcodes import FULL, SPECIAL_REGISTERS, WITHOUT_TYPES, words
from tests.conformance.runner import headers_installed, source_of
from tests.conformance.suite import CASES, Case, Results, covering, find, mismatches
from tests.conformance.suite.case import Hidden, Satisfies, Within

RUNNABLE = [case for case in CASES if headers_installed() or not case.headers]

# Shapes that real kernels have and toy kernels do not, by the feature that a case covers.
SHAPES = words("""
exit-before-barrier barrier.loop barrier.guarded bar.sync barrier.sync bar.warp.sync
waits-for-lower-blocks waits-for-higher-blocks independent-lanes grid-barrier nctaid envreg
state-outlives-launch initialisers initialisers.functions module-symbol virtual indirect-call
many-globals weak template shared.alias block.2 block.partial-warp block.768 block.1024
mask.ballot mask.match parameter.struct parameter.large parameter.bool parameter.null
parameter.none parameter.pointer-in-struct inline-ptx clock globaltimer nanosleep malloc printf
assert numba long-name common triton ptr debug-sections reqntid maxntid minnctapersm recursion
call.barrier call.collective shared.dynamic shared.static exit-before-collective cluster
barrier.count barrier.arrive barrier.id bar.red brx cp.async mbarrier grid.2d grid.3d block.2d
block.3d f16 bf16 carry several-entries calltargets callprototype exit ret.predicated scopes
""")


@cache
def module_of(name: str) -> Module:
    return parse(source_of(name).ptx)


def instructions(body: list[Statement]) -> Iterator[Instruction]:
    for statement in body:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Scope):
            yield from instructions(statement.body)


def all_instructions() -> Iterator[Instruction]:
    for case in RUNNABLE:
        for function in module_of(case.name).functions():
            yield from instructions(function.body or [])


def without_types(opcode: str) -> str:
    base, *modifiers = opcode.split(".")
    kinds = re.compile(r"(b|u|s|f|bf)\d+(x2)?|pred")
    return ".".join([base, *(m for m in modifiers if not kinds.fullmatch(m))])


def test_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(names) == len(set(names))
    assert len(names) >= 75
    assert find(names[0]) is CASES[0]


@pytest.mark.ci
@pytest.mark.parametrize("case", RUNNABLE, ids=lambda case: case.name)
def test_case_compiles_and_has_its_entry(case: Case) -> None:
    entry = source_of(case.name).entry
    function = module_of(case.name).entries()[entry]
    assert isinstance(function, Function)
    passed = [a for a in case.arguments() if not isinstance(a, Hidden)]
    assert len(function.parameters) == len(passed) + (case.counts == "argument")


@pytest.mark.ci
@pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not on PATH")
def test_every_case_assembles() -> None:
    for case in RUNNABLE:
        program = source_of(case.name)
        if case.rejection == "unresolved-external":
            continue  # for a linker to resolve
        assert program.entry in assemble(program.ptx, case.arch.replace("compute", "sm"))


def test_suite_uses_every_opcode_that_real_programs_use() -> None:
    used = {instruction.opcode.text for instruction in all_instructions()}
    assert [opcode for opcode in FULL if opcode not in used] == []
    collapsed = {without_types(opcode) for opcode in used}
    assert [opcode for opcode in WITHOUT_TYPES if opcode not in collapsed] == []


def test_suite_reads_every_special_register_that_real_programs_read() -> None:
    read = {
        operand.name
        for instruction in all_instructions()
        for operand in instruction.operands
        if isinstance(operand, SpecialRegister)
    }
    assert [name for name in SPECIAL_REGISTERS if name not in read] == []


@pytest.mark.parametrize("shape", SHAPES)
def test_suite_has_the_shape(shape: str) -> None:
    assert covering(shape)


@pytest.mark.ci
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reference_is_deterministic_and_leaves_its_arguments_alone(case: Case) -> None:
    first, second = case.arguments(3), case.arguments(3)
    kept = copy.deepcopy(first)
    expected, again = case.expect(first), case.expect(second)
    assert list(map(_raw, first)) == list(map(_raw, kept)) == list(map(_raw, second))
    assert list(expected) == list(again)
    for key, value in expected.items():
        assert _raw(value) == _raw(again[key])
        if isinstance(key, int) and not isinstance(value, Satisfies):
            array = first[key].array if isinstance(first[key], Hidden) else first[key]
            wanted = value.value if isinstance(value, Within) else value
            assert (wanted.dtype, wanted.shape) == (array.dtype, array.shape), key
    if case.output is not None:
        assert case.output(first) == case.output(second)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_is_consistent(case: Case) -> None:
    if case.expected_form == "rejected":
        assert not case.forms
        assert case.rejection
    if "persistent" in case.forms:
        assert case.expected_form in {"persistent", "persistent-exit-aware"}
        assert "sliced" in case.forms  # sliced is legal wherever persistent is
    if case.forms:
        # No plain launch sets %envreg, on the CPU device only bounds checks make 64-bit shared
        # addresses wrap, and a texture object is an address in rewritten programs only.
        only_rewritten = {"envreg", "shared.wrapped", "texture", "surface"}
        assert "unmodified" in case.forms or case.covers & only_rewritten
        assert case.blocks <= 512
    assert case.counts == "symbol" or "runs" in case.source


def test_checker_sees_what_is_wrong() -> None:
    case = find("saxpy")
    arguments = case.arguments()
    right = {1: arguments[1], 2: case.expect(arguments)[2]}
    runs = np.ones(case.blocks, np.uint32)
    assert mismatches(case, arguments, Results(right, runs)) == []

    twice = runs.copy()
    twice[7] = 2
    assert "did not run exactly 1" in mismatches(case, arguments, Results(right, twice))[0]
    changed = {1: arguments[1], 2: right[2].copy()}
    changed[2][100] = np.nextafter(changed[2][100], np.float32(9))
    assert "1 of 9999 elements differ" in mismatches(case, arguments, Results(changed, runs))[0]
    touched = {1: arguments[1] + 1, 2: right[2]}
    assert "argument 1" in mismatches(case, arguments, Results(touched, runs))[0]
    assert "output" in mismatches(case, arguments, Results(right, runs, output="x\n"))[0]


def _raw(value: Any) -> Any:
    """Something that compares equal for equal arguments or expectations."""
    if isinstance(value, Hidden):
        return value.array.tobytes(), dict(value.pointers)
    if isinstance(value, Within):
        return value.value.tobytes(), np.asarray(value.rtol).tobytes()
    if isinstance(value, Satisfies):
        return value.meaning
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes()
    return value
