"""Control-flow graphs (gpud.compiler.analysis.cfg and .graph)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.analysis.cfg import ControlFlow, Loop
from gpud.compiler.analysis.graph import (
    immediate_dominators,
    reverse_post_order,
    strong_components,
)
from gpud.compiler.ptx.model import Instruction
from tests.compiler.support.flat_programs import kernel

DIAMOND_AND_LOOP = """
    mov.u32 %r1, %tid.x;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra THEN;
    add.s32 %r2, %r1, 1;
    bra JOIN;
THEN:
    add.s32 %r2, %r1, 2;
JOIN:
LOOP:
    add.s32 %r2, %r2, -1;
    setp.gt.s32 %p2, %r2, 0;
    @%p2 bra LOOP;
    ret;
"""


def test_every_instruction_is_in_one_block_in_body_order() -> None:
    function = kernel(DIAMOND_AND_LOOP)
    flow = ControlFlow(function)
    places = [place for block in flow.blocks for place in block.places]
    body = function.body or []
    assert [p.instruction for p in places] == [s for s in body if isinstance(s, Instruction)]
    assert all(body[p.position] is p.instruction for p in places)
    assert [(b.start, b.stop) for b in flow.blocks[1:]] == [
        (b.start, b.stop) for b in flow.blocks[1:] if b.start < b.stop
    ]
    assert all(a.stop == b.start for a, b in zip(flow.blocks, flow.blocks[1:], strict=False))


def test_diamond_and_loop() -> None:
    flow = ControlFlow(kernel(DIAMOND_AND_LOOP))
    assert [block.labels for block in flow.blocks] == [(), (), ("THEN",), ("JOIN", "LOOP"), ()]
    assert [block.successors for block in flow.blocks] == [(2, 1), (3,), (3,), (3, 4), (5,)]
    assert flow.exit == 5
    assert flow.exits == [4]
    assert flow.blocks[3].predecessors == [1, 2, 3]
    assert flow.dominators == [None, 0, 0, 0, 3, 4]
    assert flow.post_dominators == [3, 3, 3, 4, 5, None]
    assert flow.back_edges == [(3, 3)]
    assert flow.loops == [Loop(3, (3,), (3,))]
    assert flow.influence(0) == {1, 2}
    assert flow.influence(3) == {3}


def test_predicated_exits_fall_through() -> None:
    flow = ControlFlow(kernel("@%p1 ret; @%p2 exit; @!%p1 bra END; mov.u32 %r1, 1; END: exit;"))
    assert [block.successors for block in flow.blocks] == [(5, 1), (5, 2), (4, 3), (4,), (5,)]
    assert flow.post_dominators[0] == 5
    assert flow.influence(0) == {1, 2, 3, 4}


def test_falling_off_the_end_is_a_return() -> None:
    flow = ControlFlow(kernel("mov.u32 %r1, 1;"))
    assert flow.blocks[0].successors == (1,)
    flow = ControlFlow(kernel("@%p1 bra END; mov.u32 %r1, 1; END:"))
    assert [block.successors for block in flow.blocks] == [(2, 1), (2,), (3,)]


def test_traps_and_calls_that_never_return_end_blocks() -> None:
    flow = ControlFlow(kernel("@%p1 bra OK; trap; OK: bar.sync 0; ret;"))
    assert flow.blocks[1].traps
    assert flow.blocks[1].successors == (3,)
    # The trap is no way to leave: the barrier comes after the branch on every path that counts.
    assert flow.post_dominators == [2, 3, 3, None]
    assert flow.influence(0) == {1}
    stopping = kernel("@%p1 bra OK; call __assertfail; mov.u32 %r1, 1; OK: ret;")
    assert ControlFlow(stopping).blocks[1].traps
    named = kernel("call stop; ret;")
    assert not ControlFlow(named).blocks[0].traps
    assert ControlFlow(named, noreturn=["stop"]).blocks[0].traps


def test_branch_tables() -> None:
    flow = ControlFlow(kernel("T: .branchtargets A, B, A; brx.idx %r1, T; A: ret; B: exit;"))
    assert flow.blocks[0].successors == (1, 2)


def test_endless_loops_have_post_dominators() -> None:
    flow = ControlFlow(kernel("@%p1 bra OUT; SPIN: mov.u32 %r1, 1; bra SPIN; OUT: ret;"))
    assert flow.post_dominators == [3, 3, 3, None]
    assert flow.loops == [Loop(1, (1,), (1,))]


def test_irreducible_cycles_are_components_without_being_loops() -> None:
    flow = ControlFlow(kernel("@%p1 bra B; A: mov.u32 %r1, 1; bra B; B: @%p2 bra A; ret;"))
    assert flow.loops == []
    assert flow.components == [(1, 2)]


def test_unreachable_blocks_are_kept_but_not_reached() -> None:
    flow = ControlFlow(kernel("ret; DEAD: mov.u32 %r1, 1; bra DEAD;"))
    assert flow.order == [0]
    assert flow.dominators[1] is None
    assert flow.loops == []


def test_wrong_bodies_are_refused() -> None:
    with pytest.raises(ValueError, match="no label 'NOWHERE'"):
        ControlFlow(kernel("bra NOWHERE;"))
    with pytest.raises(ValueError, match="branchtargets"):
        ControlFlow(kernel("brx.idx %r1, T; L: ret;"))
    declaration = kernel("ret;")
    declaration.body = None
    with pytest.raises(ValueError, match="no body"):
        ControlFlow(declaration)


# -- graph algorithms against their definitions ------------------------------------------------

GRAPHS = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(st.integers(0, n - 1), max_size=3), min_size=n, max_size=n)
)


def reach(graph: list[list[int]], root: int, without: int | None = None) -> set[int]:
    found, stack = set(), [root] if root != without else []
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(s for s in graph[node] if s != without)
    return found


@given(GRAPHS)
def test_immediate_dominators_meet_their_definition(graph: list[list[int]]) -> None:
    reached = reach(graph, 0)
    found = immediate_dominators(graph, 0)
    dominated = {n: reached - reach(graph, 0, without=n) for n in reached}
    for node in range(len(graph)):
        strict = {d for d in reached if node in dominated[d] and d != node}
        if node == 0 or node not in reached:
            assert found[node] is None
        else:
            nearest = found[node]
            assert nearest in strict
            assert all(nearest in dominated[other] for other in strict)


@given(GRAPHS)
def test_reverse_post_order_and_components(graph: list[list[int]]) -> None:
    order = reverse_post_order(graph, 0)
    assert set(order) == reach(graph, 0)
    assert len(order) == len(set(order))
    components = strong_components(graph, 0)
    assert sorted(n for c in components for n in c) == sorted(order)
    for component in components:
        for node in component:
            mutual = {m for m in reach(graph, node) if node in reach(graph, m)}
            assert mutual == set(component)
    place = {node: number for number, c in enumerate(components) for node in c}
    assert all(place[s] <= place[n] for n in order for s in graph[n])
