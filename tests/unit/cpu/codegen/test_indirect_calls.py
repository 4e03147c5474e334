"""Jumps through tables and calls through pointers: legal ones run, others fail only their job."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpud.compiler.pipeline import compile_program
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.device.interface import Form
from gpud.errors import GpudError, KernelTrap
from tests.unit.cpu.codegen.checked_arena import HEAD, Arena

JUMP = (
    HEAD
    + """
.visible .entry k(.param .u64 out, .param .u32 index, .param .u32 hold) {
  .reg .b64 %o; .reg .b32 %i, %h, %v; .reg .pred %p;
  ld.param.u64 %o, [out]; ld.param.u32 %i, [index]; ld.param.u32 %h, [hold];
  setp.ne.u32 %p, %h, 0;
  mov.u32 %v, 9;
T: .branchtargets A, B, A;
  GUARD brx.idx %i, T;
  mov.u32 %v, 7;
  bra END;
A: mov.u32 %v, 1;
  bra END;
B: mov.u32 %v, 2;
END:
  st.global.u32 [%o], %v;
  ret;
}
"""
)

CALLS = (
    HEAD
    + """
.func (.param .b32 r) one(.param .b32 x);
.func (.param .b32 r) two(.param .b32 x);
.func other();
.visible .entry k(.param .u64 out, .param .u64 pointer, .param .u32 which) {
  .reg .b64 %o, %f; .reg .b32 %w, %v; .reg .pred %p;
  ld.param.u64 %o, [out]; ld.param.u64 %f, [pointer]; ld.param.u32 %w, [which];
  setp.eq.u32 %p, %w, 1;
  @%p mov.u64 %f, one;
  setp.eq.u32 %p, %w, 2;
  @%p mov.u64 %f, two;
  setp.eq.u32 %p, %w, 3;
  @%p mov.u64 %f, other;
  setp.ne.u32 %p, %w, 4;
P: .callprototype (.param .b32 r) _ (.param .b32 x);
L: .calltargets one;
  {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], 40;
    @%p call (b), %f, (a), LIST;
    ld.param.b32 %v, [b];
  }
  selp.b32 %v, %v, 5, %p;
  st.global.u32 [%o], %v;
  ret;
}
.func (.param .b32 r) one(.param .b32 x) {
  .reg .b32 %x; ld.param.b32 %x, [x]; add.u32 %x, %x, 1; WAIT st.param.b32 [r], %x; ret;
}
.func (.param .b32 r) two(.param .b32 x) {
  .reg .b32 %x; ld.param.b32 %x, [x]; add.u32 %x, %x, 2; st.param.b32 [r], %x; ret;
}
.func other() { ret; }
"""
)
RECURSION = (
    HEAD
    + """
.func (.param .b32 r) down(.param .b32 x);
.visible .entry k(.param .u64 out, .param .u32 deep, .param .u32 unused) {
  .reg .b64 %o, %f; .reg .b32 %d, %v;
  ld.param.u64 %o, [out]; ld.param.u32 %d, [deep];
  mov.u64 %f, down;
P: .callprototype (.param .b32 r) _ (.param .b32 x);
  {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %d;
    call (b), %f, (a), P;
    ld.param.b32 %v, [b];
  }
  st.global.u32 [%o], %v;
  ret;
}
.func (.param .b32 r) down(.param .b32 x) {
  .reg .b32 %x; .reg .b64 %f; .reg .pred %p;
  ld.param.b32 %x, [x];
  setp.eq.u32 %p, %x, 0;
  @%p bra END;
  sub.u32 %x, %x, 1;
  mov.u64 %f, down;
P: .callprototype (.param .b32 r) _ (.param .b32 x);
  {
    .param .b32 a; .param .b32 b;
    st.param.b32 [a], %x;
    call (b), %f, (a), P;
    ld.param.b32 %x, [b];
  }
  add.u32 %x, %x, 2;
END:
  st.param.b32 [r], %x;
  ret;
}
"""
)
FORGED = (0, 1 << 20, 12345, 2**64 - 1)


def ran(world: Arena, program: str, first: Any, second: int, form: Form) -> GpudError | None:
    """Run one thread with two arguments; what it failed with."""
    world.bytes[:] = 0
    return world.run(program, world.base, first, np.uint32(second), form=form, block=1)


@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize("guard", ["", "@%p", "@!%p"])
def test_jumps(world: Arena, form: Form, guard: str) -> None:
    program = JUMP.replace("GUARD", guard)
    for hold in (0, 1):
        jumps = guard == "" or bool(hold) == (guard == "@%p")
        for index, value in enumerate((1, 2, 1)):
            assert ran(world, program, np.uint32(index), hold, form) is None
            assert world.words()[0] == (value if jumps else 7)
        for index in (3, 4, 2**31, 2**32 - 1):
            error = ran(world, program, np.uint32(index), hold, form)
            if jumps:
                assert isinstance(error, KernelTrap)
                assert f"jump or call to {index:#x}, which is none of its targets" in error.cause
                assert error.thread == (0, 0, 0)
                assert error.site is not None
            assert world.words()[0] == (0 if jumps else 7)


@pytest.mark.parametrize("form", ["persistent", "sliced"])
@pytest.mark.parametrize("wait", ["", "bar.warp.sync 1;"])
@pytest.mark.parametrize("targets", ["P", "L"])
def test_calls(world: Arena, form: Form, wait: str, targets: str) -> None:
    program = CALLS.replace("WAIT", wait).replace("LIST", targets)
    assert ran(world, program, 0, 1, form) is None
    assert world.words()[0] == 41
    error = ran(world, program, 0, 2, form)
    if targets == "P":
        assert error is None
        assert world.words()[0] == 42
    else:  # it is a function that the call does not list
        assert isinstance(error, KernelTrap)
    assert isinstance(ran(world, program, 0, 3, form), KernelTrap)  # it takes other arguments
    for pointer in FORGED:
        error = ran(world, program, pointer, 0, form)
        assert isinstance(error, KernelTrap)
        assert f"jump or call to {pointer:#x}, which is none of its targets" in error.cause
        assert world.words()[0] == 0
        assert ran(world, program, pointer, 4, form) is None  # the call is not made
        assert world.words()[0] == 5


@pytest.mark.parametrize("form", ["persistent", "sliced"])
def test_recursion_through_pointers(world: Arena, form: Form) -> None:
    for deep in (0, 1, 50):
        assert ran(world, RECURSION, np.uint32(deep), 0, form) is None
        assert world.words()[0] == 2 * deep
    assert isinstance(ran(world, RECURSION, np.uint32(1 << 30), 0, form), KernelTrap)
    assert world.words()[0] == 0


@pytest.mark.skipif(find_ptxas() is None, reason="there is no ptxas")
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_it_assembles(arch: str) -> None:
    for program in (JUMP.replace("GUARD", "@!%p"), CALLS.replace("WAIT", "").replace("LIST", "L")):
        assert "k" in assemble(compile_program(program).ptx, arch)


def test_programs_without_either_are_unchanged() -> None:
    quiet = 'extern "C" __global__ void quiet(int* p) { p[blockIdx.x] += 3; }\n'
    assert "gpud_target" not in compile_program(quiet).ptx
    unchecked = compile_program(JUMP.replace("GUARD", ""), bounds_checks=False).ptx
    assert "gpud_target" not in unchecked
