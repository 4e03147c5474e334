"""Has persistent blocks count the task blocks that they have done once for each chunk.

Problem: a persistent block counts each task block that it has done with an atomic on a word that
all blocks of the job share. Short task blocks are claimed several at a time, and counted singly.

Approach: the leader counts in a word of shared memory, and adds that to ``done`` when it has
reached ``chunk``, and when the block leaves. Where ``chunk`` is 1, each is added at once. Nobody
waits for the atomic in either case; a GPU has to show whether fewer of them are worth the
instructions, so devices do it only if told to (`gpud.device.cuda.program.variants`).

Properties:
* ``complete``: what a block has done is in ``done`` when it has left, unless it was killed or has
  failed: then up to ``chunk`` - 1 task blocks of each block are missing, which end with an error;
* ``done`` never exceeds what is done, and is late by less than ``chunk`` for each block;
* kernels of other forms, those without the structure of `gpud.device.cuda.program.by_value`, and
  all functions are unchanged.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi import control_words as cw
from gpud.compiler.passes.builder import CodeBuilder, map_functions, split_declarations
from gpud.compiler.passes.forms.persistent import claim_and_slot
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Register,
    Statement,
    Symbol,
    Variable,
    immediate,
)
from gpud.device.cuda.program.by_value import JOB_AT, is_values
from gpud.device.cuda.program.report_blocks import is_persistent

__all__ = ["count_chunks"]

_COUNT = "red.global.add.u32"


def count_chunks(program: Module) -> Module:
    """Have the persistent kernels of a flat program, after `pass_by_value`, count by chunks."""

    def change(function: Function) -> Function:
        values = next((p.name for p in function.parameters if is_values(p.name)), None)
        if values is None or not is_persistent(function):
            return function
        return _changed(function, Symbol(values))

    return map_functions(program, change)


def _changed(entry: Function, values: Symbol) -> Function:
    stem = f"{entry.parameters[-1].name}_counts"
    code = CodeBuilder(stem)
    held = Variable("shared", "b8", f"{stem}_word", (4,), align=4)
    claim, _ = claim_and_slot(entry)
    declarations, statements = split_declarations(entry.body or [])
    body: list[Statement] = []
    for statement in statements:
        if _counts(statement):
            assert isinstance(statement, Instruction)
            _emit_count(code, statement, Symbol(held.name), claim, values)
            body += code.body
            code.body = []
        else:
            body.append(statement)
    # Every thread stores the same value, before the first barrier.
    at, none = code.register("at"), code.register("count")
    code("mov.u32", at, Symbol(held.name))
    code("mov.u32", none, 0)
    code("st.shared.u32", Address(at), none)
    return replace(entry, body=[*declarations, held, *code.declarations, *code.body, *body])


def _counts(statement: Statement) -> bool:
    """Return whether the loop counts the previous task block here."""
    return (
        isinstance(statement, Instruction)
        and statement.opcode.text == _COUNT
        and isinstance(statement.operands[0], Address)
        and statement.operands[0].offset == cw.DONE
        and statement.operands[1] == immediate(1)
        and statement.guard is not None
    )


def _emit_count(
    code: CodeBuilder, count: Instruction, held: Symbol, claim: Register, values: Symbol
) -> None:
    """Append what replaces ``count``, whose guard is true in a leader that has done one."""
    assert count.guard is not None
    counted = count.guard.register
    place = count.operands[0]
    several, full, over = (code.register(name, "pred") for name in ("several", "full", "over"))
    chunk, at, done = code.register("chunk"), code.register("at"), code.register("count")
    many, joined = code.label("many"), code.label("joined")
    code("ld.param.u32", chunk, Address(values, JOB_AT + cw.CHUNK))
    code("setp.ne.u32", several, chunk, 1)
    code("bra", many, when=several)
    code.body.append(count)
    code("bra", joined)
    code.place(many)
    code("bra", joined, unless=counted)
    code("mov.u32", at, held)
    code("ld.shared.u32", done, Address(at))
    code("add.u32", done, done, 1)
    code("setp.ge.u32", full, done, chunk)
    code("setp.eq.u32", over, claim, immediate(cw.NOTHING))
    code("or.pred", full, full, over)
    code(_COUNT, place, done, when=full)
    code("mov.u32", done, 0, when=full)
    code("st.shared.u32", Address(at), done)
    code.place(joined)
