"""Hoists the load of a kernel's job record address out of its persistent loop.

Problem: a kernel's hidden parameter is the address of its launch record, which may lie in host
memory (`gpud.device.cuda.launch.release_path`), and the launch record has the job record's address.
Every thread of a kernel in persistent form loads it in every iteration, as a constant. ptxas hoists
the load where it has registers to spare; elsewhere each warp loads it again for each task block,
over the bus unless it is cached.

Approach: `hoist_job_address` always places the load before the loop. That keeps two registers live
through the body where ptxas would have saved them. Shared memory would take none, but a kernel
could change it there: shared accesses are not checked on a GPU, and the loop's own accesses go
where it points. The CPU device does better without this, so only programs for a GPU are changed, as
they are loaded.

Properties:
* ``one access``: in persistent form the loop's ``job`` is loaded once by each thread;
* kernels of other forms, and all functions, are unchanged.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi import control_words as cw
from gpud.compiler.abi.reserved_names import CONTROL
from gpud.compiler.passes.builder import CodeBuilder, map_functions, split_declarations
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
    """Load the job record's address once in each persistent kernel of a flat program."""

    def change(function: Function) -> Function:
        return _changed(function) if is_persistent(function) else function

    return map_functions(program, change)


def _changed(entry: Function) -> Function:
    control = Symbol(entry.parameters[-1].name)
    # The prefix of the loop's own names, which no user's name has.
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
