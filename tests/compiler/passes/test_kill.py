"""Kill polls: where they stand, which variants there are, and that polling kernels end."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fault_record import fault_of
from gpud.compiler.abi.reserved_names import (
    is_killable,
    kernel_of,
    killable_variant,
    sliced_variant,
)
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.cycles import has_cycle, recursive, retreating_edges
from gpud.compiler.forms.classifier import Form, classify
from gpud.compiler.instrumentation.kill_polls import emit, fold
from gpud.compiler.passes.safety.kill import may_run_long, pass_kill
from gpud.compiler.pipeline import compile_program
from gpud.compiler.program import Program
from gpud.compiler.ptx.model import Function, Instruction, Label, Module, Pragma
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from gpud.device.cpu.codegen.preparation.pseudo_instructions import fold_pseudos
from tests.compiler.support.flat_programs import compiled, entry, instructions, program
from tests.compiler.support.ptx_interpreter import Machine

KILLABLE = killable_variant("k")


def polled(module: Module, form: Form | None = None) -> Module:
    """The module with every entry as its own killable variant, after the pass alone."""
    for function in module.functions():
        if function.kind == "entry":
            function.name = killable_variant(function.name)
    plan = {name: classify(module, name, force=form) for name in module.entries()}
    return pass_kill(module, plan)


def texts(function: Function) -> list[str]:
    return [print_instruction(ins) for ins in instructions(function)]


def polls(function: Function) -> int:
    found = 0

    def count(_: int) -> Pragma:
        nonlocal found
        found += 1
        return Pragma('"poll"')

    fold(function, count)
    return found


# -- where they stand --------------------------------------------------------------------------


def test_a_poll_stands_before_the_branch_back() -> None:
    changed = polled(entry("TOP: add.u32 %r1, %r1, 1; @%p1 bra TOP; ret;")).entries()[KILLABLE]
    assert texts(changed) == [
        "add.u32 %r1, %r1, 1;",
        "ld.volatile.global.u32 %gpud_kill_0, [%gpud_kill_job+60];",
        "setp.ne.u32 %gpud_kill_on_0, %gpud_kill_0, 0;",
        "@%gpud_kill_on_0 bra $gpud_kill_leave;",
        "@%p1 bra TOP;",
        "ret;",
        "call gpud_leave, ();",
        "trap;",
    ]
    assert words.KILL == 60


def test_loops_of_bounds_checks_have_none() -> None:
    """A module with a variable: where the arena's test fails, a loop looks for it."""
    source = """
    __device__ int variable[4];
    extern "C" __global__ void read(int* out, int i) { *out = variable[i]; }
    extern "C" __global__ void spin(volatile int* flag) { while (*flag == 0) {} }"""
    text = compile_program(source, form="persistent").ptx
    killable = text[text.index(".entry spin__gpud_killable") :]
    assert "gpud_ranges" in killable
    assert len(re.findall(r"setp\S* %gpud_kill_on_", killable)) == 1


def test_only_killable_variants_change() -> None:
    module = program(
        ".visible .entry k() { TOP: bra TOP; }", f".visible .entry {KILLABLE}() {{ TOP: bra TOP; }}"
    )
    plan = {name: classify(module, name) for name in module.entries()}
    changed = pass_kill(module, plan)
    assert changed.entries()["k"] is module.entries()["k"]
    assert polls(changed.entries()[KILLABLE]) == 1
    del plan[KILLABLE]
    assert pass_kill(module, plan) is module


IRREDUCIBLE = """
    @%p1 bra B;
A:  add.u32 %r1, %r1, 1;
    @%p2 bra OUT;
B:  add.u32 %r2, %r2, 1;
    @%p3 bra A;
    bra A;
OUT: ret;
"""
FALLING = "bra B; A: add.u32 %r1, %r1, 1; B: @%p1 bra A; ret;"
INDEXED = """
TABLE: .branchtargets A, B;
A:  add.u32 %r1, %r1, 1;
B:  brx.idx %r1, TABLE;
"""
ENDLESS_AT_THE_END = "A: add.u32 %r1, %r1, 1; bra A;"
NESTED = "A: add.u32 %r1, %r1, 1; B: @%p1 bra B; @%p2 bra A; ret;"


@pytest.mark.parametrize(
    "body",
    [IRREDUCIBLE, FALLING, INDEXED, ENDLESS_AT_THE_END, NESTED, "A: bra A;", "@%p1 bra A; A:"],
)
def test_every_cycle_has_a_poll(body: str) -> None:
    check_cycles(entry(body))


