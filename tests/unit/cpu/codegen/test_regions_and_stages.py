"""Structure of a kernel: waits, inlining, regions, uniform registers, stages, memory layout."""

from __future__ import annotations

import itertools

import pytest

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import BARRIER, COLLECTIVE, TRAP, flags, is_call, written
from gpud.device.cpu.abi.layout import (
    BASE_ARRAYS,
    HEADER_SIZE,
    BlockLayout,
    Shape,
    base_array_offset,
)
from gpud.device.cpu.codegen.analysis.regions import waits
from gpud.device.cpu.codegen.analysis.rematerialization import Rematerializable
from gpud.device.cpu.codegen.analysis.spin_loops import spin_headers
from gpud.device.cpu.codegen.analysis.stage_plan import StagePlan
from gpud.device.cpu.codegen.preparation.pipeline import prepare
from gpud.errors import KernelRejected
from tests.unit.cpu.codegen.prepared import (
    analysed,
    instructions,
    kernel,
    named,
    prepared,
    random_programs,
)

REGISTERS = ".reg .u32 %r<9>; .reg .u64 %rd<5>; .reg .pred %p<4>; ld.param.u64 %rd1, [out];"

# -- which loops wait --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        ("ld.volatile.global.u32 %r1, [%rd1];", True),
        ("ld.acquire.gpu.global.u32 %r1, [%rd1];", True),
        ("ld.relaxed.gpu.global.u32 %r1, [%rd1];", True),
        ("atom.global.add.u32 %r1, [%rd1], 0;", True),
        ("atom.global.cas.b32 %r1, [%rd1], 0, 1;", True),
        ("atom.global.exch.b32 %r1, [%rd1], 1;", True),
        # The value read goes through arithmetic first.
        ("ld.volatile.global.u32 %r2, [%rd1]; and.b32 %r1, %r2, 255;", True),
        # The expected value is recomputed: a retry.
        ("atom.global.cas.b32 %r3, [%rd1], %r2, 5; mov.u32 %r2, %r3; mov.u32 %r1, %r3;", False),
        ("ld.global.u32 %r1, [%rd1];", False),
        ("add.u32 %r1, %r1, 1;", False),
        # Atomics on which no branch depends.
        ("atom.global.add.u32 %r2, [%rd1], 1; add.u32 %r1, %r1, 1;", False),
        # It yields at the barrier.
        ("ld.volatile.global.u32 %r1, [%rd1]; bar.sync 0;", False),
    ],
)
def test_which_loops_wait(loop: str, expected: bool) -> None:
    body = f"{REGISTERS} LOOP: {loop} setp.ne.u32 %p1, %r1, 7; @%p1 bra LOOP; ret;"
    flow = ControlFlow(kernel(body).entries()["k"])
    assert bool(spin_headers(flow)) is expected


def test_the_innermost_loop_waits() -> None:
    body = f"""{REGISTERS} mov.u32 %r2, 0;
    OUTER: INNER: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra INNER;
    bar.sync 0; add.u32 %r2, %r2, 1; setp.lt.u32 %p2, %r2, 5; @%p2 bra OUTER; ret;"""
    regions, _ = analysed(body)
    assert regions.polling == {named(regions, "%r1")}


# -- prepare -----------------------------------------------------------------------------------

CALLED = """
.func (.param .u32 result) sums(.param .u32 a)
{ .reg .u32 %r<3>; ld.param.u32 %r1, [a]; bar.sync 0; add.u32 %r2, %r1, 1;
  st.param.u32 [result], %r2; ret; }
.func (.param .u32 result) plain(.param .u32 a)
{ .reg .u32 %r<3>; ld.param.u32 %r1, [a]; add.u32 %r2, %r1, 2; st.param.u32 [result], %r2; ret; }
.func (.param .u32 result) long(.param .u32 a)
{ .reg .u32 %r<3>; .reg .pred %p<2>; ld.param.u32 %r1, [a]; mov.u32 %r2, 0;
  AGAIN: add.u32 %r2, %r2, %r1; setp.lt.u32 %p1, %r2, 9; @%p1 bra AGAIN;
  st.param.u32 [result], %r2; ret; }
.func loops(.param .u32 a)
{ .reg .u32 %r1; .param .u32 x; ld.param.u32 %r1, [a]; bar.sync 0; st.param.u32 [x], %r1;
  call loops, (x); ret; }
"""


