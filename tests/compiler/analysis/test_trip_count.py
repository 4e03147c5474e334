"""Loops with a small constant trip count (gpud.compiler.analysis.trip_count)."""

from __future__ import annotations

import pytest

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.trip_count import MOST_INSTRUCTIONS, bounded_loops
from gpud.compiler.passes.safety.kill import may_run_long
from tests.compiler.support.flat_programs import entry

LOOP = """
mov.u32 %r1, START;
A: add.s32 %r2, %r2, %r1;
add.s32 %r1, %r1, STEP;
setp.TEST %p1, %r1, LIMIT;
@%p1 bra A;
ret;
"""


def ends(body: str) -> bool:
    """Whether the only loop of a kernel has a small constant trip count."""
    module = entry(body)
    flow = ControlFlow(module.entries()["k"])
    assert len(flow.loops) == 1
    assert may_run_long(CallGraph(module), ["k"]) == (frozenset() if bounded_loops(flow) else {"k"})
    return bool(bounded_loops(flow))


@pytest.mark.parametrize(
    ("start", "step", "test", "limit", "soon"),
    [
        ("0", "1", "ne.s32", "3", True),
        ("0", "1", "lt.u32", str(MOST_INSTRUCTIONS // 4), True),
        ("0", "1", "lt.u32", str(MOST_INSTRUCTIONS // 4 + 1), False),
        ("7", "-1", "ge.s32", "0", True),
        ("7", "-1", "ge.u32", "0", False),  # always
        ("0", "2", "ne.u32", "7", False),  # never equal
        ("-4", "1", "lt.s32", "0", True),
        ("-4", "1", "ltu.f32", "0f00000000", False),
        ("%r3", "1", "lt.u32", "9", False),
        ("0", "%r3", "lt.u32", "9", False),
        ("0", "1", "lt.u32", "%r3", False),
    ],
)
def test_rounds_are_counted(start: str, step: str, test: str, limit: str, soon: bool) -> None:
    body = LOOP.replace("START", start).replace("STEP", step)
    if test.endswith("f32"):
        body = body.replace("%p1, %r1", "%p1, %f1")
    assert ends(body.replace("TEST", test).replace("LIMIT", limit)) is soon


SHORT = """
mov.u32 %r1, 0;
A: add.s32 %r2, %r2, %r1;
B: add.s32 %r1, %r1, 1;
C: setp.lt.u32 %p1, %r1, 9;
@%p1 bra A;
ret;
"""


def test_other_ways_through_a_round_do_not_matter() -> None:
    assert ends(SHORT.replace("A:", "A: @%p2 bra B;"))
    assert ends(SHORT.replace("C:", "@%p3 bra C; add.s32 %r2, %r2, 1; C:"))


def test_either_result_may_lead_back() -> None:
    assert ends(SHORT)
    other = SHORT.replace("@%p1", "@!%p1")
    assert ends(other.replace("lt.u32", "ge.u32"))
    assert not ends(other.replace("lt.u32", "eq.u32").replace("9", "0"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("A:", "A: add.s32 %r1, %r1, -1;"),  # another step
        ("A:", "A: @%p2 bra C;"),  # a round without a step
        ("add.s32 %r1", "@%p2 add.s32 %r1"),
        ("setp", "@%p2 setp"),
        ("mov.u32", "@%p2 mov.u32"),
        ("mov.u32", "@%p2 bra A; mov.u32"),  # a way in that sets nothing
        ("A:", "A: nanosleep.u32 1000;"),
        ("A:", "A: call f;"),
    ],
)
def test_what_may_change_the_count_is_not_overlooked(old: str, new: str) -> None:
    assert ends(SHORT)
    assert not bounded_loops(ControlFlow(entry(SHORT.replace(old, new)).entries()["k"]))
