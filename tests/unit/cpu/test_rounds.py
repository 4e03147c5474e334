"""Loops that threads go round by themselves poll seldom: which, and that they compute the same."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.device.cpu.codegen.pseudo import simplify
from gpud.device.cpu.codegen.rounds import ROUNDS, own_loops
from gpud.device.cpu.device import CPUDevice
from gpud.device.job import Job, LaunchSpec
from tests.compiler.flat import entry
from tests.compiler.test_kill import IRREDUCIBLE, KILLABLE, NESTED, polled
from tests.unit.cpu.fencing import ptx
from tests.unit.cpu.running import TIMEOUT_S, pointer, words


def chosen(body: str) -> list[int]:
    """The headers of the loops that poll seldom, as numbers of blocks."""
    function = simplify(polled(entry(body)).entries()[KILLABLE], fenced=False)
    return [loop.header for loop in own_loops(ControlFlow(function), ()).values()]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ("A: add.u32 %r1, %r1, 1; @%p1 bra A; ret;", [0]),
        ("A: add.u32 %r1, %r1, 1; bra A;", [0]),
        ("A: @%p1 bra OUT; add.u32 %r1, %r1, 1; bra A; OUT: ret;", [0]),
        (NESTED, [1]),
        (IRREDUCIBLE, []),
        ("A: @%p1 bra B; @%p2 bra A; ret; B: @%p3 bra A; ret;", []),  # two ways back
    ],
)
def test_which_loops_poll_seldom(body: str, headers: list[int]) -> None:
    assert chosen(body) == headers


OWN = """
extern "C" __global__ void own(const unsigned* rounds, unsigned* out, unsigned count) {
    for (unsigned t = threadIdx.x; t < count; t += blockDim.x * gridDim.x) {
        unsigned x = t;
        for (unsigned i = 0; i < rounds[t]; i++) x = (x & 1) ? x * 3 + i : x / 2 + i;
        out[t] = x;
    }
}"""
COUNTS = (0, 1, ROUNDS - 1, ROUNDS, ROUNDS + 1, 2 * ROUNDS, 1000, 7)


def own(x: int, rounds: int) -> int:
    for i in range(rounds):
        x = (x * 3 + i if x & 1 else x // 2 + i) & 0xFFFFFFFF
    return x


def test_each_thread_makes_its_own_number_of_rounds() -> None:
    program = ptx(OWN, "persistent")
    name = program.kernels["own"].entry_for((8, 1, 1), killable=True)
    with CPUDevice(1) as device:
        kernel = device.load(program.ptx).kernel(name)
        rounds, given = words(device, len(COUNTS))
        given[:] = COUNTS
        for count in (8, 7):  # together, and where the last thread parts from the others
            out, found = words(device, len(COUNTS))
            values = [pointer(rounds), pointer(out), count.to_bytes(4, "little")]
            job = Job(device, [LaunchSpec.of(kernel, "persistent", 1, 8, values)])
            job.resize(1)
            job.result(TIMEOUT_S)
            assert list(found[:count]) == [own(t, COUNTS[t]) for t in range(count)]