def call(name: str) -> str:
    return f"""{REGISTERS} mov.u32 %r1, 3; {{ .param .u32 a; .param .u32 b;
    st.param.u32 [a], %r1; call (b), {name}, (a); ld.param.u32 %r2, [b]; }}
    st.global.u32 [%rd1], %r2; ret;"""


def test_a_function_in_which_threads_wait_is_inlined() -> None:
    entry = prepared(call("sums"), CALLED)
    assert not [i for i in instructions(entry) if is_call(i)]
    assert len(instructions(entry, "bar")) == 1


def test_a_function_without_waits_is_not_inlined() -> None:
    module = kernel(call("long"), CALLED)
    found = prepare(module, module.entries()["k"])
    assert len([i for i in instructions(found.entry) if is_call(i)]) == 1
    assert "long" in found.functions
    assert "sums" not in found.functions


def test_a_function_of_a_few_instructions_is_inlined() -> None:
    entry = prepared(call("plain"), CALLED)
    assert not [i for i in instructions(entry) if is_call(i)]


def test_recursion_through_a_barrier_is_refused() -> None:
    body = f"{REGISTERS} {{ .param .u32 a; st.param.u32 [a], 1; call loops, (a); }} ret;"
    with pytest.raises(KernelRejected, match="loops calls itself"):
        prepared(body, CALLED)


def test_a_call_of_an_undefined_function_is_refused() -> None:
    missing = ".extern .func (.param .u32 result) missing(.param .u32 a);"
    with pytest.raises(KernelRejected, match="missing, which it does not define") as caught:
        prepared(call("missing"), missing)
    assert caught.value.line is not None


@pytest.mark.parametrize("guarded", ["bar.sync 0;", "trap;", "vote.sync.any.pred %p2, %p1, -1;"])
def test_no_wait_or_trap_has_a_guard(guarded: str) -> None:
    entry = prepared(f"{REGISTERS} setp.eq.u32 %p1, %r1, 0; @%p1 {guarded} ret;")
    for ins in instructions(entry):
        if flags(ins.opcode) & (BARRIER | COLLECTIVE | TRAP):
            assert ins.guard is None


def test_after_a_wait_begins_a_block_that_nothing_else_enters() -> None:
    for regions, _ in random_programs(8):
        for number in regions.flow.order:
            block = regions.flow.blocks[number]
            if waits(block.last):
                for successor in block.successors:
                    if successor != regions.flow.exit:
                        assert regions.flow.blocks[successor].predecessors == [number]
            assert not any(waits(p.instruction) for p in block.places[:-1])


# -- regions -----------------------------------------------------------------------------------


def test_regions_stop_at_cuts_and_cover_the_kernel() -> None:
    for regions, _ in random_programs(8):
        seen: set[int] = set()
        for cut in regions.cuts:
            region = regions.region(cut)
            assert region.blocks[0] == cut
            assert not set(region.blocks[1:]) & set(regions.cuts)
            seen |= set(region.blocks)
        assert seen == set(regions.flow.order)


# -- convergence -------------------------------------------------------------------------------


def test_thread_numbers_vary_and_block_numbers_do_not() -> None:
    _, found = analysed(f"""{REGISTERS}
    mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; add.u32 %r3, %r2, 5; add.u32 %r4, %r3, %r1;
    ld.param.u32 %r5, [n]; ld.global.u32 %r6, [%rd1]; st.global.u32 [%rd1], %r4;
    ld.global.u32 %r7, [%rd1]; atom.global.add.u32 %r8, [%rd1], %r6; ret;""")
    assert found.varying >= {"%r1", "%r4", "%r7", "%r8"}
    assert not found.varying & {"%r2", "%r3", "%r5", "%r6", "%rd1"}


def test_a_branch_without_a_wait_is_folded_and_one_with_a_wait_voted() -> None:
    regions, found = analysed(f"""{REGISTERS}
    mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 5; @%p1 bra A; mov.u32 %r2, 1; A:
    setp.lt.u32 %p2, %r1, 7; @%p2 bra B; mov.u32 %r3, 1; bar.sync 0; B: ret;""")
    assert named(regions, "%r2") in found.inner
    assert named(regions, "%r3") not in found.inner
    assert named(regions, "%p2") in found.voted


def test_a_loop_that_strides_by_the_grid_is_voted_and_one_over_own_data_folded() -> None:
    regions, found = analysed(f"""{REGISTERS}
    mov.u32 %r1, %tid.x; mov.u32 %r2, %r1; mov.u32 %r4, %nctaid.x;
    A: add.u32 %r2, %r2, %r4; setp.lt.u32 %p1, %r2, 1000; @%p1 bra A;
    mov.u32 %r3, %r1;
    B: shr.u32 %r3, %r3, 1; setp.ne.u32 %p2, %r3, 0; @%p2 bra B; ret;""")
    assert named(regions, "%p1") in found.voted
    assert named(regions, "%p2") in found.inner


