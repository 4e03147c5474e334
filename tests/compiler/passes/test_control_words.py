"""Checks every access of rewritten programs to control words against the memory model of PTX.

The text of all code that reads or writes control words is checked: the passes, their functions and
the gate. Nothing is guaranteed between accesses of different sizes, and for constants that change
(PTX ISA 9.0, chapter 8 and ``ld.global.nc``), and no device on which the tests run would show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

from gpud.compiler.abi import control_words as words
from gpud.compiler.analysis.effects import written
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Address, Function, Instruction, Module, Register, Vector
from gpud.compiler.ptx.parser import parse
from gpud.device.cuda.launch import gate
from gpud.device.cuda.program.report_blocks import report_blocks

SOURCE = r"""
extern "C" __global__ void k(int* p, int n) {
    if (n < 0) __trap();
    assert(n != 7);
    for (int i = 0; i < n; i++) p[blockIdx.x * gridDim.y + blockIdx.y] += i;
    if (n == 3) printf("%d\n", n);
}
"""
# What neither the host nor a block changes while a launch runs.
CONSTANT = {
    "job", "status", "base", "total", "grid_x", "grid_y", "grid_z", "flags", "x_multiplier",
    "x_shift", "y_multiplier", "y_shift", "chunk", "ahead", "output",
}  # fmt: skip
RECORDS: dict[str, list[Any]] = {
    "control": words.LAUNCH_RECORD, "ctl": words.LAUNCH_RECORD, "job": words.JOB_RECORD,
    "orders": words.LAUNCH_RECORD,
    "own": words.JOB_RECORD, "previous": words.JOB_RECORD, "status": words.STATUS_RECORD,
    "place": words.STATUS_RECORD,
}  # fmt: skip


class Access(NamedTuple):
    """One word of a vector, or the only one.

    Attributes:
        field: of a record; None if what is accessed is no field of one.
    """

    ins: Instruction
    field: str | None


def fields_of(record: list[Any]) -> dict[tuple[int, int], str]:
    """Field names by (offset, bytes); each element of an array is one."""
    found: dict[tuple[int, int], str] = {}
    for name, (kind, offset, *_) in (np.dtype(record).fields or {}).items():
        size = kind.base.itemsize
        for at in range(offset, offset + kind.itemsize, size):
            found[at, size] = name
    return found


def accesses(function: Function) -> Iterator[Access]:
    """The accesses through registers with the names of addresses of records."""
    for ins in function.body or ():
        if not isinstance(ins, Instruction) or not ins.opcode.has("global"):
            continue
        place = next((one for one in ins.operands if isinstance(one, Address)), None)
        if place is None or not isinstance(place.base, Register):
            continue
        record = RECORDS.get(place.base.name.rpartition("_")[2].lstrip("%"))
        if record is None:
            continue
        size = int(ins.opcode.modifiers[-1][1:]) // 8
        moved = next((one for one in ins.operands if isinstance(one, Vector)), None)
        for number in range(len(moved.items) if moved else 1):
            yield Access(ins, fields_of(record).get((place.offset + number * size, size)))


def programs() -> Iterator[Module]:
    """A program with all that passes insert, in each form, and the gate."""
    for form in ("persistent", "sliced", "whole"):
        plain = flatten_module(parse(compile_program(SOURCE, form=form).ptx))
        yield report_blocks(plain)
    yield flatten_module(parse(gate.PTX))


@pytest.fixture(scope="module")
def found() -> list[Access]:
    return [
        one for program in programs() for function in program.functions()
        for one in accesses(function)
    ]  # fmt: skip


def test_every_word_is_accessed_whole(found: list[Access]) -> None:
    assert [one.ins for one in found if one.field is None] == []
    assert {
        "job", "status", "live", "base", "stays", "named", "begun", "sm", "next", "total", "done",
        "kill", "chunk", "ahead", "fault_state", "fault_thread", "fault_address", "output",
    } <= {one.field for one in found}  # fmt: skip


def test_what_changes_is_read_and_written_by_strong_operations_only(found: list[Access]) -> None:
    for ins, field in found:
        text = ins.opcode.text
        strong = {"volatile", "acquire", "release", "relaxed"} & set(text.split("."))
        if field in CONSTANT:
            assert text.startswith("ld.global"), f"{field} is constant: {text}"
        elif field and field.startswith("fault_") and field != "fault_state":
            assert text.startswith("st.global"), f"{field} is its writer's alone: {text}"
        else:
            assert strong or ins.opcode.base in ("atom", "red"), f"{field} changes: {text}"


def test_a_fault_record_is_complete_when_it_says_so() -> None:
    program = flatten_module(parse(compile_program(SOURCE).ptx))
    seen = 0
    for function in program.functions():
        body = [one for one in function.body or () if isinstance(one, Instruction)]
        done = [
            ins for ins, field in accesses(function)
            if field == "fault_state" and ins.opcode.base == "st"
        ]  # fmt: skip
        for ins in done:
            seen += 1
            at = next(n for n, one in enumerate(body) if one is ins)
            assert body[at - 1].opcode.text == "membar.sys"
            assert all(one.opcode.base != "st" for one in body[at + 1 :])
    assert seen == 2  # faults and assertions


def test_nothing_is_ordered_in_a_round_of_the_loop() -> None:
    program = flatten_module(parse(compile_program(SOURCE, bounds_checks=False).ptx))
    entry = program.entries()["k"]
    bases = {one.opcode.base for one in entry.body or () if isinstance(one, Instruction)}
    assert not {"membar", "fence"} & bases
    claims = [
        one for one in entry.body or ()
        if isinstance(one, Instruction) and one.opcode.base == "atom" and written(one)
    ]  # fmt: skip
    assert {one.opcode.text for one in claims} == {"atom.global.add.u32"}
