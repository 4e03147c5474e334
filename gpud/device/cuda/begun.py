"""Kernels that tell when they begin: a word of the launch record, set by the first block.

Problem: how long a job waited for room is known only if something says that its first task block
has begun; nothing in the control words changes before a block has ended, but for the counter of
claims, which lies in device memory, behind a copy for each look.

Approach: `telling` puts six instructions in front of a rewritten kernel: a few threads of the first
block store to the launch record, which the host reads without asking the driver. Nobody waits
for the store, and no other block, and no round of the persistent loop, does anything. The CPU
device knows by itself when blocks begin, so only programs for a GPU are changed, as they are
loaded.

Terms: the *first block* is the one with ``%ctaid.x`` 0 of a launch: GPUs start blocks in order.

Properties:
* ``once``: stores are those of one block of each launch, of those of its threads with ``%tid.x`` 0;
* kernels without the hidden parameter, and all functions, stay as they are.

It assembles for sm_75 and later; it has not run on a GPU yet.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler import control_words as cw
from gpud.compiler.names import CONTROL
from gpud.compiler.passes.build import Code, change_functions, fresh_stem
from gpud.compiler.passes.persistent import parted
from gpud.compiler.ptx.model import Address, Function, Module, SpecialRegister, Symbol

__all__ = ["is_rewritten", "telling"]


def is_rewritten(entry: Function) -> bool:
    """Whether an entry has the hidden parameter that the rewriter adds."""
    return bool(entry.parameters) and entry.parameters[-1].name.rstrip("_").endswith(CONTROL)


def telling(program: Module) -> Module:
    """``program``, flat, with every rewritten kernel telling when it begins."""
    stem = fresh_stem(program, "gpud_begun")

    def change(function: Function) -> Function:
        if function.kind != "entry" or function.body is None or not is_rewritten(function):
            return function
        control = function.parameters[-1]
        code = Code(stem)
        block, thread = code.register("block"), code.register("thread")
        first, address = code.register("first", "pred"), code.register("control", "b64")
        code("mov.u32", block, SpecialRegister("%ctaid.x"))
        code("mov.u32", thread, SpecialRegister("%tid.x"))
        code("or.b32", block, block, thread)
        code("setp.eq.u32", first, block, 0)
        code("ld.param.u64", address, Address(Symbol(control.name)))
        code("st.volatile.global.u32", Address(address, cw.BEGUN), 1, when=first)
        declarations, rest = parted(function.body)
        return replace(function, body=[*declarations, *code.declarations, *code.body, *rest])

    return change_functions(program, change)
