"""Active threads: a stage runs for the threads that it has an effect for, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.analysis.effects import written
from gpud.compiler.ptx.model import Instruction
from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.codegen.analysis.active_threads import ActiveThreads
from gpud.device.cpu.codegen.analysis.thread_constants import ThreadConstants
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.codegen.prepared import instructions, kernel
from tests.unit.cpu.device_helpers import TIMEOUT_S, pointer, words

REGISTERS = ".reg .u32 %r<9>; .reg .s32 %s<4>; .reg .u64 %rd<4>; .reg .pred %p<4>;"
LEADER = """mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; or.b32 %r1, %r1, %r2; mov.u32 %r2, %tid.z;
    or.b32 %r1, %r1, %r2; setp.eq.u32 %p1, %r1, 0;"""
SOME = "@%p2 st.global.u32 [%rd1], %r3;"
LOADED = f"{LEADER} mov.u32 %r3, 5; @%p1 ld.global.u32 %r3, [%rd1]; setp.ne.u32 %p2, %r3, 5;"
STORE = "st.global.u32 [%rd1], %r3;"


def active_range(body: str, shape: Shape, *kept: str) -> tuple[int, int]:
    program = instructions(kernel(REGISTERS + body).entries()["k"])

    made: dict[str, list[Instruction]] = {}
    for ins in program:
        for register in written(ins):
            made.setdefault(register.name, []).append(ins)
    found = ActiveThreads(shape, kept, ThreadConstants(made, (), shape))
    for ins in program:
        if ins.opcode.base != "ret":
            found.run(ins)
    return found.range


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{LEADER} @%p1 {STORE}", (0, 1)),
        (f"{LEADER} @!%p1 {STORE}", (1, 96)),
        ("add.u32 %r3, %r4, 1;", (0, 0)),
        (STORE, (0, 96)),
        (f"setp.lt.u32 %p1, %r5, 7; @%p1 {STORE}", (0, 96)),
        (f"mov.u32 %r1, %laneid; setp.eq.u32 %p1, %r1, 31; @%p1 {STORE}", (31, 96)),
        (f"mov.u32 %r1, %warpid; setp.eq.u32 %p1, %r1, 1; @%p1 {STORE}", (32, 64)),
        (f"mov.u32 %r1, %tid.x; sub.u32 %r1, %r1, 90; setp.lt.u32 %p1, %r1, 3; @%p1 {STORE}",
         (90, 93)),
        # As a signed number the difference is below 3 for the first 93.
        (f"mov.u32 %r1, %tid.x; sub.s32 %r1, %r1, 90; setp.lt.s32 %p1, %r1, 3; @%p1 {STORE}",
         (0, 93)),
        (f"mov.u32 %r1, %tid.x; cvt.u64.u32 %rd2, %r1; setp.ge.u64 %p1, %rd2, 95; @%p1 {STORE}",
         (95, 96)),
        (f"mov.u32 %r1, %tid.x; add.s32 %r1, %r1, -1; setp.hi.u32 %p1, %r1, 99; @%p1 {STORE}",
         (0, 1)),
        # Where the guard is false the value is kept; where it may be true it is unknown.
        (f"{LOADED} {SOME}", (0, 1)),
        (f"{LEADER} mov.u32 %r3, 5; @%p1 mov.u32 %r3, 6; setp.eq.u32 %p2, %r3, 5; @%p2 {STORE}",
         (0, 96)),
        (f"mov.u32 %r3, 5; @%p3 mov.u32 %r3, 6; setp.eq.u32 %p2, %r3, 5; @!%p2 {STORE}", (0, 96)),
        # Volatile loads and atomics are seen by others, plain loads are not.
        (f"{LEADER} @%p1 ld.volatile.global.u32 %r3, [%rd1]; ld.global.u32 %r4, [%rd1];", (0, 1)),
        (f"{LEADER} @%p1 red.global.add.u32 [%rd1], 1;", (0, 1)),
        # Floats, and what is computed from them, are unknown.
        (f"{LEADER} cvt.rzi.u32.f32 %r1, 0f3F800000; setp.eq.u32 %p1, %r1, 1; @%p1 {STORE}",
         (0, 96)),
    ],
)  # fmt: skip
def test_which_threads_are_active(body: str, expected: tuple[int, int]) -> None:
    assert active_range(body, Shape(96)) == expected


def test_threads_of_rows_and_planes() -> None:
    only = "setp.eq.u32 %p1, %r1, 1; @%p1 st.global.u32 [%rd1], %r3;"
    shape = Shape(4, 3, 2)
    assert active_range(f"{LEADER} @%p1 {STORE}", shape) == (0, 1)
    assert active_range(f"mov.u32 %r1, %tid.x; {only}", shape) == (1, 22)
    assert active_range(f"mov.u32 %r1, %tid.y; {only}", shape) == (4, 20)
    assert active_range(f"mov.u32 %r1, %tid.z; {only}", shape) == (12, 24)


def test_changes_of_spilled_registers_matter() -> None:
    body = f"{LEADER} add.u32 %r3, %r1, 1; @%p1 mov.u32 %r4, 9;"
    assert active_range(body, Shape(96)) == (0, 0)
    assert active_range(body, Shape(96), "%r4") == (0, 1)
    assert active_range(body, Shape(96), "%r3") == (0, 96)


# -- kernels -----------------------------------------------------------------------------------

# Sums of earlier results, by threads that differ from stage to stage; out[0..9] are the block's.
STAGES = """.version 8.6\n.target sm_90\n.address_size 64
.visible .entry k(.param .u64 out)
{ .reg .u32 %r<20>; .reg .u64 %rd<9>; .reg .pred %p<9>; .shared .align 4 .b32 s[256];
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %ntid.x;
  mad.lo.u32 %r4, %r2, %r3, %r1; shl.b32 %r5, %r4, 2; mov.u32 %r6, s; add.u32 %r6, %r6, %r5;
  mul.lo.u32 %r7, %r4, 3; st.shared.u32 [%r6], %r7; mov.u32 %r10, 100;
  bar.sync 0;
  setp.ne.u32 %p1, %r4, 0; @%p1 bra SKIP;
  ld.shared.u32 %r8, [s+12]; atom.global.add.u32 %r9, [%rd1], %r8; add.u32 %r10, %r9, 7;
SKIP: bar.sync 0;
  setp.eq.u32 %p2, %r4, 0; @%p2 st.global.u32 [%rd1+4], %r10;
  @!%p2 st.shared.u32 [%r6], %r10;
  bar.sync 0;
  mov.u32 %r11, 77; setp.eq.u32 %p3, %r4, 5; @%p3 ld.shared.u32 %r11, [s+8];
  setp.ne.u32 %p4, %r11, 77; @%p4 red.global.add.u32 [%rd1+8], %r11;
  bar.sync 0;
  setp.lt.u32 %p5, %r4, 3; @!%p5 bra END;
  red.global.add.u32 [%rd1+12], 1; cvt.u64.u32 %rd2, %r5; add.u64 %rd2, %rd2, %rd1;
  st.global.u32 [%rd2+16], %r10;
END: ret; }"""


@pytest.mark.parametrize("block", [(32,), (200,), (8, 4), (3, 7)])
def test_stages_for_few_threads_give_the_results_of_all(
    device: CPUDevice, block: tuple[int, ...]
) -> None:
    memory, out = words(device, 16)
    out[0] = 1000
    spec = LaunchSpec.of(
        device.load(STAGES).kernel("k"), "unmodified", (1,), block, [pointer(memory)]
    )
    job = ResizableRun(device, device.prepare([spec]))
    job.resize(1)
    job.result(TIMEOUT_S)
    expected = [1009, 1007, 100, 3, 1007, 100, 100]
    assert list(out[: len(expected)]) == expected
    assert not np.any(out[len(expected) :])


def test_a_stage_loops_over_its_active_threads(device: CPUDevice) -> None:
    ir = device.load(STAGES).kernel("k").generate(Shape(200)).ir
    together = next(part for part in ir.split("\n}\n") if "@run_lockstep(" in part)
    ends = [line.rsplit(",", 1)[1].strip() for line in together.splitlines() if "slt i32" in line]
    # All before the first barrier and after the second; in between one thread, then three.
    assert ends == ["200", "200", "3"]
