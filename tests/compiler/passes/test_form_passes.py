"""Exit-aware barriers, slices, hidden parameters and the registry of passes, on the tree."""

from __future__ import annotations

import pytest

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import killable_variant, sliced_variant
from gpud.compiler.analysis.call_graph import CallGraph, call_graph
from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.passes.forms.hidden_parameters import needs_of
from gpud.compiler.passes.pass_manager import PASSES, rewrite
from gpud.compiler.passes.variants import pass_variants
from gpud.compiler.ptx.model import Immediate, Module, Register
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.errors import KernelRejected
from tests.compiler.support.flat_programs import compiled, entry, instructions, only, program
from tests.compiler.support.ptx_interpreter import Machine

LEAVE = "mov.u32 %r30, %tid.x; setp.gt.u32 %p9, %r30, 5; @%p9 ret;"
REGISTERS = ".reg .b32 %r<32>; .reg .b64 %d<8>; .reg .pred %p<16>;"


LOOPING = r"""
__device__ __noinline__ int at(const int* n, int i) { return n[i * n[1]]; }
extern "C" __global__ void k(int* x, const int* n) {
    for (int i = 0; i < n[1]; i++) {
        x[i * n[blockIdx.x]] += x[at(n, i)];
        __syncthreads();
    }
}"""


def in_form(module: Module, form: Form | None = None) -> Module:
    """The module with every kernel in its own form, or in ``form``."""
    return rewrite(module, {n: classify(module, n, force=form) for n in module.entries()})


# -- exit-aware barriers -----------------------------------------------------------------------


def test_full_barriers_get_the_loops_number_and_others_stay() -> None:
    changed = in_form(entry(f"bar.arrive 4, 64; {LEAVE} bar.sync 3; barrier.sync 5; ret;"))
    found = [i for i in instructions(changed.entries()["k"]) if i.opcode.base in ("bar", "barrier")]
    texts = [i.opcode.text for i in found]
    assert texts == [
        "barrier.red.or.pred", "bar.warp.sync", "bar.arrive",
        "barrier.red.or.pred", "barrier.red.or.pred",
    ]  # fmt: skip
    numbers = [i.operands[1] for i in found if i.opcode.has("red")]
    assert numbers == [Immediate("0", 0)] * 3


def test_guards_and_lines_of_barriers_are_kept() -> None:
    module = entry("mov.u32 %r1, %tid.x;\n setp.eq.u32 %p1, %r1, 0;\n @!%p1 bar.sync 0;\n ret;")
    assert classify(module, "k").exit_aware
    (before,) = [i for i in instructions(module.entries()["k"]) if i.opcode.base == "bar"]
    after = [i for i in instructions(in_form(module).entries()["k"]) if i.opcode.has("red")][-1]
    assert after.guard == before.guard
    assert after.guard is not None
    assert after.guard.negated
    assert after.line == before.line


def test_threads_in_the_body_say_yes_and_those_that_left_say_no() -> None:
    changed = in_form(entry(f"{LEAVE} bar.sync 0; ret;")).entries()["k"]
    constants = {
        i.operands[0]: i.operands[1] for i in instructions(changed) if i.opcode.text == "mov.pred"
    }
    head, body = [i.operands[2] for i in instructions(changed) if i.opcode.has("red") and
                  i.opcode.base == "barrier"]  # fmt: skip
    assert isinstance(head, Register)
    assert isinstance(body, Register)
    assert constants[head] == Immediate("0", 0)
    assert constants[body] == Immediate("1", 1)


