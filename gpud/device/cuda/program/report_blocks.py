"""Makes kernels report that their blocks begin, on which SM, and that they have left.

Problem: how long a job waited for room is known only if its first task block reports that it has
begun; the host can empty whole SMs only if it knows which block is on which SM
(`gpud.device.cuda.placement.release_order`); and the persistent loop counts the blocks that leave
down in one word: over a bus, a round trip for each, one after the other.

Approach: `report_blocks` inserts some instructions at the entry of a rewritten kernel: in
persistent form each block stores the number of its SM to the status record; in other forms, which
have as many blocks as the user asked for, the first block stores that it has begun. Where the loop
counts a block that leaves, it stores a mark of its own instead, and the host counts the marks.
Nothing waits for the stores, and the rest of the loop is unchanged. The CPU device knows where
blocks are and shares memory with them, so only programs for a GPU are changed, as they are loaded.

Terms: the *first block* is the one with ``%ctaid.x`` 0 of a launch: GPUs start blocks in order.

Properties:
* ``no atomics``: no rewritten kernel has an atomic on the status record;
* ``once``: each word is stored by the threads with ``%tid.x`` 0 of one block, all with the same
  value;
* kernels without the hidden parameter, and all functions, are unchanged.

A block that the GPU moves to another SM, as a debugger may, keeps the number of the first: the host
then frees the wrong SM, but no block too few or too many.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import CONTROL, is_slots
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.passes.builder import CodeBuilder, fresh_stem, map_functions, split_declarations
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Register,
    SpecialRegister,
    Statement,
    Symbol,
    Variable,
    immediate,
)

__all__ = ["is_persistent", "is_rewritten", "report_blocks"]

_COUNT = "red.global.add.u32"


def is_rewritten(entry: Function) -> bool:
    """Return whether an entry has the hidden parameter that the rewriter adds."""
    return bool(entry.parameters) and entry.parameters[-1].name.rstrip("_").endswith(CONTROL)


def is_persistent(entry: Function) -> bool:
    """Return whether an entry is in persistent form."""
    return any(isinstance(one, Variable) and is_slots(one.name) for one in entry.body or ())


def report_blocks(program: Module) -> Module:
    """Have every rewritten kernel of a flat program report its blocks."""
    stem = fresh_stem(call_graph(program), "gpud_begun")

    def change(function: Function) -> Function:
        if function.kind != "entry" or function.body is None or not is_rewritten(function):
            return function
        code = CodeBuilder(stem)
        block, thread = code.register("block"), code.register("thread")
        reports = code.register("reports", "pred")
        code("mov.u32", block, SpecialRegister("%ctaid.x"))
        code("mov.u32", thread, SpecialRegister("%tid.x"))
        if is_persistent(function):
            sm, place = code.register("sm"), code.register("place", "b64")
            code("setp.eq.u32", reports, thread, 0)
            code("mov.u32", sm, SpecialRegister("%smid"))
            code("add.u32", sm, sm, 1)
            status = _load_status(code, function, when=reports)
            code("mad.wide.u32", place, block, 2, status, when=reports)
            code("st.volatile.global.u16", Address(place, cw.SM), sm, when=reports)
        else:
            code("or.b32", block, block, thread)
            code("setp.eq.u32", reports, block, 0)
            status = _load_status(code, function, when=reports)
            code("st.volatile.global.u32", Address(status, cw.BEGUN), 1, when=reports)
        declarations, rest = split_declarations(function.body)
        begins, code.body = code.body, []
        rest = [one for statement in rest for one in _left(code, statement)]
        return replace(function, body=[*declarations, *code.declarations, *begins, *rest])

    return map_functions(program, change)


def _load_status(code: CodeBuilder, entry: Function, *, when: Register | None = None) -> Register:
    """Append the load of the status record's address, in threads with ``when``; its register."""
    control, status = code.register("control", "b64"), code.register("status", "b64")
    code("ld.param.u64", control, Address(Symbol(entry.parameters[-1].name)))
    code("ld.global.nc.u64", status, Address(control, cw.STATUS), when=when)
    return status


def _left(code: CodeBuilder, statement: Statement) -> list[Statement]:
    """Return a mark of the block instead of a count of those that have left."""
    if not isinstance(statement, Instruction) or statement.opcode.text != _COUNT:
        return [statement]
    address, value = statement.operands
    if not isinstance(address, Address) or (address.offset, value) != (cw.LIVE, immediate(-1)):
        return [statement]
    block, place = code.register("block"), code.register("place", "b64")
    count = code.register("count")
    # Written again: a register of the entry's would be live through the body.
    code("mov.u32", block, SpecialRegister("%ctaid.x"))
    code("mov.u32", count, SpecialRegister("%nctaid.x"))
    code("mad.lo.u32", block, count, 2, block)
    code("sub.u32", block, block, 2)  # the offset below is that of one block of one
    code("cvt.u64.u32", place, block)
    assert isinstance(address.base, Register)
    code("add.u64", place, place, address.base)
    code("mov.u32", count, 1)
    code("st.volatile.global.u8", Address(place, cw.left_at(1)), count)
    made, code.body = code.body, []
    return made
