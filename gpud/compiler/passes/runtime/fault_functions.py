"""The runtime functions, in PTX, that record a fault and end the thread.

Problem: the handling of a fault is the same everywhere, and faults are rare: it must add no cost to
code without faults.

Approach: three functions are added to the module, written here as PTX text with the offsets of
`gpud.compiler.abi.control_words`. Their arguments are in registers, so a call is one instruction.

Terms: *context*, the first three arguments: ``ctl``, the address of the launch record (0: there is
none, and the thread just traps); ``claim``, the number of the running task block, or `NOTHING` if
it follows from the launch record and ``%ctaid``; ``slots``, an address in the persistent loop's
slots in shared memory, or `NOTHING` if there is no such loop.

Algorithm. To record: change the record's state from 0 to 1; the thread that succeeds writes the
rest and, after a memory fence, the state 2. To leave: raise ``job.next`` to ``job.total``, so that
no block claims any more task blocks; write `NOTHING` to both slots, and 0 to the last task block
held, so that the rest of this block leaves at the loop's head; the leader subtracts its block from
``live``, since it does not reach the loop's leave block; exit.

Properties:
* ``first_wins``: one fault of a job is recorded, and it is complete when its state says so;
* ``stops``: blocks of the job claim nothing after a fault, and this block drops what it holds. Task
  blocks that its leader was just claiming may still run, without the failed thread, and so may
  those that other blocks hold: the job has failed anyway;
* the task block with the fault is not counted as done; nor is the previous one in the same block,
  if a fast thread fails before the leader has counted it.

Source: PTX ISA 9.0, sections 7.1 (functions), 9.7.13 (barriers do not wait for exited threads).
"""

from __future__ import annotations

from functools import cache

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi import fault_record as fault
from gpud.compiler.abi.reserved_names import ASSERT, FAULT, LEAVE
from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import Function
from gpud.compiler.ptx.parser import parse

__all__ = ["VERSION", "fault_functions"]

VERSION = (6, 4)
"""The PTX version that the functions need: ``.noreturn`` appeared in PTX 6.4."""

_CONTEXT = ".reg .b64 %ctl, .reg .b32 %claim, .reg .b32 %slots"
_NOTHING = str(words.NOTHING)

_LEAVE = f"""
.func {LEAVE}({_CONTEXT})
.noreturn
{{
    .reg .b64 %job, %status; .reg .b32 %total, %slot, %thread, %other; .reg .pred %none;
    setp.eq.s64 %none, %ctl, 0;
    @%none trap;
    ld.global.u64 %job, [%ctl+{words.JOB}];
    ld.global.u32 %total, [%job+{words.TOTAL}];
    red.global.max.u32 [%job+{words.NEXT}], %total;
    setp.eq.u32 %none, %slots, {_NOTHING};
    @%none bra $gone;
    and.b32 %slot, %slots, -8;
    st.shared.u32 [%slot], {_NOTHING};
    st.shared.u32 [%slot+4], {_NOTHING};
    st.shared.u32 [%slot+8], 0;
    membar.cta;
    mov.u32 %thread, %tid.x;
    mov.u32 %other, %tid.y;
    or.b32 %thread, %thread, %other;
    mov.u32 %other, %tid.z;
    or.b32 %thread, %thread, %other;
    setp.ne.u32 %none, %thread, 0;
    @%none bra $gone;
    ld.global.u64 %status, [%ctl+{words.STATUS}];
    red.global.add.u32 [%status+{words.LIVE}], -1;
$gone:
    exit;
}}
"""

_RECORD = f"""
    .reg .b64 %job; .reg .b32 %state, %place, %extent, %other; .reg .pred %no;
    setp.eq.s64 %no, %ctl, 0;
    @%no trap;
    ld.global.u64 %job, [%ctl+{words.JOB}];
    atom.global.cas.b32 %state, [%job+{fault.STATE}], {fault.NO_FAULT}, 1;
    setp.ne.u32 %no, %state, {fault.NO_FAULT};
    @%no bra $leave;
    mov.u32 %place, %claim;
    setp.ne.u32 %no, %slots, {_NOTHING};
    @%no bra $known;
    mov.u32 %place, %ctaid.z;
    mov.u32 %extent, %nctaid.y;
    mov.u32 %other, %ctaid.y;
    mad.lo.u32 %place, %place, %extent, %other;
    mov.u32 %extent, %nctaid.x;
    mov.u32 %other, %ctaid.x;
    mad.lo.u32 %place, %place, %extent, %other;
    ld.global.u32 %other, [%ctl+{words.BASE}];
    add.u32 %place, %place, %other;
$known:
    st.global.u32 [%job+{fault.CLAIM}], %place;
    mov.u32 %other, %tid.x;
    st.global.u32 [%job+{fault.THREAD}], %other;
    mov.u32 %other, %tid.y;
    st.global.u32 [%job+{fault.THREAD + 4}], %other;
    mov.u32 %other, %tid.z;
    st.global.u32 [%job+{fault.THREAD + 8}], %other;
    st.global.u32 [%job+{fault.SITE}], %site;
"""

_RECORDED = f"""
    membar.sys;
    st.volatile.global.u32 [%job+{fault.STATE}], {fault.COMPLETE};
$leave:
    call {LEAVE}, (%ctl, %claim, %slots);
    trap;
}}
"""

_FAULT = f"""
.func {FAULT}({_CONTEXT}, .reg .b32 %kind, .reg .b32 %site, .reg .b64 %address)
.noreturn
{{{_RECORD}
    st.global.u32 [%job+{fault.KIND}], %kind;
    st.global.u64 [%job+{fault.ADDRESS}], %address;
{_RECORDED}"""

_ASSERT = f"""
.func {ASSERT}({_CONTEXT}, .reg .b32 %site, .reg .b64 %message, .reg .b64 %file,
    .reg .b32 %line, .reg .b64 %function)
.noreturn
{{{_RECORD}
    st.global.u32 [%job+{fault.KIND}], {fault.FaultKind.ASSERT.value};
    st.global.u32 [%job+{fault.LINE}], %line;
    st.global.u64 [%job+{fault.ADDRESS}], %message;
    st.global.u64 [%job+{fault.FILE}], %file;
    st.global.u64 [%job+{fault.FUNCTION}], %function;
{_RECORDED}"""


@cache
def fault_functions() -> dict[str, Function]:
    """Return the functions by name, each after those it calls. Callers must not change them."""
    head = f".version {VERSION[0]}.{VERSION[1]}\n.target sm_75\n.address_size 64\n"
    module = flatten_module(parse(head + _LEAVE + _FAULT + _ASSERT))
    return {function.name: function for function in module.functions()}
