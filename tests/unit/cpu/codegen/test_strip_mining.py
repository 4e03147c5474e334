"""Strip mining: which loops poll in only one of many iterations, and that results do not change."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.device.cpu.codegen.emit.strip_mining import STRIP_LENGTH, strip_mined_loops
from gpud.device.cpu.codegen.preparation.pseudo_instructions import fold_pseudos
from gpud.device.cpu.device import CPUDevice
from gpud.device.interface import LaunchSpec
from tests.compiler.passes.test_kill import IRREDUCIBLE, KILLABLE, NESTED, polled
from tests.compiler.support.flat_programs import entry
from tests.support.resizable_run import ResizableRun
from tests.unit.cpu.codegen.checked_arena import ptx
from tests.unit.cpu.device_helpers import TIMEOUT_S, pointer, words


def chosen(body: str) -> list[int]:
    """The header blocks of the strip-mined loops."""
    function = fold_pseudos(polled(entry(body)).entries()[KILLABLE], checked=False)
    return [loop.header for loop in strip_mined_loops(ControlFlow(function), ()).values()]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("A: add.u32 %r1, %r1, 1; @%p1 bra A; ret;", [0]),
        ("A: add.u32 %r1, %r1, 1; bra A;", [0]),
        ("A: @%p1 bra OUT; add.u32 %r1, %r1, 1; bra A; OUT: ret;", [0]),
        (NESTED, [1]),
        (IRREDUCIBLE, []),
        ("A: @%p1 bra B; @%p2 bra A; ret; B: @%p3 bra A; ret;", []),  # two back edges
    ],
)
def test_which_loops_are_strip_mined(body: str, headers: list[int]) -> None:
    assert chosen(body) == headers


OWN = """
extern "C" __global__ void own(const unsigned* rounds, unsigned* out, unsigned count) {
    for (unsigned t = threadIdx.x; t < count; t += blockDim.x * gridDim.x) {
        unsigned x = t;
        for (unsigned i = 0; i < rounds[t]; i++) x = (x & 1) ? x * 3 + i : x / 2 + i;
        out[t] = x;
    }
}"""
COUNTS = (0, 1, STRIP_LENGTH - 1, STRIP_LENGTH, STRIP_LENGTH + 1, 2 * STRIP_LENGTH, 1000, 7)


def own(x: int, rounds: int) -> int:
    for i in range(rounds):
        x = (x * 3 + i if x & 1 else x // 2 + i) & 0xFFFFFFFF
    return x


def test_each_thread_makes_its_own_number_of_iterations() -> None:
    program = ptx(OWN, "persistent")
    name = program.kernels["own"].entry_for((8, 1, 1), killable=True)
    with CPUDevice(1) as device:
        kernel = device.load(program.ptx).kernel(name)
        rounds, given = words(device, len(COUNTS))
        given[:] = COUNTS
        for count in (8, 7):  # in lockstep, and where the last thread diverges
            out, found = words(device, len(COUNTS))
            values = [pointer(rounds), pointer(out), count.to_bytes(4, "little")]
            job = ResizableRun(device, [LaunchSpec.of(kernel, "persistent", 1, 8, values)])
            job.resize(1)
            job.result(TIMEOUT_S)
            assert list(found[:count]) == [own(t, COUNTS[t]) for t in range(count)]


HEAD = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry chain(.param .u64 out, .param .u32 count) {
    .reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<4>; .shared .align 4 .b8 s[4096];
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [count];
    mov.u32 %r2, %tid.x;
"""
STEP = """
    ld.global.u32 %r4, [%rd1]; add.u32 %r4, %r4, %r3; st.global.u32 [%rd1+12], %r4;
"""
AROUND = (
    """
    shl.b32 %r5, %r2, 2; mov.u32 %r6, s; add.u32 %r5, %r5, %r6;
    setp.ne.u32 %p1, %r2, 0; mov.u32 %r3, 0;
    LOOP: @%p1 bra STEPPED;"""
    + STEP
    + """
    STEPPED: setp.lt.u32 %p2, %r3, 9999; @%p2 bra NEAR;
    st.global.u32 [%rd1+8000], %r3;
    NEAR: add.u32 %r3, %r3, 1; setp.ge.u32 %p2, %r3, %r1; @%p2 bra END;
    add.s64 %rd1, %rd1, 4;
    ld.shared.u32 %r6, [%r5]; min.u32 %r6, %r6, 3; setp.gt.u32 %p3, %r6, 5;
    @%p3 st.shared.u32 [%r5], %r3;  // never
    bra LOOP;
    END: ret; }"""
)
"""A loop around one over threads, which LLVM deletes."""
INSIDE = (
    """
    mul.wide.u32 %rd2, %r2, 4000; add.s64 %rd1, %rd1, %rd2;
    add.u32 %r5, %r2, 1; st.global.u32 [%rd1], %r5;  // as the loop over threads counts
    and.b32 %r3, %r2, 7;
    LOOP:"""
    + STEP
    + """
    add.s64 %rd1, %rd1, 4; add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r1; @%p1 bra LOOP;
    ret; }"""
)
"""A loop inside of one over threads, whose end LLVM empties."""


@pytest.mark.parametrize(("body", "rows"), [(AROUND, 1), (INSIDE, 8)])
def test_dependent_iterations_are_not_marked_parallel(body: str, rows: int) -> None:
    count, row = 200, 1000
    with CPUDevice(1) as device:
        memory, out = words(device, row * rows)
        kernel = device.load(HEAD + body).kernel("chain")
        arguments = [pointer(memory), count.to_bytes(4, "little")]
        job = ResizableRun(device, [LaunchSpec.of(kernel, "unmodified", 1, 8, arguments)])
        job.resize(1)
        job.result(TIMEOUT_S)
        got = out.reshape(rows, row).tolist()
    for first, chain in enumerate(got):
        expected = [0] * row
        expected[0] = first + 1 if rows > 1 else 0
        for i in range(count - first):
            expected[i + 3] = expected[i] + first + i
        assert chain == expected