def test_no_wait_no_polling_loop_and_no_barrier_is_in_an_inner_block() -> None:
    for regions, found in random_programs(30):
        for number in found.inner:
            block = regions.flow.blocks[number]
            assert not waits(block.last)
            assert number not in regions.polling
            assert not any(flags(p.instruction.opcode) & BARRIER for p in block.places)


def test_uniform_registers_are_defined_where_all_threads_run() -> None:
    for regions, found in random_programs(30):
        for number in regions.flow.order:
            for place in regions.flow.blocks[number].places:
                for register in written(place.instruction):
                    if register.name not in found.varying:
                        assert number not in found.inner


# -- stages ------------------------------------------------------------------------------------


def test_all_paths_through_inner_blocks_lead_to_the_join() -> None:
    for regions, found in random_programs(30):
        for stage in StagePlan(found, Shape(32)).stages.values():
            for segment in stage.segments:
                inside = set(segment.blocks)
                if segment.join is None:
                    assert len(inside) == 1
                    continue
                for number in segment.blocks:
                    for successor in regions.flow.blocks[number].successors:
                        assert successor in inside | {segment.join}


def test_threads_reconverge_only_where_a_stage_begins() -> None:
    for regions, found in random_programs(30):
        plan = StagePlan(found, Shape(32))
        assert plan.entries <= set(plan.stages)
        for first, stage in plan.stages.items():
            assert stage.first == first
            assert first not in found.solo
            later = {s.blocks[0] for s in stage.segments[1:]}
            assert not later & plan.entries
            for target in plan.exits(stage):
                known = target in plan.stages or target == regions.flow.exit
                assert known or target in plan.divergence_points or target in found.solo


@pytest.mark.parametrize(
    ("asks", "does", "together"),
    [
        ("eq.u32 %p1, %r1, 0", "atom.global.add.u32 %r2, [%rd1], 1", False),
        ("eq.u32 %p1, %r1, 0", "red.global.add.u32 [%rd1], 1", False),
        ("eq.u32 %p1, %r1, 0", "st.global.u32 [%rd1], 1", True),  # a store can be masked
        ("lt.u32 %p1, %r1, 2", "red.global.add.u32 [%rd1], 1", True),
        ("eq.u32 %p1, %r4, 0", "red.global.add.u32 [%rd1], 1", True),
    ],
)
def test_an_atomic_of_one_thread_is_a_stage_of_its_own(
    asks: str, does: str, together: bool
) -> None:
    regions, found = analysed(
        f"""{REGISTERS} mov.u32 %r1, %tid.x; ld.param.u32 %r4, [n]; add.u32 %r4, %r4, %r1;
        st.global.u32 [%rd1+64], %r4; add.u32 %r5, %r1, 1; setp.ne.u32 %p2, %r5, 0;
        WORK: setp.{asks}; @!%p1 bra REST; {does};
        REST: st.global.u32 [%rd1+128], %r5; ret;"""
    )
    regions.recomputable = Rematerializable(regions.flow, found.varying, found.inner)
    stages = StagePlan(found, Shape(64)).stages
    before, after = named(regions, "%r1"), named(regions, "%p1")
    assert before in stages
    assert (after in stages) is not together


# -- layout ------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 32, 33, 1024])
def test_a_blocks_arrays_do_not_overlap(threads: int) -> None:
    layout = BlockLayout(threads)
    padded = layout.padded
    assert (padded % 32, padded >= threads, padded - threads < 32) == (0, True, True)
    ranges = [(0, HEADER_SIZE)]
    sizes = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "float": 4, "i64": 8, "ptr": 8, "i128": 16}
    for name, type_ in BASE_ARRAYS.items():
        at, found = layout.array(name, type_)
        assert at == HEADER_SIZE + base_array_offset(name) * padded
        ranges.append((at, at + sizes[found] * padded))
    for name, type_ in (("a", "i1"), ("b", "i16"), ("c", "ptr"), ("d", "i128"), ("e", "float")):
        at, found = layout.array(name, type_)
        assert (at % 64, layout.array(name, type_)) == (0, (at, found))
        ranges.append((at, at + sizes[found] * padded))
    at, _ = layout.word("w")
    ranges.append((at, at + 8))
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ranges))
    assert ranges[-1][1] <= layout.size
