"""Traps, breakpoints and assertions as reports, on the tree and with ptxas."""

from __future__ import annotations

import pytest

from gpud.compiler.abi.fault_record import FaultKind
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.forms.classifier import classify
from gpud.compiler.passes.safety.traps import pass_traps
from gpud.compiler.ptx.model import Immediate, Instruction, Module, Register, Tuple, Variable
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from tests.compiler.support.flat_programs import compiled, entry, instructions, program

EXTERN = """.extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 k,
    .param .b64 s);"""


def reporting(module: Module) -> tuple[Module, SiteTable]:
    """The module after the pass, all its entries in the plan, and the sites."""
    sites = SiteTable(module)
    plan = {name: classify(module, name) for name in module.entries()}
    return pass_traps(module, plan, sites), sites


def texts(module: Module, name: str = "k") -> list[str]:
    function = next(f for f in module.functions() if f.name == name and f.body is not None)
    return [print_instruction(ins) for ins in instructions(function)]


def test_a_trap_becomes_a_report_and_ends_there() -> None:
    module = entry("mov.u32 %r1, 1;\n trap;\n ret;")
    changed, sites = reporting(module)
    assert texts(changed) == [
        "mov.u32 %r1, 1;", f"call gpud_fault, ({FaultKind.TRAP.value}, 0, 0);", "trap;", "ret;",
    ]  # fmt: skip
    (site,) = sites.sites
    assert (site.function, site.instruction) == ("k", "trap;")
    (before,) = [i for i in instructions(module.entries()["k"]) if i.opcode.base == "trap"]
    assert site.line == before.line
    assert all(i.line == before.line for i in instructions(changed.entries()["k"])[1:3])


def test_a_guard_becomes_a_branch_around() -> None:
    changed, _ = reporting(entry("@!%p1 trap; @%p2 brkpt; ret;"))
    assert texts(changed) == [
        "@%p1 bra $gpud_trap_1;", f"call gpud_fault, ({FaultKind.TRAP.value}, 0, 0);", "trap;",
        "@!%p2 bra $gpud_trap_2;", f"call gpud_fault, ({FaultKind.BREAKPOINT.value}, 1, 0);",
        "trap;", "ret;",
    ]  # fmt: skip
    verify_placeholders(changed)


def verify_placeholders(module: Module) -> None:
    """The tree is sound, but for the functions that are declared last."""
    head = (
        ".func gpud_fault(.reg .b32 a, .reg .b32 b, .reg .b64 c); .func gpud_leave();"
        ".func gpud_assert(.reg .b32 a, .reg .b64 b, .reg .b64 c, .reg .b32 d, .reg .b64 e);"
    )
    text = print_module(module)
    at = text.index(".address_size 64") + len(".address_size 64")
    verify(parse(text[:at] + "\n" + head + text[at:]))


def test_a_module_without_any_is_the_same_object() -> None:
    module = entry("ret;")
    assert reporting(module)[0] is module


def test_entries_outside_the_plan_stay() -> None:
    module = program(".visible .entry k() { trap; }", ".visible .entry other() { trap; }")
    changed = pass_traps(module, {"k": classify(module, "k")}, SiteTable(module))
    assert texts(changed, "other") == ["trap;"]
    assert len(texts(changed)) == 2


def test_an_assertion_passes_its_strings_in_registers() -> None:
    source = """
    extern "C" __global__ void k(int* x, int n) {
        assert(x[n] > 0);
        assert(x[n + 1] > 0);
    }"""
    changed, sites = reporting(compiled(source))
    text = print_module(changed)
    assert "call.uni __assertfail" not in text
    calls = [
        i for i in instructions(changed.entries()["k"]) if "gpud_assert" in print_instruction(i)
    ]
    assert len(calls) == 2
    for call, line in zip(calls, (3, 4), strict=True):
        arguments = call.operands[-1]
        assert isinstance(arguments, Tuple)
        site, message, file, where, function = arguments.items
        assert isinstance(site, Immediate)
        assert all(isinstance(one, Register) for one in (message, file, function))
        assert isinstance(where, Immediate)
        assert where.value == line
        assert "__assertfail" in sites.sites[site.value].instruction
    body = changed.entries()["k"].body or []
    assert not [s for s in body if isinstance(s, Variable)], "variables of the old calls are left"
    assert "st.param" not in text
    verify_placeholders(changed)


def assertion(stores: str) -> str:
    names = ("m", "f", "l", "k", "s")
    kinds = dict.fromkeys(names, "b64") | {"l": "b32"}
    declared = "".join(f".param .{kinds[name]} p_{name}; " for name in names)
    return declared + stores + "call __assertfail, (p_m, p_f, p_l, p_k, p_s);"


STORES = (
    "st.param.b64 [p_m], %d1; st.param.b64 [p_f], %d2; st.param.b32 [p_l], 7;"
    "st.param.b64 [p_k], %d3; st.param.b64 [p_s], 1;"
)


def asserting(body: str) -> tuple[Module, SiteTable]:
    registers = ".reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>;"
    return reporting(program(EXTERN, f".visible .entry k() {{ {registers} {body} ret; }}"))


def test_registers_that_change_before_the_call_are_kept() -> None:
    changed, _ = asserting(assertion(STORES.replace("st.param.b64 [p_k]", "add.s64 %d1, %d1, 1; "
                                                    "st.param.b64 [p_k]")))  # fmt: skip
    assert texts(changed)[:3] == [
        "mov.b64 %gpud_trap_1, %d1;", "add.s64 %d1, %d1, 1;",
        "call gpud_assert, (0, %gpud_trap_1, %d2, 7, %d3);",
    ]  # fmt: skip
    verify_placeholders(changed)


@pytest.mark.parametrize(
    "stores",
    [
        "",
        "@%p1 " + STORES,
        STORES + "LABEL: ",
        STORES.replace("st.param.b64 [p_k], %d3;", ""),
    ],
)
def test_an_assertion_that_cannot_be_followed_is_a_trap(stores: str) -> None:
    changed, sites = asserting(assertion(stores))
    calls = [t for t in texts(changed) if t.startswith("call")]
    assert calls == [f"call gpud_fault, ({FaultKind.TRAP.value}, 0, 0);"]
    assert "__assertfail" in sites.sites[0].instruction


def test_functions_report_too_and_variants_share_their_sites() -> None:
    module = program(
        ".func f() { trap; }",
        ".visible .entry k() { call f; trap; }",
        ".visible .entry k__gpud_sliced__gpud_killable() { call f;\n trap; }",
    )
    # A variant is a copy: the same lines.
    variant = next(f for f in module.functions() if "sliced" in f.name)
    variant.body = [*(module.entries()["k"].body or [])]
    changed, sites = reporting(module)
    assert [site.function for site in sites.sites] == ["f", "k"]
    assert texts(changed) == texts(changed, variant.name)


def test_every_kind_of_instruction_is_left_to_itself() -> None:
    module = compiled('extern "C" __global__ void k(int* x) { x[0] = 1; }')
    changed, sites = reporting(module)
    assert changed is module
    assert not sites.sites
    assert all(isinstance(i, Instruction) for i in instructions(changed.entries()["k"]))
