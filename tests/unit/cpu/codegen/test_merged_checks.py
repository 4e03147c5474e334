"""Merged bounds checks of diverged threads: an oracle determines which accesses are illegal."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from gpud.device.cpu.abi.layout import Shape
from gpud.device.cpu.device import CPUDevice
from gpud.errors import IllegalAddress
from tests.unit.cpu.codegen.checked_arena import ARENA_BYTES, HEAD, PARTED, Arena, ptx

THREADS = 8


class Access(NamedTuple):
    """The access of thread t: ``span`` bytes at parameter + t * step + offset."""

    parameter: str
    offset: int
    span: int


def program(body: str) -> str:
    """``body`` for each of eight diverged threads; %rd4 is thread * ``step``."""
    return f"""{HEAD}.global .align 16 .b8 own[64];
    .visible .entry k(.param .u64 p, .param .u64 q, .param .u64 r, .param .u64 step)
    {{ .reg .b32 %r<20>; .reg .b64 %rd<20>; .reg .pred %p<8>;
    mov.u32 %r3, %tid.x; {PARTED}
    ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [q]; ld.param.u64 %rd3, [r];
    ld.param.u64 %rd5, [step]; cvt.u64.u32 %rd6, %r3; mul.lo.u64 %rd4, %rd6, %rd5;
    {body} ret; }}"""


THREE_ARRAYS = program("""
    add.s64 %rd7, %rd1, %rd4; ld.global.u32 %r1, [%rd7+8];
    add.s64 %rd8, %rd4, %rd2; ld.global.u32 %r2, [%rd8+-4];
    add.s32 %r4, %r1, %r2; cvta.to.global.u64 %rd9, %rd3; add.s64 %rd9, %rd9, %rd4;
    st.global.u32 [%rd9], %r4;""")
ACCESSES = (Access("p", 8, 4), Access("q", -4, 4), Access("r", 0, 4))


def pieces(text: str) -> list[str]:
    """LLVM assembly of the region functions, reduced to their accesses."""
    with CPUDevice(1) as device:
        kernel = device.load(ptx(text, "sliced").ptx, (1 << 40, 1 << 20)).kernel("k")
        ir = kernel.generate(Shape(THREADS)).ir
    parts = [part for part in ir.split("\n}\n") if "define internal void @region." in part]
    return [part for part in parts if "@gpud.exact" in part]


def test_arrays_at_one_index_are_tested_at_once() -> None:
    found = pieces(THREE_ARRAYS)
    assert found
    assert all(part.count("label %cold") == 1 for part in found)
    assert all(part.count("@gpud.exact") == len(ACCESSES) for part in found)


@pytest.mark.parametrize(
    "change",
    [
        ("add.s64 %rd8, %rd4, %rd2;", "add.s64 %rd4, %rd4, %rd6; add.s64 %rd8, %rd4, %rd2;"),
        ("add.s64 %rd8, %rd4, %rd2;", "ld.global.u64 %rd2, [%rd7+8]; add.s64 %rd8, %rd4, %rd2;"),
        ("add.s64 %rd8, %rd4, %rd2;", "@%p7 mov.u64 %rd2, %rd4; add.s64 %rd8, %rd4, %rd2;"),
        ("add.s64 %rd8, %rd4, %rd2;", "xor.b64 %rd2, %rd2, %rd6; add.s64 %rd8, %rd4, %rd2;"),
    ],
    ids=["another index", "a loaded array", "an array of some threads", "a changed array"],
)
def test_arrays_at_other_indices_are_tested_separately(change: tuple[str, str]) -> None:
    assert change[0] in THREE_ARRAYS
    found = pieces(THREE_ARRAYS.replace(*change))
    assert found
    assert all(part.count("label %cold") > 1 for part in found)


def outcomes(world: Arena, arrays: dict[str, int], step: int) -> set[tuple[int, int, bool]]:
    """(thread, address, misaligned) of each thread's first illegal access."""
    found = set()
    for thread in range(THREADS):
        for access in ACCESSES:
            address = (arrays[access.parameter] + thread * step + access.offset) % 2**64
            inside = world.base <= address and address + access.span <= world.end
            if not inside or address % access.span:
                found.add((thread, address, inside))
                break
    return found


def test_an_access_is_reported_if_and_only_if_it_is_illegal(world: Arena) -> None:
    rng = Random(5)
    edges = [world.base, world.base + 64, world.base + ARENA_BYTES // 2, world.end - 64, world.end]
    legal = 0
    for _ in range(150):
        arrays = {
            name: rng.choice(edges) + rng.choice((-32, -4, 0, 0, 4, 4, 8, 16, 32, 2)) * (n > 0)
            for n, name in enumerate("pqr")
        }
        if not rng.randrange(8):
            arrays[rng.choice("pqr")] = rng.choice((0, -8, 2**63, 2**64 - 4, 12))
        step = rng.choice((4, 4, 4, -4, 0, 8, 2, 2**63, 2**62, 1 << 20))
        expected = outcomes(world, arrays, step)
        error = world.run(THREE_ARRAYS, *arrays.values(), step)
        if not expected:
            assert error is None
            legal += 1
            continue
        assert isinstance(error, IllegalAddress)
        assert error.thread is not None
        assert (error.thread[0], error.address, error.misaligned) in expected
    assert legal > 20


def test_an_array_of_the_module_is_legal_too(world: Arena) -> None:
    """The arena test fails for such a group, but the exact check accepts each access."""
    text = program("""
    mov.u64 %rd10, own; cvta.global.u64 %rd10, %rd10; st.global.u64 [%rd1], %rd10;
    add.s64 %rd7, %rd2, %rd4; ld.global.u32 %r1, [%rd7];
    add.s64 %rd8, %rd3, %rd4; add.s32 %r1, %r1, 7; st.global.u32 [%rd8], %r1;""")
    assert world.run(text, world.base, world.base + 64, world.base + 64, 4) is None
    own = int(world.words("<u8")[0])
    world.bytes[:256] = 0
    assert world.run(text, world.base, own, world.base + 128, 4) is None
    assert world.words()[32 : 32 + THREADS].tolist() == [7] * THREADS
    error = world.run(text, world.base, own + 64 - 4 * (THREADS - 1), world.base + 128, 4)
    assert isinstance(error, IllegalAddress)
    assert error.address == own + 64
