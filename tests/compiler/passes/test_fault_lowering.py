"""Fault lowering: the context of reports, and runs after a fault in any order of threads."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fast_division import coordinates
from gpud.compiler.abi.fault_record import COMPLETE, FaultKind, FaultRecord, fault_of
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.liveness import Liveness
from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.passes.pass_manager import rewrite
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.toolchain.ptxas import assemble
from gpud.errors import KernelRejected
from tests.compiler.support.flat_programs import compiled, entry, instructions, program
from tests.compiler.support.ptx_interpreter import Machine, Trapped

FORMS = (Form.PERSISTENT, Form.SLICED, Form.WHOLE)
CTL, JOB, HITS = 0x1000, 0x2000, 0x10000
TRAP = FaultKind.TRAP.value
OWN = "%gpud_report_kind, %gpud_report_site, %gpud_report_address"


def in_form(module: Module, form: Form | None = None, sites: SiteTable | None = None) -> Module:
    plan = {name: classify(module, name, force=form) for name in module.entries()}
    return rewrite(module, plan, sites=sites)


def texts(module: Module, name: str = "k") -> list[str]:
    function = next(f for f in module.functions() if f.name == name and f.body is not None)
    return [print_instruction(ins) for ins in instructions(function)]


# -- on the tree -------------------------------------------------------------------------------


def test_reports_of_a_sliced_entry_leave_the_number_to_the_function() -> None:
    changed = in_form(entry("@%p1 trap; ret;"), Form.SLICED)
    assert texts(changed) == [
        "ld.param.u64 %gpud_context_ctl, [gpud_slice_control];",
        "@!%p1 bra $gpud_trap_1;",
        f"mov.b32 %gpud_report_kind, {TRAP};",
        "mov.b32 %gpud_report_site, 0;",
        "mov.b64 %gpud_report_address, 0;",
        "bra $gpud_report_fault;",
        "ret;",
        f"call gpud_fault, (%gpud_context_ctl, 4294967295, 4294967295, {OWN});",
        "trap;",
    ]
    verify(changed)


def test_a_persistent_entry_finds_its_claim_where_the_loop_keeps_it() -> None:
    changed = in_form(entry("@%p1 trap; ret;"), Form.PERSISTENT)
    assert texts(changed)[-4:] == [
        "xor.b32 %gpud_report_place, %gpud_loop_slot, 4;",
        "ld.shared.u32 %gpud_report_claim, [%gpud_report_place];",
        f"call gpud_fault, (%gpud_context_ctl, %gpud_report_claim, %gpud_loop_slot, {OWN});",
        "trap;",
    ]
    verify(changed)


def test_reports_keep_no_further_register_through_the_body() -> None:
    source = """
    extern "C" __global__ void k(int* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        for (int j = 0; j < n; ++j) { if (x[i] == j) __trap(); x[i] += j; }
    }"""
    changed = in_form(compiled(source), Form.PERSISTENT)
    call_graph = CallGraph(changed)
    live = Liveness(call_graph.flow("k"))
    through = {
        r.name for loop in live.flow.loops for r in live.registers(live.live_in[loop.header])
    }
    own = {name for name in through if "gpud" in name}
    # The parameter is a constant: where it is loaded does not matter.
    assert own <= {"%gpud_loop_slot", "%gpud_loop_ahead", "%gpud_context_ctl"}


def test_whole_entries_get_the_parameter_with_or_without_reports() -> None:
    for body, parameters in (("trap;", 3), ("ret;", 3)):
        changed = in_form(entry(body), Form.WHOLE).entries()["k"]
        assert len(changed.parameters) == parameters
        assert (changed.parameters[-1].type, changed.parameters[-1].name) == ("u64", "gpud_control")
    module = program(".visible .entry k(.param .u64 gpud_control) { ret; }")
    names = [p.name for p in in_form(module, Form.WHOLE).entries()["k"].parameters]
    assert names == ["gpud_control", "gpud_control_"]


def test_a_program_with_full_parameters_becomes_new_enough_for_more() -> None:
    text = ".visible .entry k(.param .align 4 .b8 p[4348]) { ret; }"
    changed = in_form(program(text, version="7.0"))
    assert classify(program(text, version="7.0"), "k").form is Form.WHOLE
    assert changed.version == (8, 1)


def test_a_program_without_reports_gets_no_functions() -> None:
    changed = in_form(entry("ret;"))
    assert [f.name for f in changed.functions()] == ["k"]
    module = entry("trap;", version="6.0")
    changed = in_form(module)
    assert [f.name for f in changed.functions()] == ["gpud_leave", "gpud_fault", "k"]
    assert changed.version == (6, 4)


FUNCTIONS = (
    ".func quiet() { ret; }",
    ".func (.param .b32 r) inner(.param .b64 p) { st.param.b32 [r], 1; trap; }",
    """.func outer(.param .b64 p) {
        .param .b64 q; .param .b32 r; st.param.b64 [q], 0;
        call (r), inner, (q); call quiet; ret; }""",
)


def test_functions_are_given_the_context() -> None:
    module = program(
        *FUNCTIONS,
        """.visible .entry k() {
            .param .b64 q; st.param.b64 [q], 0; call outer, (q); call quiet; ret; }""",
    )
    for form in FORMS:
        changed = in_form(module, form)
        found = {f.name: [p.name for p in f.parameters] for f in changed.functions()}
        hidden = [f"gpud_context_in_{key}" for key in ("ctl", "claim", "slots")]
        assert found["outer"] == found["inner"] == ["p", *hidden]
        assert found["quiet"] == []
        assert texts(changed, "quiet") == ["ret;"]
        verify(changed)
    last = texts(in_form(module, Form.PERSISTENT), "inner")[-2]
    assert last.startswith("call gpud_fault, (%gpud_context_ctl, %gpud_context_claim, "
                           "%gpud_context_slots,")  # fmt: skip


def test_entries_that_are_not_rewritten_pass_nothing() -> None:
    module = program(*FUNCTIONS, """.visible .entry k() {
        .param .b64 q; st.param.b64 [q], 0; call outer, (q); ret; }""",
        ".visible .entry other() { .param .b64 q; st.param.b64 [q], 0; call outer, (q); ret; }",
    )  # fmt: skip
    changed = rewrite(module, {"k": classify(module, "k")})
    assert "mov.u64 %gpud_context_out_ctl, 0;" in texts(changed, "other")
    verify(changed)


@pytest.mark.parametrize(
    "body",
    [
        ".reg .b32 %gpud_report_kind;",
        "$gpud_report_fault:",
        "$gpud_report_fault: .branchtargets L; L:",
        "$gpud_kill_leave: bra $gpud_kill_leave;",
        ".reg .b32 %gpud_kill_<4>;",
        ".shared .b32 gpud_bounds_x;",
        ".shared .b32 gpud_loop_slots;",
        ".reg .b32 %gpud_loop2_<3>;",
    ],
)
def test_registers_and_labels_that_devices_recognise_are_refused(body: str) -> None:
    with pytest.raises(KernelRejected, match="gpud uses") as caught:
        in_form(program(f".visible .entry k() {{ {body} trap; }}"))
    assert caught.value.reason == "reserved-name"
    assert caught.value.line is not None


@pytest.mark.parametrize("name", ["k__gpud_sliced", "f__gpud_killable"])
def test_functions_may_not_have_names_of_variants(name: str) -> None:
    text = print_module(program(f".func {name}() {{ ret; }}", ".visible .entry k() { ret; }"))
    with pytest.raises(KernelRejected, match=name) as caught:
        compile_program(text)
    assert caught.value.reason == "reserved-name"


def test_other_names_that_the_passes_use_are_not() -> None:
    names = ("gpud_context", "gpud_slice", "gpud_trap")
    declared = "".join(f".reg .b64 %{name}_ctl; ${name}_head: " for name in names)
    changed = in_form(program(f".visible .entry k() {{ {declared} trap; }}"))
    verify(changed)


def test_a_program_may_not_define_gpuds_names() -> None:
    for name in ("gpud_fault", "gpud_assert", "gpud_leave"):
        module = program(
            f".func {name}() {{ ret; }}", f".visible .entry k() {{ call {name}; ret; }}"
        )
        with pytest.raises(KernelRejected, match=name) as caught:
            in_form(module)
        assert caught.value.reason == "reserved-name"


# -- with ptxas --------------------------------------------------------------------------------

NEEDS_PTXAS = pytest.mark.skipif(shutil.which("ptxas") is None, reason="needs ptxas")

CALLS = """
__device__ __noinline__ float deep(float* x, int i) {
    if (i < 0) __trap();
    return i > 3 ? deep(x, i / 2) + x[i] : x[0];
}
__device__ __noinline__ float one(float* x, int i) { assert(i < 5); return x[i]; }
__device__ __noinline__ float two(float* x, int i) { if (i == 9) __brkpt(); return x[2 * i]; }
typedef float (*Pick)(float*, int);
__device__ Pick table[2] = {one, two};
extern "C" __global__ void k(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    __syncthreads();
    for (int j = 0; j < n; ++j) x[i] += table[j & 1](x, j) + deep(x, j);
    assert(x[i] > 0);
    if (x[i] > 7) __trap();
}
"""


@NEEDS_PTXAS
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("form", [None, "sliced", "whole"])
@pytest.mark.parametrize("bounds_checks", [False, True])
def test_everything_assembles(arch: str, form: str | None, bounds_checks: bool) -> None:
    program = compile_program(CALLS, form=form, bounds_checks=bounds_checks)
    verify(parse(program.ptx))
    names = set(assemble(program.ptx, arch))
    assert {"k", "k__gpud_killable"} <= names


@NEEDS_PTXAS
@pytest.mark.parametrize("form", FORMS)
def test_functions_with_parameters_in_registers_assemble(form: Form) -> None:
    module = program(
        ".func f(.reg .b32 %n) { .reg .pred %p; setp.eq.u32 %p, %n, 3; @%p trap; ret; }",
        ".visible .entry k(.param .u32 n) "
        "{ .reg .b32 %r; ld.param.u32 %r, [n]; call f, (%r); ret; }",
    )
    changed = in_form(module, form)
    verify(changed)
    assemble(print_module(changed), "sm_75")


# -- running -----------------------------------------------------------------------------------

KERNEL = """
__device__ __noinline__ void check(unsigned block, unsigned t, unsigned bad, unsigned first) {
    if (block == bad && t >= first) __trap();
}
extern "C" __global__ void k(unsigned* hits, unsigned total, unsigned bad, unsigned first) {
    unsigned t = threadIdx.x;
    atomicAdd(hits + blockIdx.x, 1);
    CHECK
    atomicAdd(hits + total + blockIdx.x, 1);
}
"""
INLINE = KERNEL.replace("CHECK", "if (blockIdx.x == bad && t >= first) __trap();")
CALLING = KERNEL.replace("CHECK", "check(blockIdx.x, t, bad, first);")
TOTAL, THREADS = 9, 4


def job_bytes(machine: Machine) -> bytes:
    return b"".join(
        machine.memory[JOB + at].to_bytes(4, "little") for at in range(0, words.JOB_BYTES, 4)
    )


def faulting(
    source: str, form: Form, blocks: int, bad: int, first: int, seed: int
) -> tuple[Machine, FaultRecord, list[int], list[int]]:
    """Run the kernel to its end: machine, record, threads that began and that ended by block."""
    sites = SiteTable(compiled(source))
    module = in_form(compiled(source), form, sites)
    machine = Machine(module, seed)
    machine.words(JOB, words.job_record((TOTAL, 1, 1)))
    for word in range(2 * TOTAL):
        machine.memory[HITS + 4 * word] = 0
    base = 2 if form is Form.SLICED else 0
    machine.control(CTL, JOB, blocks, base=base)
    machine.launch("k", blocks, (THREADS, 1, 1), HITS, TOTAL, bad, first, CTL)
    machine.run()
    record = fault_of(job_bytes(machine))
    assert record is not None
    began = [machine.memory[HITS + 4 * block] for block in range(TOTAL)]
    ended = [machine.memory[HITS + 4 * (TOTAL + block)] for block in range(TOTAL)]
    assert record.kind is FaultKind.TRAP
    assert record.claim == bad
    assert record.thread[0] in range(first, THREADS)
    assert record.thread[1:] == (0, 0)
    assert sites.sites[record.site].instruction == "trap;"
    return machine, record, began, ended


@given(
    source=st.sampled_from([INLINE, CALLING]), blocks=st.integers(1, 3), bad=st.integers(0, 5),
    first=st.integers(0, THREADS - 1), seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_persistent_job_ends_after_a_fault(
    source: str, blocks: int, bad: int, first: int, seed: int
) -> None:
    machine, _, began, ended = faulting(source, Form.PERSISTENT, blocks, bad, first, seed)
    memory = machine.memory
    assert memory[JOB + words.NEXT] >= TOTAL, "something can still be claimed"
    assert machine.live(CTL) == 0, "a block was not counted out"
    assert max(began) <= THREADS, "a task block was run twice"
    # Threads of its block that had not begun leave; those that found nothing wrong go on.
    assert 0 < began[bad] <= THREADS
    assert ended[bad] <= first
    others = [block for block in range(TOTAL) if block != bad]
    assert all(began[block] == ended[block] for block in others), "a task block was left undone"
    # The leader may have been claiming: its block runs that one without those that have gone.
    short = [block for block in others if began[block] not in (0, THREADS)]
    assert len(short) <= 1
    whole = [block for block in others if began[block] == THREADS]
    # The one before may not be counted: a fast thread clears the slots before the leader looks.
    done = memory[JOB + words.DONE]
    assert len(whole) - 1 <= done <= len(whole) + len(short)


MEETING = """
extern "C" __global__ void k(unsigned* hits, unsigned total, unsigned bad, unsigned first) {
    unsigned t = threadIdx.x, b = blockIdx.x;
    atomicAdd(hits + b, 1);
    LEAVE
    __syncthreads();
    if (b == bad && t >= first) __trap();
    __syncthreads();
    atomicAdd(hits + total + b, 1);
}
"""


@given(
    leave=st.sampled_from(["", "if (t > b % 3) return;"]), blocks=st.integers(1, 3),
    bad=st.integers(0, 5), first=st.integers(0, 1), seed=st.integers(0, 2**32),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_nobody_waits_at_a_barrier_for_those_that_failed(
    leave: str, blocks: int, bad: int, first: int, seed: int
) -> None:
    source = MEETING.replace("LEAVE", leave)
    assert classify(compiled(source), "k").exit_aware is bool(leave)
    if leave and bad % 3 < first:
        return  # nobody reaches the trap
    _, _, began, ended = faulting(source, Form.PERSISTENT, blocks, bad, first, seed)
    assert began[bad] == THREADS
    assert ended[bad] <= first


@given(blocks=st.integers(1, 3), bad=st.integers(0, 5), seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_the_slots_of_a_block_whose_leader_failed_say_nothing(
    blocks: int, bad: int, seed: int
) -> None:
    machine, _, _, _ = faulting(INLINE, Form.PERSISTENT, blocks, bad, 0, seed)
    slots = [{block.shared.get(0), block.shared.get(4)} for block in machine.blocks]
    assert slots.count({words.NOTHING}) >= 1


@pytest.mark.parametrize(("form", "bad"), [(Form.SLICED, 3), (Form.WHOLE, 1)])
@pytest.mark.parametrize("source", [INLINE, CALLING])
def test_the_other_forms_name_the_task_block_too(source: str, form: Form, bad: int) -> None:
    for seed in range(10):
        machine, _, began, ended = faulting(source, form, 4, bad, 2, seed)
        assert ended[bad] == 2
        ran = range(2, 6) if form is Form.SLICED else range(4)
        assert [ended[b] for b in ran if b != bad] == [THREADS] * 3
        assert [began[b] for b in ran] == [THREADS] * 4
        assert machine.memory[JOB + words.NEXT] == TOTAL


def test_a_whole_launch_numbers_its_task_blocks_row_by_row() -> None:
    source = """
    extern "C" __global__ void k() {
        if (blockIdx.x == 2 && blockIdx.y == 1 && blockIdx.z == 3 && threadIdx.y == 1) __trap();
    }"""
    machine = Machine(in_form(compiled(source), Form.WHOLE), 5)
    machine.words(JOB, words.job_record((3, 2, 4)))
    machine.control(CTL, JOB, 24)
    machine.launch("k", (3, 2, 4), (1, 2, 1), CTL)
    machine.run()
    record = fault_of(job_bytes(machine))
    assert record is not None
    assert record.claim is not None
    assert coordinates(record.claim, (3, 2, 4)) == (2, 1, 3)
    assert record.thread == (0, 1, 0)


def test_without_control_words_a_report_is_a_trap() -> None:
    module = program(
        *FUNCTIONS,
        ".visible .entry k() { ret; }",
        """.visible .entry other() {
        .param .b64 q; st.param.b64 [q], 0; call outer, (q); ret; }""",
    )
    changed = rewrite(module, {"k": classify(module, "k")})
    machine = Machine(changed, 0)
    machine.launch("other", 1, (1, 1, 1))
    with pytest.raises(Trapped):
        machine.run()


def test_the_first_assertion_is_recorded_with_its_strings() -> None:
    body = """
        .param .b64 m; .param .b64 f; .param .b32 l; .param .b64 g; .param .b64 s;
        st.param.b64 [m], 4294967299; st.param.b64 [f], 5; st.param.b32 [l], 77;
        st.param.b64 [g], 6; st.param.b64 [s], 1;
        call __assertfail, (m, f, l, g, s);
    """
    extern = ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 g, .param .b64 s);"  # noqa: E501
    module = in_form(program(extern, f".visible .entry k() {{ {body} ret; }}"))
    machine = Machine(module, 3)
    machine.words(JOB, words.job_record((3, 1, 1)))
    machine.control(CTL, JOB, 2)
    machine.launch("k", 2, (2, 2, 1), CTL)
    machine.run()
    record = fault_of(job_bytes(machine))
    assert record is not None
    assert record.kind is FaultKind.ASSERT
    assert (record.address, record.file, record.line, record.function) == (2**32 + 3, 5, 77, 6)


# -- the record --------------------------------------------------------------------------------


def test_a_record_is_read_as_it_is_laid_out() -> None:
    job = np.zeros(1, np.dtype(words.JOB_RECORD))
    assert fault_of(job.tobytes()) is None
    job["fault_state"] = 1
    assert fault_of(job.tobytes()) is None
    values = {
        "state": COMPLETE, "kind": 5, "site": 3, "claim": 9, "thread": (1, 2, 3),
        "line": 4, "address": 2**40, "file": 2**41, "function": 2**42,
    }  # fmt: skip
    for name, value in values.items():
        job[f"fault_{name}"] = value
    found = fault_of(job.tobytes())
    assert found == FaultRecord(FaultKind.MISALIGNED, 3, 9, (1, 2, 3), 4, 2**40, 2**41, 2**42)
    job["fault_claim"] = words.NOTHING
    found = fault_of(memoryview(job.tobytes()))
    assert found is not None
    assert found.claim is None
    job["fault_kind"] = 99
    with pytest.raises(ValueError, match="99"):
        fault_of(job.tobytes())