def test_functions_with_barriers_are_copied_for_the_kernels_that_need_it() -> None:
    module = program(
        ".func outer();",
        ".func quiet() { ret; }",
        f".visible .entry leaves() {{ {REGISTERS} {LEAVE} call outer; call quiet; ret; }}",
        ".visible .entry stays() { call outer; ret; }",
        # Defined after the kernels: the copies must come after what they call, too.
        ".func inner() { bar.sync 0; ret; }",
        ".func outer() { call inner; ret; }",
    )
    changed = in_form(module)
    order = [f.name for f in changed.functions() if f.body is not None]
    assert all(order.index("inner") < order.index(n) for n in order if n.startswith("gpud_body"))
    functions = {f.name: f for f in changed.functions() if f.body is not None}
    assert print_module(changed).count("bar.sync 0;") == 1
    assert only(functions["inner"], "bar.sync").operands == (Immediate("0", 0),)
    copies = [name for name in functions if name.startswith("gpud_body")]
    assert [name.rsplit("_", 1)[1] for name in copies] == ["outer", "inner"]
    calls = {i.operands[0] for i in instructions(functions["leaves"]) if i.opcode.base == "call"}
    assert {getattr(c, "name", None) for c in calls} == {copies[0], "quiet"}
    assert "gpud_body" not in repr(instructions(functions["stays"]))
    assert parse(print_module(changed)) == changed


# -- slices ------------------------------------------------------------------------------------


def test_a_slice_changes_nothing_but_coordinates() -> None:
    module = entry(f"{LEAVE} bar.sync 0; mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; ret;")
    changed = in_form(module, Form.SLICED).entries()["k"]
    texts = [i.opcode.text for i in instructions(changed)]
    old = [i.opcode.text for i in instructions(module.entries()["k"])]
    assert texts[-len(old) :] == old
    assert texts.count("bar.sync") == 1
    assert changed.parameters[-1].type == "u64"


def test_a_slice_without_coordinates_only_gets_its_parameter() -> None:
    module = entry("ret;")
    changed = in_form(module, Form.SLICED).entries()["k"]
    assert instructions(changed) == instructions(module.entries()["k"])
    assert len(changed.parameters) == len(module.entries()["k"].parameters) + 1


@pytest.mark.parametrize("grid", [(7, 1, 1), (3, 4, 1), (2, 3, 4)])
def test_slices_of_any_size_run_every_task_block_once(grid: tuple[int, int, int]) -> None:
    source = """
    extern "C" __global__ void k(unsigned* hits) {
        unsigned b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
        if (threadIdx.x > b % 2) return;
        atomicAdd(hits + b, 1 + threadIdx.x * gridDim.z);
    }"""
    changed = in_form(compiled(source), Form.SLICED)
    total = grid[0] * grid[1] * grid[2]
    machine = Machine(changed, 3)
    machine.words(0x2000, words.job_record(grid))
    machine.words(0x10000, bytes(4 * total))
    base, sizes = 0, [1, 2, 3, total]
    while base < total:
        blocks = min(sizes.pop(0), total - base)
        machine.control(0x1000, 0x2000, blocks, base=base)
        machine.launch("k", blocks, (3, 1, 1), 0x10000, 0x1000)
        machine.run()
        base += blocks
    hits = [machine.memory[0x10000 + 4 * b] for b in range(total)]
    assert hits == [1 + (b % 2) * (1 + grid[2]) for b in range(total)]


# -- hidden parameters -------------------------------------------------------------------------

NESTED = """
__device__ __noinline__ int leaf(int a) { return a * blockIdx.x + gridDim.y; }
__device__ __noinline__ int middle(int a) { return leaf(a) + 1; }
__device__ __noinline__ int none(int a) { return a * 3; }
extern "C" __global__ void k(int* x) { x[threadIdx.x] = middle(threadIdx.x) + none(threadIdx.x); }
"""


def test_needs_are_passed_from_callees_to_callers() -> None:
    found = needs_of(CallGraph(compiled(NESTED)))
    both = ("%ctaid.x", "%nctaid.y")
    assert found == {"_Z4leafi": both, "_Z6middlei": both, "_Z4nonei": ()}


def test_functions_get_what_they_need_as_parameters() -> None:
    module = compiled(NESTED)
    changed = in_form(module, Form.SLICED)
    functions = {f.name: f for f in changed.functions()}
    assert len(functions["_Z4leafi"].parameters) == 3
    assert len(functions["_Z6middlei"].parameters) == 3
    assert len(functions["_Z4nonei"].parameters) == 1
    for function in functions.values():
        specials = CallGraph(changed).uses[function.name].specials
        if function.kind == "func":
            assert not [s for s in specials if "ctaid" in s]
    assert parse(print_module(changed)) == changed


