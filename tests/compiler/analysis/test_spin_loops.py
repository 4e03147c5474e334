"""Which loops wait for other blocks, and which of those for the whole grid."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.spin_loops import find_spin_loops
from tests.compiler.support.flat_programs import entry


@pytest.mark.parametrize(
    ("read", "for_grid"),
    [
        ("ld.volatile.global.u32 %r1, [%d1];", True),
        ("atom.global.add.u32 %r1, [%d1], 0;", True),
        ("atom.global.or.b32 %r1, [%d1], 0;", True),
        ("atom.global.xor.b32 %r1, [%d1], 0;", True),
        ("atom.global.max.u32 %r1, [%d1], 0;", True),
        ("atom.global.cas.b32 %r1, [%d1], 0, 0;", True),
        ("atom.global.exch.b32 %r1, [%d1], 0;", True),
        # These change what they read, so that the loop makes progress of its own.
        ("atom.global.add.u32 %r1, [%d1], 1;", False),
        ("atom.global.or.b32 %r1, [%d1], %r3;", False),
        ("atom.global.and.b32 %r1, [%d1], 0;", False),
        ("atom.global.min.u32 %r1, [%d1], 0;", False),
        ("atom.global.inc.u32 %r1, [%d1], 0;", False),
    ],
)
def test_a_read_that_changes_nothing_waits_for_the_grid(read: str, for_grid: bool) -> None:
    module = entry(f"""ld.param.u64 %d1, [a]; mov.u32 %r2, %nctaid.x;
    LOOP: {read} setp.lt.u32 %p1, %r1, %r2; @%p1 bra LOOP; ret;""")
    (loop,) = find_spin_loops(CallGraph(module), "k")
    assert loop.for_grid is for_grid
    assert loop.read.opcode.text == read.split(maxsplit=1)[0]


def test_a_loop_over_the_grids_size_does_not_wait() -> None:
    module = entry("""ld.param.u64 %d1, [a]; mov.u32 %r2, %nctaid.x; mov.u32 %r1, 0;
    LOOP: ld.global.u32 %r3, [%d1]; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, %r2; @%p1 bra LOOP; ret;""")
    assert find_spin_loops(CallGraph(module), "k") == []
