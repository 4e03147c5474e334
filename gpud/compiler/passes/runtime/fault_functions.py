"""The functions that record a fault and end the thread, as PTX.

Problem: what a thread does when it has found a mistake is the same everywhere, and rare: it must
cost the code that finds none nothing.

Approach: three functions in the module, written here as PTX text with the offsets of
`gpud.compiler.abi.control_words`. Their arguments are in registers, so a call is one instruction.

Terms: *context*, the first three arguments: ``ctl``, the address of the launch record (0: there is
none, then it just traps); ``claim``, the number of the task block that is running, or `NOTHING`
where the launch record and ``%ctaid`` tell; ``slots``, an address in the persistent loop's slots in
shared memory, or `NOTHING` where there is no such loop.

Algorithm. To record: change the record's state from 0 to 1; who succeeds writes the rest, and the
state 2 after a fence. To leave: raise ``job.next`` to ``job.total``, so that no block claims
anything more; write `NOTHING` to both slots, and that the block holds nothing, so that the rest of
this block leaves when it comes to the loop's head; the leader counts its block out, since nobody
else will; exit.

Properties:
* ``first_wins``: one fault of a job is recorded, and complete when its state says so;
* ``stops``: nothing is claimed after it, by this job's blocks, and this one forgets what it holds.
  Task blocks that its leader was just claiming may still run, without the thread that failed, and
  so may those that other blocks hold: their job has failed;
* the task block with the fault is not counted as done; nor is the one before in the same block, if
  a fast thread fails before the leader has counted.

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
"""``.noreturn`` appeared in PTX 6.4."""

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
    """The functions by name, each after those that it calls; not to be changed."""
    head = f".version {VERSION[0]}.{VERSION[1]}\n.target sm_75\n.address_size 64\n"
    module = flatten_module(parse(head + _LEAVE + _FAULT + _ASSERT))
    return {function.name: function for function in module.functions()}