def test_a_module_whose_functions_need_nothing_stays() -> None:
    module = compiled(NESTED.replace("blockIdx.x", "3").replace("gridDim.y", "4"))
    stages: dict[str, Module] = {}
    rewrite(module, {"k": classify(module, "k")}, after=stages.__setitem__)
    assert stages["hidden-parameters"] is module


def test_arguments_are_stored_right_before_their_call() -> None:
    changed = in_form(compiled(NESTED), Form.SLICED).entries()["k"]
    found = [i.opcode.base for i in instructions(changed)]
    at = found.index("call")
    assert found[at - 4 : at] == ["mov", "st", "mov", "st"]


def test_all_functions_behind_pointers_get_the_same_parameters() -> None:
    module = compiled("""
        __device__ int f(int a) { return a + blockIdx.x; }
        __device__ int g(int a) { return a * 2; }
        __device__ int (*table[2])(int) = {f, g};
        extern "C" __global__ void k(int* x) { x[threadIdx.x] = table[threadIdx.x & 1](7); }
    """)
    changed = in_form(module, Form.SLICED)
    functions = {f.name: f for f in changed.functions() if f.kind == "func"}
    assert {len(f.parameters) for f in functions.values()} == {2}
    body = changed.entries()["k"].body or []
    (prototype,) = [s for s in body if type(s).__name__ == "CallPrototype"]
    assert len(prototype.parameters) == 2  # type: ignore[union-attr]
    call = only(changed.entries()["k"], "call")
    assert any(len(getattr(o, "items", ())) == 2 for o in call.operands)


def test_register_parameters_are_passed_in_registers() -> None:
    module = program(
        ".func (.reg .b32 r) f(.reg .b32 a) { mov.u32 r, %ctaid.x; ret; }",
        f".visible .entry k() {{ {REGISTERS} call (%r1), f, (%r2); ret; }}",
    )
    changed = in_form(module, Form.SLICED)
    function = next(f for f in changed.functions() if f.name == "f")
    assert [p.space for p in function.parameters] == ["reg", "reg"]
    call = only(changed.entries()["k"], "call")
    arguments = call.operands[-1]
    assert all(isinstance(a, Register) for a in arguments.items)  # type: ignore[union-attr]


def test_kernels_that_stay_whole_pass_the_special_registers() -> None:
    module = program(
        ".func (.param .b32 r) f() { .reg .b32 %r<2>; mov.u32 %r1, %ctaid.x; "
        "st.param.b32 [r], %r1; ret; }",
        ".visible .entry loops() { .param .b32 r; call (r), f; ret; }",
        f".visible .entry whole() {{ {REGISTERS} .param .b32 r; mov.u32 %r1, %envreg1;"
        " call (r), f; ret; }",
    )
    changed = in_form(module)
    assert classify(module, "whole").form is Form.WHOLE
    text = repr(instructions(changed.entries()["whole"]))
    assert "SpecialRegister(name='%ctaid.x')" in text
    assert [p.type for p in changed.entries()["whole"].parameters] == ["u64"]
    assert only(changed.entries()["whole"], "st.param").opcode.text == "st.param.b32"


# -- the registry ------------------------------------------------------------------------------


