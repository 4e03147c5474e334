"""The persistent form: its properties on the tree, and its runs in any order of threads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.abi import control_words as words
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import EXIT, RETURN, flags
from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.passes.pass_manager import rewrite
from gpud.compiler.ptx.model import Label, Module, Variable
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from tests.compiler.support.flat_programs import compiled, entry, instructions, program
from tests.compiler.support.mutants import MUTANTS
from tests.compiler.support.ptx_interpreter import Deadlock, Machine, MachineError

CTL, JOB, HITS, BAD, NAMED = 0x1000, 0x2000, 0x10000, 0x8000, 0x9000

COUNT = """
extern "C" __global__ void count(unsigned* hits, unsigned* bad) {
    __shared__ unsigned s[64];
    unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    unsigned t = threadIdx.x;
    s[t] = block;
    __syncthreads();
    if (s[(t + 1) % blockDim.x] != block) atomicAdd(bad, 1);
    atomicAdd(hits + block, 1);
}"""


LINEAR = "(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x"
BARE = """
extern "C" __global__ void count(unsigned* hits, unsigned* bad) { atomicAdd(hits + blockIdx.x, 1); }
"""


def persistent(module: Module) -> Module:
    return rewrite(
        module, {name: classify(module, name, force=Form.PERSISTENT) for name in module.entries()}
    )


# -- on the tree -------------------------------------------------------------------------------


def test_the_input_is_not_changed() -> None:
    module = compiled(COUNT)
    before = print_module(module)
    persistent(module)
    assert print_module(module) == before


def test_only_entries_of_the_plan_change() -> None:
    module = program(
        ".visible .entry k() { ret; }",
        ".visible .entry other() { .reg .b32 %r<2>; mov.u32 %r1, %ctaid.x; ret; }",
    )
    changed = rewrite(module, {"k": classify(module, "k")})
    assert changed.entries()["other"] is module.entries()["other"]
    assert changed.entries()["k"] is not module.entries()["k"]
    assert rewrite(module, {}) is module


def test_the_only_exit_is_the_leave_block() -> None:
    body = """
        mov.u32 %r1, %tid.x;
        setp.eq.u32 %p1, %r1, 3;
        @%p1 ret;
        setp.eq.u32 %p2, %r1, 4;
        @!%p2 exit;
        @%p2 bra END;
        ret;
    END:
        mov.u32 %r2, 1;
    """
    changed = persistent(entry(body)).entries()["k"]
    leaving = [i for i in instructions(changed) if flags(i.opcode) & (RETURN | EXIT)]
    assert len(leaving) == 1
    assert leaving[0] is instructions(changed)[-1]
    to_head = [
        i for i in instructions(changed)
        if i.opcode.text == "bra" and "head" in repr(i.operands[0])
    ]  # fmt: skip
    # Two predicated exits, one plain, and falling off the end.
    assert [(i.guard is not None, bool(i.guard and i.guard.negated)) for i in to_head] == [
        (True, False), (True, True), (False, False), (False, False),
    ]  # fmt: skip
    flow = ControlFlow(changed)
    assert len([loop for loop in flow.loops if len(loop.latches) == 4]) == 1


def test_lines_of_the_source_are_kept() -> None:
    module = entry("mov.u32 %r1, %ctaid.x;\n ret;\n")
    lines = [i.line for i in instructions(module.entries()["k"])]
    changed = instructions(persistent(module).entries()["k"])
    assert [i.line for i in changed if i.line] == lines


def test_one_more_barrier_that_nothing_else_uses() -> None:
    changed = persistent(entry("bar.sync 0; bar.sync 2; ret;")).entries()["k"]
    barriers = [i for i in instructions(changed) if i.opcode.base in ("bar", "barrier")]
    texts = [(i.opcode.text, repr(i.operands[0])) for i in barriers]
    assert [t for t, _ in texts] == ["barrier.sync", "bar.warp.sync", "bar.sync", "bar.sync"]
    assert "'1'" in texts[0][1]


def test_warps_are_brought_together_only_where_it_matters() -> None:
    assert "bar.warp.sync" not in print_module(persistent(entry("mov.u32 %r1, 1; ret;")))
    assert "bar.warp.sync" in print_module(
        persistent(entry("shfl.sync.idx.b32 %r1, %r2, 0, 31, -1; ret;"))
    )


@pytest.mark.parametrize(
    ("waits", "kept"),
    [(False, {"%gpud_loop_slot", "%gpud_loop_ahead"}), (True, {"%gpud_loop_slot"})],
)
def test_one_register_lives_through_the_body_and_one_with_claims_in_advance(
    waits: bool, kept: set[str]
) -> None:
    from gpud.compiler.analysis.liveness import Liveness

    module = compiled(COUNT)
    decision = replace(classify(module, "count"), waits_on_blocks=waits)
    flow = ControlFlow(rewrite(module, {"count": decision}).entries()["count"])
    live = Liveness(flow)
    head = flow.labels["$gpud_loop_head"]
    assert {r.name for r in live.registers(live.live_in[head])} == kept


def test_coordinates_are_computed_only_if_they_are_read() -> None:
    none = print_module(persistent(entry("ret;")))
    assert "mul.hi" not in none
    one = print_module(persistent(entry("mov.u32 %r1, %ctaid.x; ret;")))
    assert one.count("mul.hi") == 1
    grid = print_module(persistent(entry("mov.u32 %r1, %nctaid.y; ret;")))
    assert "mul.hi" not in grid
    three = print_module(persistent(entry("mov.u32 %r1, %ctaid.z; ret;")))
    assert three.count("mul.hi") == 2
    for text in (none, one, grid, three):
        assert "div" not in text
        assert "rem" not in text
        # The block's own index is read to compare it with the limit, before each kind of claim.
        assert text.count("%ctaid") == text.count("ld.volatile.global.v2") == 2
        assert "%nctaid" not in text


def test_special_registers_anywhere_among_the_operands() -> None:
    text = print_module(persistent(entry("mad.lo.s32 %r1, %ctaid.x, %ntid.x, %tid.x; ret;")))
    assert "mad.lo.s32 %r1, %gpud_loop_x, %ntid.x, %tid.x;" in text


def test_the_parameter_follows_the_users() -> None:
    module = program(
        ".visible .entry k(.param .u64 control) { ret; }",
        ".visible .entry zero() { ret; }",
    )
    changed = persistent(module)
    names = [p.name for p in changed.entries()["k"].parameters]
    assert names == ["control", "gpud_loop_control"]
    assert [p.type for p in changed.entries()["zero"].parameters] == ["u64"]
    assert parse(print_module(changed)) == changed


def test_launch_bounds_stay() -> None:
    module = program(
        ".visible .entry k() .maxntid 256, 1, 1 .minnctapersm 2 { ret; }",
        ".visible .entry r() .reqntid 64 { ret; }",
    )
    changed = persistent(module)
    assert changed.entries()["k"].attributes == module.entries()["k"].attributes
    # A block that must have one row needs only its x to find the leader.
    assert "%tid.y" in print_module(rewrite(module, {"k": classify(module, "k")}))
    assert "%tid.y" not in print_module(rewrite(module, {"r": classify(module, "r")}))


def test_shared_memory_keeps_its_order_and_alignment() -> None:
    module = program(
        ".extern .shared .align 4 .b8 dynamic[];",
        ".visible .entry k() { .shared .align 4 .b8 mine[20]; ret; }",
    )
    body = persistent(module).entries()["k"].body or []
    shared = [s for s in body if isinstance(s, Variable)]
    assert shared[0].name == "mine"
    assert (shared[1].dims, shared[1].align) == ((16,), 16)


def test_asynchronous_copies_end_with_their_task_block() -> None:
    module = entry("cp.async.ca.shared.global [%r1], [%d1], 16; ret;", target="sm_80")
    found = [i.opcode.text for i in instructions(persistent(module).entries()["k"])]
    assert found.index("cp.async.wait_all") < found.index("barrier.sync")
    assert "cp.async.wait_all" not in print_module(persistent(entry("ret;")))


def test_old_programs_become_new_enough_for_the_barrier() -> None:
    assert persistent(entry("ret;", version="5.0")).version == (6, 0)
    assert persistent(entry("ret;", version="9.0")).version == (9, 0)


def test_a_label_at_the_end_of_the_body_is_followed_by_the_jump() -> None:
    changed = persistent(entry("@%p1 bra END; mov.u32 %r1, 1; END:")).entries()["k"]
    body = changed.body or []
    at = next(n for n, s in enumerate(body) if isinstance(s, Label) and s.name == "END")
    after = body[at + 1]
    assert "head" in repr(after)


# -- running -----------------------------------------------------------------------------------


def run(
    module: Module,
    grid: tuple[int, int, int],
    threads: int,
    events: list[tuple[int, int]],
    seed: int,
    *arguments: int,
    name: str = "count",
    claims: words.Claims = words.ONE_AT_A_TIME,
) -> Machine:
    """Run a job to its end, resizing it on the way.

    Args:
        events: (instructions to run first, persistent blocks to have from then on).
    """
    machine = Machine(module, seed)
    machine.words(JOB, words.job_record(grid, claims))
    total = grid[0] * grid[1] * grid[2]
    for block in range(total):
        machine.memory[HITS + 4 * block] = 0
    machine.memory[BAD] = 0
    launches: list[int] = []
    staying: list[tuple[int, int]] = []

    def launch(blocks: int) -> None:
        ctl = CTL + words.launch_bytes(blocks) * len(launches)
        machine.control(ctl, JOB, blocks)
        machine.launch(name, blocks, (threads, 1, 1), *(arguments or (HITS, BAD)), ctl)
        launches.append(ctl)
        staying.extend((ctl, index) for index in range(blocks))

    launch(events[0][1])
    for steps, blocks in events[1:]:
        machine.run(steps)
        if blocks > len(staying):
            launch(blocks - len(staying))
        while len(staying) > blocks:
            ctl, index = staying.pop(machine.random.randrange(len(staying)))
            machine.memory[ctl + words.STAYS] &= ~(1 << index)
    machine.run()
    launch(1)  # resume: runs what a stop has left
    machine.run()
    for ctl in launches:
        assert machine.live(ctl) == 0, "a leaver was not counted"
    return machine


def check(machine: Machine, grid: tuple[int, int, int], threads: int) -> None:
    total = grid[0] * grid[1] * grid[2]
    hits = [machine.memory[HITS + 4 * block] for block in range(total)]
    assert hits == [threads] * total, "a task block was lost or run twice"
    assert machine.memory[BAD] == 0, "a block was torn"
    assert machine.memory[JOB + words.DONE] == total
    assert machine.memory[JOB + words.NEXT] >= total


EVENTS = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 4)), min_size=1, max_size=5).filter(
    lambda events: events[0][1] > 0
)
CLAIMS = st.sampled_from(
    [words.Claims(*one) for one in ((1, 0), (2, 0), (1, 1), (3, 2), (7, 0), (2, 7))]
)
GRIDS = st.sampled_from([(1, 1, 1), (5, 1, 1), (3, 2, 1), (2, 3, 2), (1, 4, 1), (1, 1, 3)])


@given(
    source=st.sampled_from([COUNT, BARE.replace("blockIdx.x", LINEAR)]),
    grid=GRIDS, threads=st.integers(1, 4), events=EVENTS, seed=st.integers(0, 2**32),
    claims=CLAIMS,
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_every_task_block_runs_once(
    source: str,
    grid: tuple[int, int, int],
    threads: int,
    events: list[tuple[int, int]],
    seed: int,
    claims: words.Claims,
) -> None:
    module = persistent(compiled(source))
    check(run(module, grid, threads, events, seed, claims=claims), grid, threads)


def test_how_blocks_claim_may_change_at_any_time() -> None:
    machine = Machine(persistent(compiled(BARE)), 3)
    total = 60
    machine.words(JOB, words.job_record((total, 1, 1)))
    machine.memory |= {HITS + 4 * block: 0 for block in range(total)}
    machine.memory[BAD] = 0
    machine.control(CTL, JOB, 2)
    machine.launch("count", 2, (3, 1, 1), HITS, BAD, CTL)
    for chunk, ahead in ((1, 3), (4, 0), (2, 2), (1, 1), (3, 1), (1, 0)):
        machine.run(400)
        assert machine.memory[JOB + words.NEXT] < total
        machine.memory |= {JOB + words.CHUNK: chunk, JOB + words.AHEAD: ahead}
    machine.run()
    check(machine, (total, 1, 1), 3)


@pytest.mark.parametrize("claims", [(1, 0), (4, 0), (1, 1), (1, 3), (3, 3)])
def test_a_released_block_runs_what_it_holds_and_claims_no_more(claims: tuple[int, int]) -> None:
    how = words.Claims(*claims)
    module = persistent(compiled(BARE))
    found = set()
    for seed in range(20):
        machine = Machine(module, seed)
        machine.words(JOB, words.job_record((50, 1, 1), how))
        machine.memory |= {HITS + 4 * block: 0 for block in range(50)}
        machine.memory[BAD] = 0
        machine.control(CTL, JOB, 1)
        machine.launch("count", 1, (2, 1, 1), HITS, BAD, CTL)
        machine.run(150 + 11 * seed)
        before = machine.memory[JOB + words.NEXT]
        machine.memory[CTL + words.STAYS] = 0
        machine.run()
        after, done = (machine.memory[JOB + at] for at in (words.NEXT, words.DONE))
        assert after == done == sum(machine.memory[HITS + 4 * block] for block in range(50)) // 2
        found.add(after - before)
    assert 0 in found
    assert max(found) <= how.most


def test_kernels_that_wait_on_blocks_claim_one_at_a_time_whatever_the_record_says() -> None:
    module = compiled(COUNT)
    decision = replace(classify(module, "count"), waits_on_blocks=True)
    changed = rewrite(module, {"count": decision})
    machine = Machine(changed, 1)
    machine.words(JOB, words.job_record((9, 1, 1), words.Claims(4, 4)))
    machine.memory |= {HITS + 4 * block: 0 for block in range(9)}
    machine.memory[BAD] = 0
    machine.control(CTL, JOB, 1)
    machine.launch("count", 1, (2, 1, 1), HITS, BAD, CTL)
    while machine.memory[JOB + words.NEXT] < 9:
        assert machine.memory[JOB + words.NEXT] <= machine.memory[JOB + words.DONE] + 2
        machine.run(1)
    machine.run()
    check(machine, (9, 1, 1), 2)


@pytest.mark.parametrize("seed", range(8))
def test_blocks_on_named_sms_leave_and_the_others_finish(seed: int) -> None:
    grid, threads, blocks = (60, 1, 1), 2, 5
    machine = Machine(persistent(compiled(COUNT)), seed)

    def begin(sms: Iterable[int]) -> None:
        machine.words(JOB, words.job_record(grid))
        machine.words(HITS, bytes(4 * 60))
        machine.memory[BAD] = 0
        machine.words(NAMED, words.named_sms(sms))
        machine.control(CTL, JOB, blocks, named=NAMED)
        machine.launch("count", blocks, (threads, 1, 1), HITS, BAD, CTL)

    begin([])
    machine.run(100 + 50 * seed)
    machine.words(NAMED, words.named_sms([1]))  # that of blocks 1 and 4
    while any(block.threads for block in machine.blocks if block.index in (1, 4)):
        machine.run(1)
    assert machine.memory[JOB + words.NEXT] < 60, "they stayed to the end"
    assert machine.live(CTL) == 3
    machine.run()
    check(machine, grid, threads)
    assert machine.live(CTL) == 0

    begin(range(words.MOST_SMS))
    machine.run()
    assert machine.memory[JOB + words.NEXT] == 0, "somebody claimed on an SM that was named"
    assert machine.live(CTL) == 0


def failures(change: Callable[[Module], Module]) -> int:
    """How many of some runs fail if the rewritten kernels are changed."""
    found = 0
    for source in (BARE, COUNT):
        module = change(persistent(compiled(source)))
        for seed in range(30):
            events = [(0, 2), (seed * 7, 1), (seed * 5, 0), (40, 2)]
            claims = words.Claims(*((1, 0), (2, 0), (2, 2))[seed % 3])
            try:
                check(run(module, (7, 1, 1), 3, events, seed, claims=claims), (7, 1, 1), 3)
            except (AssertionError, MachineError):
                found += 1
    return found


def test_the_runs_that_judge_the_faults_pass_without_one() -> None:
    assert failures(lambda module: module) == 0


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    assert failures(MUTANTS[name]) > 0


LEAVE_EARLY = """
extern "C" __global__ void count(unsigned* hits, unsigned* bad) {
    __shared__ unsigned s[64];
    unsigned block = blockIdx.x, t = threadIdx.x;
    s[t] = block;
    atomicAdd(hits + block, 1);
    if (t > block % 3) return;
    __syncthreads();
    if (s[t] != block) atomicAdd(bad, 1);
    for (unsigned k = 0; k < t + block % 2; ++k) { __syncthreads(); s[t] = block; }
}"""


@given(threads=st.integers(1, 5), events=EVENTS, seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_threads_may_leave_before_barriers_that_others_reach(
    threads: int, events: list[tuple[int, int]], seed: int
) -> None:
    module = compiled(LEAVE_EARLY)
    assert classify(module, "count").exit_aware
    check(run(persistent(module), (7, 1, 1), threads, events, seed), (7, 1, 1), threads)


def test_plain_barriers_would_hang_there() -> None:
    """The danger is real: without exit-aware barriers the same kernel gets stuck."""
    module = compiled(LEAVE_EARLY)
    decision = replace(classify(module, "count"), exit_aware=False, barrier=1)
    changed = rewrite(module, {"count": decision})
    with pytest.raises(Deadlock):
        run(changed, (7, 1, 1), 4, [(0, 1)], 1)


def test_exit_aware_barriers_also_work_where_nobody_leaves() -> None:
    plain = compiled(COUNT)
    decision = replace(classify(plain, "count"), exit_aware=True, barrier=0)
    module = rewrite(plain, {"count": decision})
    assert "barrier.red" in print_module(module)
    check(run(module, (5, 1, 1), 3, [(0, 2), (200, 1)], 5), (5, 1, 1), 3)


FUNCTIONS = """
__device__ __noinline__ unsigned number() {
    return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
}
__device__ __noinline__ void meet(unsigned* hits) {
    __syncthreads();
    atomicAdd(hits + number(), 1);
}
extern "C" __global__ void count(unsigned* hits, unsigned* bad) { LEAVE meet(hits); }
"""


@pytest.mark.parametrize("leave", ["", "if (threadIdx.x > 7) return;"])
def test_functions_see_the_users_coordinates(leave: str) -> None:
    module = persistent(compiled(FUNCTIONS.replace("LEAVE", leave)))
    machine = run(module, (2, 3, 2), 3, [(0, 2), (300, 1), (100, 3)], 11)
    check(machine, (2, 3, 2), 3)


# -- assembling --------------------------------------------------------------------------------

PTXAS = pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")


@PTXAS
@pytest.mark.parametrize("sm", ["sm_75", "sm_90", "sm_100"])
@pytest.mark.parametrize("source", [COUNT, LEAVE_EARLY, FUNCTIONS.replace("LEAVE", "")])
@pytest.mark.parametrize("form", [Form.PERSISTENT, Form.SLICED])
def test_rewritten_kernels_assemble(tmp_path: Path, sm: str, source: str, form: Form) -> None:
    module = compiled(source)
    changed = rewrite(module, {"count": classify(module, "count", force=form)})
    path = tmp_path / "kernel.ptx"
    path.write_text(print_module(changed))
    done = subprocess.run(
        ["ptxas", "-arch", sm, "-o", str(tmp_path / "kernel.cubin"), str(path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_call_graph_has_nothing_new_outside_the_loop() -> None:
    """The pass adds no call and no special register but those of the leader's test."""
    module = compiled(COUNT)
    before, after = CallGraph(module), CallGraph(persistent(module))
    new = set(after.uses["count"].specials) - set(before.uses["count"].specials)
    assert new <= {"%tid.x", "%tid.y", "%tid.z", "%ctaid.x", "%smid"}
    assert after.uses["count"].calls == before.uses["count"].calls
