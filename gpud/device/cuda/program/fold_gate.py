"""Has the blocks of a launch open it themselves, so that no gate is in front of it.

Problem: between two launches of a job is a gate (`gpud.device.cuda.launch.gate`), a kernel of one
thread. It takes as long as any kernel: the GPU ends one launch, starts the gate, ends it, and
starts the next, some 2 to 4 us for each launch of a sequence, of which each may take only 20.

Approach: a launch that has no gate is initially *undecided*: its ``next`` is `UNDECIDED`. The
leader of each block looks at ``next`` before anything else. If it is undecided the leader checks
what the gate would, decides, and stores the decision with a compare-and-swap: 0 opens the launch,
``total`` closes it for good. The first to do so decides for all, and if it has opened the launch
writes `CURRENT`. Blocks that come later find it decided: one read of the GPU's memory.

Why one decision: the host concludes from a block that left without having been told to that nothing
is left to claim. So blocks must not decide differently, though the host may set `STOP` or `HELPED`
between two of them.

A closed launch is launched again behind a gate, which opens it whatever ``next`` is.

Order: as in the gate, with memory fences where that has loads that acquire and stores that release,
as programs may be for targets without: ``done`` is read before `HELPED`, ``next`` set before
`CURRENT`. The launch sees the writes of the one before because both are on one stream.

Properties:
* ``once``: a launch is opened at most once, by one block, and only after all task blocks of the one
  before are done and their writes are visible;
* `CURRENT` never decreases, and is written after the launch was opened and before it is over;
* no block waits for another;
* kernels of other forms, those without the structure of `gpud.device.cuda.program.by_value`, and
  all functions are unchanged.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpud.compiler.abi import control_words as cw
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.passes.builder import CodeBuilder, fresh_stem, map_functions, split_declarations
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Module,
    SpecialRegister,
    Symbol,
    Vector,
    immediate,
)
from gpud.device.cuda.launch.gate import CURRENT, STOP
from gpud.device.cuda.program.by_value import JOB_AT, NUMBER, RUN, is_values
from gpud.device.cuda.program.report_blocks import is_persistent

__all__ = ["UNDECIDED", "fold_gates", "folds_gate"]

UNDECIDED: Final = 0xC0000000
"""``next`` of a launch that nobody has opened or closed: more than claims make of any ``total``,
and far from 0, should blocks claim behind a gate that has left such a launch closed."""


def folds_gate(entry: Function) -> bool:
    """Return whether `fold_gates` changes an entry of a program after `pass_by_value`."""
    return is_persistent(entry) and any(is_values(one.name) for one in entry.parameters)


def fold_gates(program: Module) -> Module:
    """Have the persistent kernels of a flat program, after `pass_by_value`, open their launches."""
    stem = fresh_stem(call_graph(program), "gpud_gate")

    def change(function: Function) -> Function:
        return _changed(function, stem) if folds_gate(function) else function

    return map_functions(program, change)


def _changed(entry: Function, stem: str) -> Function:
    values = Symbol(next(one.name for one in entry.parameters if is_values(one.name)))
    code = CodeBuilder(stem)
    over, decide = code.label("over"), code.label("decide")
    yes = code.register("yes", "pred")
    thread, other = code.register("thread"), code.register("other")
    run, job, previous = (code.register(name, "b64") for name in ("run", "job", "previous"))
    number, following, to = (code.register(name) for name in ("number", "next", "to"))
    done, total, stop = (code.register(name) for name in ("done", "total", "stop"))
    code("mov.u32", thread, SpecialRegister("%tid.x"))
    for letter in "yz":
        code("mov.u32", other, SpecialRegister(f"%tid.{letter}"))
        code("or.b32", thread, thread, other)
    code("setp.ne.u32", yes, thread, 0)
    code("bra", over, when=yes)
    code("ld.param.u64", run, Address(values, RUN))
    code("setp.eq.u64", yes, run, 0)
    code("bra", over, when=yes)
    code("ld.param.u64", job, Address(values))
    code("ld.volatile.global.u32", following, Address(job, cw.NEXT))
    code("setp.ne.u32", yes, following, immediate(UNDECIDED))
    code("bra", over, when=yes)
    code("ld.param.u32", number, Address(values, NUMBER))
    code("ld.param.u32", to, Address(values, JOB_AT + cw.TOTAL))
    code("sub.u64", previous, job, cw.JOB_BYTES)
    code("ld.volatile.global.u32", done, Address(previous, cw.DONE))
    code("ld.volatile.global.u32", total, Address(previous, cw.TOTAL))
    code("setp.ne.u32", yes, done, total)
    code("bra", decide, when=yes)
    code("membar.sys")
    code("ld.volatile.global.v2.u32", Vector((stop, other)), Address(run, STOP * 4))
    code("setp.ne.u32", yes, stop, 0)
    code("bra", decide, when=yes)
    code("setp.eq.u32", yes, other, number)
    code("bra", decide, when=yes)
    code("mov.u32", to, 0)
    code.place(decide)
    code("atom.global.cas.b32", following, Address(job, cw.NEXT), immediate(UNDECIDED), to)
    code("setp.ne.u32", yes, following, immediate(UNDECIDED))
    code("bra", over, when=yes)
    code("setp.ne.u32", yes, to, 0)
    code("bra", over, when=yes)
    code("membar.sys")
    code("st.volatile.global.u32", Address(run, CURRENT * 4), number)
    code.place(over)
    declarations, body = split_declarations(entry.body or [])
    return replace(entry, body=[*declarations, *code.declarations, *code.body, *body])