def test_passes_run_in_order_and_only_on_their_forms() -> None:
    watching = [
        "traps",
        "bounds-checks",
        "control-flow-integrity",
        "grid-sync",
        "variants",
        "kill",
        "printf",
    ]
    forming = ["hidden-parameters", "exit-aware", "persistent", "sliced"]
    assert [p.name for p in PASSES] == [
        "arena-variables", "checking", *watching, *forming, "fault-lowering",
    ]  # fmt: skip
    module = entry("ret;")
    for form, names in {
        Form.PERSISTENT: ["hidden-parameters", "exit-aware", "persistent"],
        Form.SLICED: ["hidden-parameters", "sliced"],
        Form.WHOLE: [],
    }.items():
        seeing = [name for name in watching if name != "grid-sync" or form is Form.WHOLE]
        plan = {"k": classify(module, "k", force=form)}
        stages: list[str] = []
        rewrite(module, plan, after=lambda name, _: stages.append(name))  # noqa: B023
        always = [
            name
            for name in seeing
            if name not in ("bounds-checks", "control-flow-integrity", "kill")
        ]
        assert stages == [*always, *names, "fault-lowering"]
        stages.clear()
        note = stages.append
        rewrite(module, plan, bounds_checks=True, kill=True, after=lambda name, _: note(name))  # noqa: B023
        assert stages == [*seeing, *names, "fault-lowering"]


def test_a_variant_shares_the_code_of_its_kernel_and_follows_it() -> None:
    module = program(".visible .entry a() { ret; }", ".visible .entry b() { ret; }")
    plan = {name: classify(module, name) for name in module.entries()}
    assert pass_variants(module, plan) is module
    variants = [sliced_variant("a"), killable_variant("a"), killable_variant(sliced_variant("a"))]
    changed = pass_variants(module, plan | dict.fromkeys(variants, plan["a"])).entries()
    assert list(changed) == ["a", *variants, "b"]
    assert all(changed[name].body is module.entries()["a"].body for name in variants)


def test_a_call_graph_that_reuses_summaries_is_the_same() -> None:
    module = compiled(NESTED)
    stages: list[Module] = [module]
    plan = {"k": classify(module, "k", force=Form.SLICED)}
    rewrite(module, plan, bounds_checks=True, after=lambda _, made: stages.append(made))
    before: CallGraph | None = None
    reused = 0
    for stage in stages:
        found, fresh = CallGraph(stage, before), CallGraph(stage)
        assert (found.uses, found.addressed) == (fresh.uses, fresh.addressed)
        if before is not None:
            known = [id(uses.bases) for uses in before.uses.values()]
            reused += sum(id(uses.bases) in known for uses in found.uses.values())
        before = found
    assert reused > 0


def test_at_least_what_a_look_finds_is_known_of_extended_functions() -> None:
    module = compiled(LOOPING)
    decision = classify(module, "k")
    plan = {"k": decision, killable_variant("k"): decision}
    extended = 0

    def check(_: str, made: Module) -> None:
        nonlocal extended
        known, fresh = call_graph(made), CallGraph(made)
        assert known.addressed == fresh.addressed
        for name, uses in fresh.uses.items():
            found = known.uses[name]
            extended += found.bits != uses.bits or len(found.noted) != len(uses.noted)
            assert found.function is uses.function
            assert found.bits & uses.bits == uses.bits
            assert found.calls.keys() == uses.calls.keys()
            assert found.specials.keys() >= uses.specials.keys()
            assert found.bases.keys() >= uses.bases.keys()
            assert (found.indirect is None) == (uses.indirect is None)
            assert found.may_cycle or not fresh.flow(name).components

    rewrite(module, plan, bounds_checks=True, kill=True, after=check)
    assert extended > 0


def test_a_rejected_kernel_is_not_rewritten() -> None:
    module = program(".extern .func gone();", ".visible .entry k() { call gone; ret; }")
    with pytest.raises(KernelRejected, match="gone"):
        rewrite(module, {"k": classify(module, "k")})


def test_kernels_of_one_module_may_have_different_forms() -> None:
    module = program(
        ".visible .entry a() { ret; }",
        f".visible .entry b() {{ {REGISTERS} {LEAVE} bar.warp.sync -1; ret; }}",
        f".visible .entry c() {{ {REGISTERS} mov.u32 %r1, %envreg2; ret; }}",
    )
    plan = {name: classify(module, name) for name in module.entries()}
    assert [d.form for d in plan.values()] == [Form.PERSISTENT, Form.SLICED, Form.WHOLE]
    changed = rewrite(module, plan)
    assert [len(f.parameters) for f in changed.entries().values()] == [1, 1, 1]
    assert "envreg" not in repr(changed.entries()["c"].body)
