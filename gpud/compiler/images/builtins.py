"""Functions of NVIDIA's device library that gpud has itself: those that synchronise the grid.

Programs that are compiled separately call them instead of having their code: cooperative groups in
Numba, for instance. Linked, they are the code that CUDA C++ has in place, so that kernels that use
them are recognised and rewritten in the same way.

The workspace, whose address the driver puts into two registers, has a count of arrivals at its
second word. The first block of the grid adds what lets the highest bit flip when all have arrived;
the others add one.

Source: CUDA 13.0, ``cooperative_groups/details/driver_abi.h`` (scopes, registers) and ``sync.h``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse

__all__ = ["builtin_functions", "names_builtins"]

_TEXT = """
.version 7.0
.target sm_70
.address_size 64
.visible .func (.param .b64 handle) cudaCGGetIntrinsicHandle(.param .b32 scope)
{
    .reg .b32 %scope, %high, %low;
    .reg .b64 %at;
    .reg .pred %grid;
    ld.param.b32 %scope, [scope];
    mov.b64 %at, 0;
    setp.eq.u32 %grid, %scope, 1;
    @!%grid bra $done;
    mov.u32 %high, %envreg1;
    mov.u32 %low, %envreg2;
    mov.b64 %at, {%low, %high};
$done:
    st.param.b64 [handle], %at;
    ret;
}
.visible .func (.param .b32 status) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)
{
    .reg .b64 %at;
    .reg .b32 %x, %y, %z, %wide, %high, %blocks, %place, %add, %before, %now;
    .reg .pred %first, %none, %waits;
    ld.param.b64 %at, [handle];
    setp.eq.u64 %none, %at, 0;
    @%none bra $refused;
    barrier.sync 0;
    mov.u32 %x, %tid.x;
    mov.u32 %y, %tid.y;
    mov.u32 %z, %tid.z;
    or.b32 %place, %x, %y;
    or.b32 %place, %place, %z;
    setp.ne.u32 %first, %place, 0;
    @%first bra $arrived;
    mov.u32 %blocks, %nctaid.x;
    mov.u32 %wide, %nctaid.y;
    mov.u32 %high, %nctaid.z;
    mul.lo.u32 %blocks, %blocks, %wide;
    mul.lo.u32 %blocks, %blocks, %high;
    mov.u32 %x, %ctaid.x;
    mov.u32 %y, %ctaid.y;
    mov.u32 %z, %ctaid.z;
    or.b32 %place, %x, %y;
    or.b32 %place, %place, %z;
    setp.eq.u32 %first, %place, 0;
    sub.u32 %add, -2147483647, %blocks;
    selp.b32 %add, %add, 1, %first;
    membar.gl;
    atom.global.add.u32 %before, [%at+4], %add;
$again:
    ld.volatile.global.u32 %now, [%at+4];
    xor.b32 %now, %now, %before;
    setp.ge.s32 %waits, %now, 0;
    @%waits bra $again;
    membar.gl;
$arrived:
    barrier.sync 0;
    st.param.b32 [status], 0;
    ret;
$refused:
    st.param.b32 [status], 1;
    ret;
}
"""


def builtin_functions(names: Collection[str]) -> Module | None:
    """Return a program with those functions of ``names`` that are built in; None: none is."""
    known = _parsed()
    wanted = [item for item in known.functions() if item.name in names]
    return replace(known, items=[*wanted]) if wanted else None


def names_builtins(text: str) -> bool:
    """Return whether a program may use one: a quick look at its text."""
    return "cudaCG" in text


@cache
def _parsed() -> Module:
    return parse(_TEXT)
