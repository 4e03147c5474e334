"""Kernels whose blocks report that they start, and on which SM.

Problem: how long a job waited for room is known only if something says that its first task block
has begun; and the host can have whole SMs come free only if it knows which block is on which SM
(`gpud.device.cuda.placement.release_order`). Nothing else in the control words tells either.

Approach: `report_starts` puts some instructions in front of a rewritten kernel: in persistent form
each block stores the number of its SM to the status record, in other forms, which have as many
blocks as the user asked for, the first block stores that it has begun. The host reads that without
asking the driver. Nobody waits for the stores, and no round of the persistent loop does anything.
The CPU device knows by itself where blocks are, so only programs for a GPU are changed, as they are
loaded.

Terms: the *first block* is the one with ``%ctaid.x`` 0 of a launch: GPUs start blocks in order.

Properties:
* ``once``: each word is stored by the threads with ``%tid.x`` 0 of one block, who all say the same;
* kernels without the hidden parameter, and all functions, stay as they are.

A block that the GPU moves to another SM, as a debugger may, goes on under the number of the first:
the host then frees the wrong SM, but no block too few or too many.

It assembles for sm_75 and later; it has not run on a GPU yet.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import CONTROL, is_slots
from gpud.compiler.passes.builder import CodeBuilder, fresh_stem, map_functions
from gpud.compiler.passes.forms.persistent import split_declarations
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Module,
    SpecialRegister,
    Symbol,
    Variable,
)

__all__ = ["is_persistent", "is_rewritten", "report_starts"]


def is_rewritten(entry: Function) -> bool:
    """Whether an entry has the hidden parameter that the rewriter adds."""
    return bool(entry.parameters) and entry.parameters[-1].name.rstrip("_").endswith(CONTROL)


def is_persistent(entry: Function) -> bool:
    """Whether an entry is in persistent form."""
    return any(isinstance(one, Variable) and is_slots(one.name) for one in entry.body or ())


def report_starts(program: Module) -> Module:
    """``program``, flat, with every rewritten kernel reporting when it begins."""
    stem = fresh_stem(program, "gpud_begun")

    def change(function: Function) -> Function:
        if function.kind != "entry" or function.body is None or not is_rewritten(function):
            return function
        code = CodeBuilder(stem)
        control, status = code.register("control", "b64"), code.register("status", "b64")
        block, thread = code.register("block"), code.register("thread")
        tells = code.register("tells", "pred")
        code("ld.param.u64", control, Address(Symbol(function.parameters[-1].name)))
        code("mov.u32", block, SpecialRegister("%ctaid.x"))
        code("mov.u32", thread, SpecialRegister("%tid.x"))
        if is_persistent(function):
            sm, place = code.register("sm"), code.register("place", "b64")
            code("setp.eq.u32", tells, thread, 0)
            code("mov.u32", sm, SpecialRegister("%smid"))
            code("add.u32", sm, sm, 1)
            code("ld.global.nc.u64", status, Address(control, cw.STATUS), when=tells)
            code("mad.wide.u32", place, block, 2, status, when=tells)
            code("st.volatile.global.u16", Address(place, cw.SM), sm, when=tells)
        else:
            code("or.b32", block, block, thread)
            code("setp.eq.u32", tells, block, 0)
            code("ld.global.nc.u64", status, Address(control, cw.STATUS), when=tells)
            code("st.volatile.global.u32", Address(status, cw.BEGUN), 1, when=tells)
        declarations, rest = split_declarations(function.body)
        return replace(function, body=[*declarations, *code.declarations, *code.body, *rest])

    return map_functions(program, change)
