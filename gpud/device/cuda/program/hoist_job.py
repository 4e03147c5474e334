"""Hoists the load of a kernel's job record address: once, not in each round of its loop.

Problem: a kernel's hidden parameter is the address of its launch record, which may lie in host
memory (`gpud.device.cuda.launch.release_path`), and the job record's address stands there. Every
thread of a kernel in persistent form loads it in every round, as a constant. ptxas moves the load
in front of the loop where it has registers to spare; elsewhere each warp asks anew for each task
block, and what no cache has kept comes over the bus.

Approach: `hoist_job_address` has the load in front of the loop always. That takes two registers
through the body where ptxas would have saved them. In shared memory it would take none, but there a
kernel
could change it: shared accesses are not fenced on a GPU, and the loop's own go where it points.
The CPU device is better off as it is, so only programs for a GPU are changed, as they are loaded.

Properties:
* ``one access``: in persistent form the loop's ``job`` is loaded once by each thread;
* kernels of other forms, and all functions, stay as they are.

It assembles for sm_75 and later; it has not run on a GPU yet.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import CONTROL
from gpud.compiler.passes.builder import CodeBuilder, map_functions
from gpud.compiler.passes.forms.persistent import split_declarations
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Register,
    Statement,
    Symbol,
)
from gpud.device.cuda.program.report_starts import is_persistent

__all__ = ["hoist_job_address"]


def hoist_job_address(program: Module) -> Module:
    """``program``, flat, whose kernels in persistent form load their job's address once."""

    def change(function: Function) -> Function:
        return _changed(function) if is_persistent(function) else function

    return map_functions(program, change)


def _changed(entry: Function) -> Function:
    control = Symbol(entry.parameters[-1].name)
    # Names as the loop's own have: no user's begin so.
    code = CodeBuilder(control.name.removesuffix(CONTROL) + "_near")
    ctl, job = code.register("control", "b64"), code.register("job", "b64")
    code("ld.param.u64", ctl, Address(control))
    code("ld.global.nc.u64", job, Address(ctl, cw.JOB))
    again = CodeBuilder(code.stem)
    from_record = Address(Register(f"%{control.name}"), cw.JOB)
    declarations, rest = split_declarations(entry.body or [])
    body: list[Statement] = []
    for statement in rest:
        if (
            isinstance(statement, Instruction)
            and statement.opcode.text == "ld.global.nc.u64"
            and statement.operands[1] == from_record
        ):
            again("mov.u64", statement.operands[0], job)
            body.append(again.body[-1])
        else:
            body.append(statement)
    return replace(entry, body=[*declarations, *code.declarations, *code.body, *body])