def check_cycles(module: Module) -> None:
    """Without the blocks in which polls stand there is no cycle left."""
    changed = polled(module)
    function = changed.entries()[KILLABLE]
    marked = fold(function, lambda _: instructions_of("exit;"))
    flow = ControlFlow(marked)
    assert flow.components == []
    parse(print_module(changed))


def instructions_of(text: str) -> Instruction:
    (made,) = instructions(entry(text).entries()["k"])
    return made


@given(seed=st.integers(0, 2**32), blocks=st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_every_cycle_of_random_flow_has_a_poll(seed: int, blocks: int) -> None:
    pick = random.Random(seed)
    lines = []
    for number in range(blocks):
        lines.append(f"L{number}: add.u32 %r1, %r1, {number};")
        for _ in range(pick.randrange(3)):
            lines.append(f"@%p{pick.randrange(8)} bra L{pick.randrange(blocks)};")
        if pick.random() < 0.3:
            lines.append(f"bra L{pick.randrange(blocks)};")
        if pick.random() < 0.2:
            lines.append("ret;")
    check_cycles(entry("\n".join(lines)))


@given(seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_retreating_edges_are_part_of_cycles(seed: int) -> None:
    pick = random.Random(seed)
    body = "".join(
        f"L{n}: @%p{n} bra L{pick.randrange(6)}; @%p{n + 6} bra L{pick.randrange(6)};"
        for n in range(6)
    )
    flow = ControlFlow(entry(body + "ret;").entries()["k"])
    for source, target in retreating_edges(flow):
        assert source in flow.reachable_from([target])


# -- functions ---------------------------------------------------------------------------------

CALLS = """
.func spins() { .reg .pred %p; A: @%p bra A; ret; }
.func above() { call spins; ret; }
.func straight() { ret; }
.func again() { .reg .pred %p; @%p call other; ret; }
.func other() { call again; ret; }
.func self() { call self; ret; }
"""


def test_functions_with_cycles_are_copied_for_killable_entries() -> None:
    module = program(
        ".func other();", CALLS,
        ".visible .entry k() { call above; call straight; ret; }",
        f".visible .entry {KILLABLE}() {{ call above; call straight; ret; }}",
    )  # fmt: skip
    plan = {name: classify(module, name) for name in module.entries()}
    changed = pass_kill(module, plan)
    assert changed.entries()["k"] is module.entries()["k"]
    assert texts(changed.entries()[KILLABLE]) == [
        "call above__gpud_killable;", "call straight;", "ret;",
    ]  # fmt: skip
    functions = {f.name: f for f in changed.functions() if f.body is not None}
    assert polls(functions["spins"]) == polls(functions["above"]) == 0
    assert polls(functions["spins__gpud_killable"]) == 1
    assert texts(functions["above__gpud_killable"])[0] == "call spins__gpud_killable;"
    order = [f.name for f in changed.functions()]
    assert order.index("spins__gpud_killable") < order.index(KILLABLE)


@pytest.mark.parametrize(("first", "copies"), [("other", ("other", "again")), ("self", ("self",))])
def test_recursion_has_a_poll_at_its_beginning(first: str, copies: tuple[str, ...]) -> None:
    module = program(
        ".func other();", CALLS, f".visible .entry {KILLABLE}() {{ call {first}; ret; }}"
    )
    assert recursive(CallGraph(module)) == {"other", "again", "self"}
    assert may_run_long(CallGraph(module), [KILLABLE]) == {KILLABLE}
    changed = pass_kill(module, {KILLABLE: classify(module, KILLABLE)})
    functions = {f.name: f for f in changed.functions() if f.body is not None}
    for name in copies:
        body = [s for s in functions[killable_variant(name)].body or [] if hasattr(s, "opcode")]
        assert body[:3] == emit(0)


def test_what_cannot_run_long_has_no_variant() -> None:
    straight = CallGraph(entry("@%p1 bra END; mov.u32 %r1, 1; END: ret;"))
    assert not has_cycle(straight, "k")
    assert not may_run_long(straight, ["k"])
    loop = CallGraph(entry("A: @%p1 bra A; ret;"))
    assert has_cycle(loop, "k")
    assert may_run_long(loop, ["k"]) == {"k"}


# -- programs ----------------------------------------------------------------------------------

SHUFFLE = """
extern "C" __global__ void k(int* x, int n) {
    for (int i = 0; i < n; ++i)
        if (threadIdx.x < 32) x[i] = __shfl_down_sync(~0u, x[i], 1);
}
extern "C" __global__ void straight(int* x) { x[0] = 1; }
"""


def test_a_program_knows_its_variants() -> None:
    made = compile_program(SHUFFLE)
    found = Program.decode(made.encode())
    assert found == made
    kernel, straight = found.kernel("k"), found.kernel("straight")
    assert (kernel.killable, straight.killable) == (True, False)
    names = {
        kernel.entry_for(block, killable=killable): (block, killable)
        for block in ((64, 1, 1), (48, 2, 1))
        for killable in (False, True)
    }
    variant = sliced_variant("k")
    assert list(names) == ["k", KILLABLE, variant, killable_variant(variant)]
    assert straight.entry_for((64, 1, 1), killable=True) == "straight"
    entries = parse(found.ptx).entries()
    assert set(entries) == {*names, "straight"}
    assert {kernel_of(name) for name in names} == {"k"}
    assert [is_killable(name) for name in names] == [False, True, False, True]
    assert set(found.kernels) == {"k", "straight"}
    for name in names:
        assert bool(polls(entries[name])) is is_killable(name)
    verify(parse(found.ptx))


def test_without_the_option_there_are_none() -> None:
    made = compile_program(SHUFFLE, kill=False)
    assert not made.kernel("k").killable
    assert not [name for name in parse(made.ptx).entries() if is_killable(name)]


@pytest.mark.parametrize("form", [Form.PERSISTENT, Form.SLICED, Form.WHOLE])
def test_polls_are_found_in_the_text(form: Form) -> None:
    made = compile_program(SHUFFLE, form=None if form is Form.PERSISTENT else form.value)
    function = parse(made.ptx).entries()[KILLABLE]
    assert polls(function) > 0
    assert "%gpud_kill_job, [%gpud_context_ctl];" in made.ptx
    assert fold(parse(made.ptx).entries()["straight"], lambda _: Label("X")).name == "straight"


# -- running -----------------------------------------------------------------------------------

CTL, JOB, HITS = 0x1000, 0x2000, 0x10000

ENDLESS = """
__device__ __noinline__ void spin(volatile unsigned* x) { while (x[0] != 7) { } }
extern "C" __global__ void k(unsigned* hits, volatile unsigned* flag) {
    atomicAdd(hits + blockIdx.x, 1);
    SPIN
    atomicAdd(hits + 64 + blockIdx.x, 1);
}
"""


@pytest.mark.parametrize("spin", ["while (*flag != 7) { }", "spin(flag);"])
@pytest.mark.parametrize("form", [Form.PERSISTENT, Form.SLICED, Form.WHOLE])
@pytest.mark.parametrize("seed", range(5))
def test_an_endless_kernel_ends_when_it_is_told(spin: str, form: Form, seed: int) -> None:
    source = ENDLESS.replace("SPIN", spin)
    made = compile_program(
        compiled_text(source),
        bounds_checks=False,
        form=None if form is Form.PERSISTENT else form.value,
    )
    machine = Machine(parse(made.ptx), seed)
    machine.words(JOB, words.job_record((5, 1, 1)))
    machine.control(CTL, JOB, 2)
    flag = HITS + 4 * 128
    for word in range(129):
        machine.memory[HITS + 4 * word] = 0
    machine.launch(KILLABLE, 2, (3, 1, 1), HITS, flag, CTL)
    machine.run(3000)
    assert machine.blocks[0].threads or machine.blocks[1].threads
    machine.memory[JOB + words.KILL] = 1
    machine.run()
    began = [machine.memory[HITS + 4 * block] for block in range(5)]
    assert sum(began) == 6
    assert [machine.memory[HITS + 256 + 4 * block] for block in range(5)] == [0] * 5
    assert machine.memory[JOB + words.NEXT] == 5
    assert machine.memory[JOB + words.DONE] == 0
    if form is Form.PERSISTENT:
        assert machine.live(CTL) == 0
    record = b"".join(
        machine.memory[JOB + at].to_bytes(4, "little") for at in range(0, words.JOB_BYTES, 4)
    )
    assert fault_of(record) is None


def compiled_text(source: str) -> str:
    """PTX of instructions that the interpreter knows, without nested scopes."""
    return print_module(compiled(source))


@pytest.mark.parametrize("variables", [1, 400])
def test_no_poll_stands_in_a_bounds_check(variables: int) -> None:
    """Its loops end soon, and devices know checks by their exact text."""
    names = range(variables)
    source = (
        "".join(f"__device__ int v{n}[{n + 1}];\n" for n in names)
        + 'extern "C" __global__ void k(int** p, int n) {\n'
        + "".join(f"p[{n}] = v{n};" for n in names)
        + "while (*(volatile int*)p[n] != 7) p[n][3] += 1; }"
    )
    made = parse(compile_program(source).ptx)
    assert polls(made.entries()[KILLABLE]) == 1
    folded = fold_pseudos(made.entries()[KILLABLE], checked=True)
    assert not [text for text in texts(folded) if "gpud_ranges" in text]
