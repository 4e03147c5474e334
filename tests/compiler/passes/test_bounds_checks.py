"""Every kind of access has a bounds check with the right bytes, alignment and legal memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import ARENA, HEAP
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.analysis.memory_accesses import ARITHMETIC, accesses
from gpud.compiler.analysis.name_checks import check_names
from gpud.compiler.forms.classifier import classify
from gpud.compiler.instrumentation.bounds_checks import BoundsCheck, Range, emit, recognise
from gpud.compiler.passes.safety.bounds_checks import pass_bounds_checks
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
    Instruction,
    Module,
    Register,
    Symbol,
    Variable,
)
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_instruction, print_module
from gpud.compiler.ptx.verify import verify
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from gpud.errors import KernelRejected
from tests.compiler.support.cuda_samples import KERNELS
from tests.compiler.support.flat_programs import compiled, entry, program

D1, P1 = Register("%d1"), Register("%p1")


def checked(module: Module) -> tuple[Module, SiteTable]:
    """The module after the pass alone, which printing and parsing leave as it is."""
    sites = SiteTable(module)
    made = pass_bounds_checks(module, {n: classify(module, n) for n in module.entries()}, sites)
    again = parse(print_module(made))
    assert again == made
    assert print_module(again) == print_module(made)
    return made, sites


def found(function: Function | None) -> list[BoundsCheck]:
    assert function is not None
    return [one.check for one in recognise(function)]


def checks(line: str, **options: str) -> list[BoundsCheck]:
    """The bounds checks of a kernel with one instruction."""
    return found(checked(entry(f"{line}\nret;", **options))[0].entries()["k"])


@dataclass(frozen=True)
class Kind:
    """One instruction, the bytes that it touches and their alignment."""

    text: str
    span: int
    align: int | None = None
    low: int = 0
    target: str = "sm_90"
    version: str = "8.8"

    @property
    def id(self) -> str:
        return self.text.split()[0]


TABLE = ".global .align 8 .b8 table[16];\n"
KINDS = [
    Kind("ld.global.u8 %r1, [%d1];", 1),
    Kind("ld.global.b16 %h1, [%d1+6];", 2, low=6),
    Kind("ld.global.u32 %r1, [%d1+-4];", 4, low=-4),
    Kind("ld.global.f64 %e1, [%d1];", 8),
    Kind("ld.global.nc.L1::no_allocate.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%d1];", 16),
    Kind("ld.global.v2.u8 {%h1, %h2}, [%d1];", 2),
    Kind("ld.global.v2.f64 {%e1, %e2}, [%d1];", 16),
    Kind("ld.volatile.global.u32 %r1, [%d1];", 4),
    Kind("ld.acquire.gpu.global.u32 %r1, [%d1];", 4),
    Kind("ld.relaxed.sys.global.u64 %d2, [%d1];", 8),
    Kind("ldu.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d1];", 16),
    Kind("st.global.u8 [%d1], %r1;", 1),
    Kind("st.global.cs.v4.b32 [%d1], {%r1, %r2, %r3, %r4};", 16),
    Kind("st.release.gpu.global.u32 [%d1+8], %r1;", 4, low=8),
    Kind("st.global.v2.b64 [%d1], {%d1, %d2};", 16),
    Kind("atom.global.add.u32 %r1, [%d1], 1;", 4),
    Kind("atom.global.cas.b64 %d2, [%d1], %d1, %d2;", 8),
    Kind("atom.global.cas.b16 %h1, [%d1], %h1, %h2;", 2),
    Kind("atom.global.add.noftz.f16x2 %r1, [%d1], %r2;", 4),
    Kind("atom.global.acq_rel.gpu.exch.b32 %r1, [%d1], %r2;", 4),
    Kind("red.global.add.f32 [%d1], %f1;", 4),
    Kind("red.relaxed.gpu.global.max.s64 [%d1+8], %d2;", 8, low=8),
    Kind("red.global.add.noftz.bf16x2 [%d1], %r1;", 4),
    Kind("red.global.v4.f32.add [%d1], {%f1, %f2, %f3, %f4};", 16),
    Kind("cp.async.ca.shared.global [s], [%d1], 4;", 4),
    Kind("cp.async.cg.shared.global [s], [%d1+32], 16;", 16, low=32),
    Kind("cp.async.ca.shared.global [s], [%d1], 16, 5;", 5, 16),
    Kind("discard.global.L2 [%d1], 128;", 128),
]  # fmt: skip
GENERIC = [
    Kind("ld.u32 %r1, [%d1];", 4),
    Kind("st.v2.u32 [%d1+8], {%r1, %r2};", 8, low=8),
    Kind("atom.add.u32 %r1, [%d1], 1;", 4),
    Kind("red.add.u32 [%d1], 1;", 4),
    Kind("mbarrier.init.b64 [%d1], 1;", 8),
    Kind("mbarrier.arrive.b64 %d2, [%d1];", 8),
    Kind("mbarrier.test_wait.b64 %p1, [%d1], %d2;", 8),
    Kind("cp.async.mbarrier.arrive.b64 [%d1];", 8),
]
DECLARED = ".reg .b16 %h<4>; .reg .f64 %e<4>; .shared .align 16 .b8 s[64];"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.id)
def test_each_access_to_global_memory(kind: Kind) -> None:
    (one,) = checks(DECLARED + kind.text, target=kind.target, version=kind.version)
    (member,) = one.members
    assert one.register == D1
    assert (member.low, member.span) == (kind.low, kind.span)
    assert member.align == (kind.span if kind.align is None else kind.align)
    assert (one.guard, one.space) == (None, "global")


MAKES = "mov.u64 %d9, s; cvta.shared.u64 %d9, %d9; cvta.local.u64 %d9, %d9;\n"


@pytest.mark.parametrize("kind", GENERIC, ids=lambda kind: kind.id)
def test_each_generic_access(kind: Kind) -> None:
    """Windows to which the module makes addresses are legal; others are not tested."""
    (one,) = checks(DECLARED + MAKES + kind.text, target="sm_90")
    assert (one.low, one.span, one.align) == (kind.low, kind.span, kind.span)
    assert one.windows == ("shared", "local")
    (alone,) = checks(DECLARED + kind.text, target="sm_90")
    assert alone.windows == ()


@pytest.mark.parametrize(
    "text",
    [
        "ld.shared.u32 %r1, [%r2];", "st.local.u32 [%d1], %r1;", "ld.const.u32 %r1, [%d1];",
        "ld.param.u64 %d1, [a];", "atom.shared.add.u32 %r1, [s], 1;", "red.shared.add.u32 [s], 1;",
        "mbarrier.init.shared.b64 [s], 1;", "prefetch.global.L2 [%d1];", "prefetchu.L1 [%d1];",
        "cp.async.commit_group;", "cp.async.wait_group 0;", "cp.async.wait_all;",
        "isspacep.shared %p1, %d1;", "cvta.to.global.u64 %d1, %d1;", "membar.gl;", "bar.sync 0;",
        "createpolicy.fractional.L2::evict_last.b64 %d1, 1.0;", "mov.u64 %d1, s;",
        "applypriority.global.L2::evict_normal [%d1], 128;",
        "ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d1];",
        "cp.async.ca.shared.global [s], [%d1], 4, 0;",
    ],
)  # fmt: skip
def test_other_spaces_and_hints_have_none(text: str) -> None:
    assert checks(DECLARED + text) == []


@pytest.mark.parametrize(
    "text",
    [
        "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d1, {%r1}], [s];",
        "frobnicate.global.u32 %r1, [%d1];",
        "st.bulk.weak [%d1], %d2, 0;",
        "ld.global.u7 %r1, [%d1];",
        "st.const.u32 [%d1], %r1;",
        "atom.const.add.u32 %r1, [%d1], 1;",
        "gpud.poll;",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%d1];",
        "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%d1, {%r1}];",
    ],
)
def test_what_nothing_can_check_is_refused(text: str) -> None:
    module = entry(f"{DECLARED}{text}\nret;", target="sm_90")
    with pytest.raises(KernelRejected, match="nothing can check") as caught:
        pass_bounds_checks(module, dict.fromkeys(module.entries()), SiteTable())  # type: ignore[arg-type]
    assert caught.value.reason == "unsupported-instruction"
    assert caught.value.instruction is not None


MATRIX = (
    "wmma.load.a.sync.aligned.row.m16n16k16.global.f16 "
    "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%d1], %r9;"
)
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [%d1+32], {}, [s];"


def test_a_bulk_copy() -> None:
    (one,) = checks(DECLARED + BULK.format(64), target="sm_90")
    assert (one.low, one.span, one.align) == (32, 64, 16)
    assert checks(DECLARED + BULK.format(0), target="sm_90") == []


def test_a_bulk_copy_whose_length_is_in_a_register() -> None:
    """Both ends in the arena; nothing is checked if there is nothing to copy."""
    made, _ = checked(entry(f"{DECLARED}{BULK.format('%r1')}\nret;", target="sm_90"))
    kernel = made.entries()["k"]
    first, last = found(kernel)
    assert (first.register, first.low, first.span, first.align) == (D1, 32, 16, 16)
    assert (last.register, last.low) == (Register("%gpud_bounds_at_1"), 16)
    assert first.guard == Guard(Register("%gpud_bounds_may_0"))
    assert first.variables == last.variables == ()
    texts = [print_instruction(s) for s in kernel.body or () if isinstance(s, Instruction)]
    assert "cvt.u64.u32 %gpud_bounds_at_1, %r1;" in texts
    head = ".visible .entry k() { .reg .b64 %d<2>; .reg .b32 %r<2>; mov.u64 %d1, table;"
    module = program(TABLE, f"{head}{DECLARED}{BULK.format('%r1')} ret; }}", target="sm_90")
    with pytest.raises(KernelRejected, match="nothing can check"):
        pass_bounds_checks(module, dict.fromkeys(module.entries()), SiteTable())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "spans"),
    [
        ("mov.u32 %r1, 64;", [64]),  # set here: one check, and variables may be copied
        ("mov.u32 %r1, 0;", []),
        ("mov.u32 %r1, 64; L:", [16, 16]),  # a path may lead to L past it
        ("mov.u32 %r1, 64; add.u32 %r1, %r1, 16;", [16, 16]),
        ("setp.eq.u32 %p1, %r1, 0; @%p1 mov.u32 %r1, 64;", [16, 16]),
    ],
)
def test_a_bulk_copy_whose_length_was_set_just_before(before: str, spans: list[int]) -> None:
    made = checks(f"{DECLARED}{before}{BULK.format('%r1')}", target="sm_90")
    assert [one.span for one in made] == spans


def test_a_kernel_that_cannot_be_checked_is_rejected_alone() -> None:
    tensor = "cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%d1, {%r1}], [s];"
    text = (
        ".version 8.8\n.target sm_90\n.address_size 64\n"
        ".visible .entry bad() { .reg .b64 %d<2>; .reg .b32 %r<2>;"
        f"{DECLARED} {tensor} ret; }}\n"
        ".visible .entry good(.param .u64 a) { .reg .b64 %d<2>; .reg .b32 %r<2>;"
        " ld.param.u64 %d1, [a]; ld.global.u32 %r1, [%d1]; ret; }\n"
    )
    kernels = compile_program(text).kernels
    assert kernels["bad"].form == "rejected"
    assert kernels["bad"].why[0].code == "unsupported-instruction"
    assert kernels["good"].form == "persistent"
    assert compile_program(text, bounds_checks=False).kernels["bad"].form != "rejected"


def test_no_opcode_that_touches_memory_counts_as_arithmetic() -> None:
    for kind in (*KINDS, *GENERIC):
        assert kind.text.split(".")[0] not in ARITHMETIC


# -- guards and conditions ---------------------------------------------------------------------


MASKED = '.pragma "used_bytes_mask 4095"; ld.global.v4.u32 {%r1, %r2, %r3, %r4}, '


def test_a_check_covers_the_bytes_of_a_load_that_are_used() -> None:
    (one,) = checks(f"{MASKED}[%d1];")
    assert [(m.low, m.span, m.align) for m in one.members] == [(0, 12, 16)]
    # The last three of seven words, and a vector of which one word is missing.
    for size, inside in ((28, True), (24, False)):
        table = f".global .align 16 .b8 table[{size}];"
        module, _ = checked(program(table, BODY.format(f"{MASKED}[table+16];")))
        assert len(found(module.entries()["k"])) == int(not inside)


def test_a_guard_is_the_checks_too() -> None:
    for text, guard in (("@%p1 ", Guard(P1)), ("@!%p1 ", Guard(P1, negated=True))):
        (one,) = checks(f"{text}ld.global.u32 %r1, [%d1];")
        assert one.guard == guard


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("%r1", "setp.ne.u32 %gpud_bounds_may_0, %r1, 0;"),
        ("%p2", "not.pred %gpud_bounds_may_0, %p2;"),
    ],
)
def test_a_copy_that_reads_nothing_is_not_checked(given: str, first: str) -> None:
    """``src-size`` 0 and ``ignore-src``: whatever the address, nothing is read."""
    text = f"{DECLARED}@!%p1 cp.async.ca.shared.global [s], [%d1], 16, {given};"
    made, _ = checked(entry(f"{text}\nret;"))
    kernel = made.entries()["k"]
    (one,) = found(kernel)
    assert one.guard == Guard(Register("%gpud_bounds_may_0"))
    assert (one.span, one.align) == (1, 16)
    texts = [print_instruction(s) for s in kernel.body or () if isinstance(s, Instruction)]
    at = texts.index(first)
    assert texts[at + 1] == "@%p1 mov.pred %gpud_bounds_may_0, 0;"


# -- addresses ---------------------------------------------------------------------------------


def kernel_access(module: Module) -> tuple[list[BoundsCheck], Instruction, list[str]]:
    """(bounds checks, the checked access, all instructions as text) of a kernel with one access."""
    kernel = checked(module)[0].entries()["k"]
    texts = [print_instruction(s) for s in kernel.body or () if isinstance(s, Instruction)]
    access = next(
        s
        for s in kernel.body or ()
        if isinstance(s, Instruction) and s.opcode.base in ("ld", "st") and s.line
        and not s.opcode.has("const")
    )  # fmt: skip
    return found(kernel), access, texts


def test_the_address_register_may_be_the_destination() -> None:
    (one,), access, _ = kernel_access(entry("ld.global.u64 %d1, [%d1+8];\nret;"))
    assert (one.register, one.low) == (D1, 8)
    assert access.operands == (D1, Address(D1, 8))


def test_a_number_as_address() -> None:
    (one,), access, texts = kernel_access(entry("ld.global.u32 %r1, [4096];\nret;"))
    at = Register("%gpud_bounds_at_0")
    assert "mov.u64 %gpud_bounds_at_0, 4096;" in texts
    assert (one.register, one.low) == (at, 0)
    assert access.operands[1] == Address(at)


def test_a_register_of_32_bits_as_address() -> None:
    (one,), access, texts = kernel_access(entry("ld.global.u32 %r1, [%r2+4];\nret;"))
    at = Register("%gpud_bounds_at_0")
    assert "cvt.u64.u32 %gpud_bounds_at_0, %r2;" in texts
    assert (one.register, one.low) == (at, 4)
    assert access.operands[1] == Address(at, 4)


COEF = ".const .align 8 .b8 coef[16];\n"
BODY = ".visible .entry k(.param .u64 a)\n{{ .reg .b32 %r<4>; .reg .b64 %d<4>;\n{}\nret; }}"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("ld.global.u32 %r1, [table];", True),
        ("ld.global.u32 %r1, [table+12];", True),
        ("st.global.u64 [table+8], %d1;", True),
        ("ld.u32 %r1, [table+4];", True),
        ("ld.u32 %r1, [coef+4];", True),
        ("ld.global.u32 %r1, [table+13];", False),
        ("ld.global.u32 %r1, [table+16];", False),
        ("ld.global.u32 %r1, [table+-4];", False),
        ("ld.global.v4.u32 {%r1, %r2, %r3, %r0}, [table];", False),
        ("ld.global.u32 %r1, [table+2];", False),
        ("st.u32 [coef+4], %r1;", False),
    ],
)
def test_inside_a_variable(text: str, inside: bool) -> None:
    """A variable and a constant distance: proven, or checked through a register."""
    module = program(TABLE, COEF, BODY.format(text))
    checks, access, _ = kernel_access(module)
    assert len(checks) == int(not inside)
    for one in checks:
        assert one.register == Register("%gpud_bounds_at_0")
        expected = (Range("table", "global", 16),) if "table" in text and "v4" not in text else ()
        if "v4" in text:  # 16 bytes fit, their alignment is what is not known
            expected = (Range("table", "global", 16),)
        assert one.variables == expected
        address = next(o for o in access.operands if isinstance(o, Address))
        assert address.base == one.register


def test_addressed_variables_are_legal() -> None:
    """Addressed in code or an initialiser; not other variables, nor constants for stores."""
    module = program(
        ".global .align 8 .u64 pointer = generic(table);\n.global .align 8 .b8 alone[64];\n",
        TABLE, COEF,
        BODY.format("cvta.const.u64 %d2, coef;\nmov.u64 %d3, table;\nld.u32 %r1, [%d1];\n"
                    "bar.sync 0;\nst.u32 [%d1], %r1;\nbar.sync 0;\nld.global.u64 %d2, [%d1];"),
    )  # fmt: skip
    load, store, wide = found(checked(module)[0].entries()["k"])
    made, _ = checked(module)
    assert load.variables == store.variables == wide.variables == ()
    assert (load.table, store.table, wide.table) == (2, 1, 1)
    text = print_module(made)
    assert ".global .align 16 .u64 gpud_ranges[4] = {table, 16, generic(coef), 16};" in text
    assert text.index("gpud_ranges[4]") < text.index(".entry")


def test_code_does_not_grow_with_the_variables() -> None:
    """Nor does a variable behind functions, whose value names one, come after what searches it."""

    def lines(count: int) -> tuple[int, int]:
        body = "".join(f"mov.u64 %d2, v{n};\n" for n in range(count))
        texts = [f".global .align 4 .b8 v{n}[{n + 4}];\n" for n in range(count)]
        made, _ = checked(program(*texts, BODY.format(body + "ld.u32 %r1, [%d1];")))
        (check,) = found(made.entries()["k"])
        return check.table, len(emit(check)[1])

    assert [lines(count)[0] for count in (1, 10, 300)] == [1, 10, 300]
    assert lines(1)[1] == lines(300)[1]


def test_all_variables_come_before_the_code() -> None:
    """Also one behind it, whose initial value names a function: that is declared first."""
    twice = ".func twice() { ret; }\n"
    late = ".global .align 8 .u64 late[1] = {twice};\n"
    kernel = BODY.format("mov.u64 %d2, late;\nld.u64 %d3, [%d1];")
    made, _ = checked(program(twice, late, kernel))
    order = [
        f"{item.name}{'' if item.body is None else '{}'}"
        if isinstance(item, Function)
        else item.name
        for item in made.items
        if isinstance(item, Function | Variable)
    ]
    assert order == ["gpud_arena", "twice", "late", "gpud_ranges", "twice{}", "k{}"]


def test_parameters_as_generic_addresses() -> None:
    text = "cvta.param.u64 %d2, a;\nld.u32 %r1, [%d2];\nbar.sync 0;\nst.u32 [%d2], %r1;"
    load, store = checks(text, version="8.0")
    assert load.windows == ("param",)
    assert store.windows == ()


def test_device_memory_that_is_allocated() -> None:
    made, _ = checked(
        program(
            ".extern .func (.param .b64 r) malloc(.param .b64 n);\n",
            ".extern .func free(.param .b64 n);\n",
            ".visible .entry j() { .param .b64 n; call free, (n); ret; }\n",
            BODY.format(
                "{ .param .b64 n; .param .b64 r; st.param.b64 [n], 8; call.uni (r), malloc, (n);\n"
                "ld.param.b64 %d1, [r]; }\nst.global.u32 [%d1], %r1;"
            ),
        )
    )
    (one,) = found(made.entries()["k"])
    assert one.variables == (Range(HEAP, "global", 0),)
    names = [item.name for item in made.items if not isinstance(item, Function)]  # type: ignore[union-attr]
    assert names[:2] == [ARENA, HEAP]


# -- functions, modules ------------------------------------------------------------------------


FUNCTIONS = """
.func (.reg .u32 r) get(.reg .u64 p) { ld.global.u32 r, [p]; ret; }
.func unused(.reg .u64 p) { .reg .b32 %r<2>; ld.global.u32 %r1, [p]; ret; }
"""


def test_functions_are_checked_too() -> None:
    made, sites = checked(
        program(FUNCTIONS, BODY.format("call (%r1), get, (%d1);\nst.global.u32 [%d2], %r1;"))
    )
    functions = {function.name: function for function in made.functions()}
    assert len(found(functions["get"])) == 1
    assert found(functions["unused"]) == []
    assert [site.function for site in sites.sites] == ["get", "k"]


def test_a_body_that_falls_off_its_end_does_not_fall_into_the_cold_part() -> None:
    kernel = checked(entry("ld.global.u32 %r1, [%d1];"))[0].entries()["k"]
    (one,) = recognise(kernel)
    before = (kernel.body or [])[one.cold[0] - 1]
    assert isinstance(before, Instruction)
    assert before.opcode.base == "ret"


@pytest.mark.parametrize(
    "text",
    [
        ".global .b8 gpud_arena[16];",
        ".func gpud_heap() { ret; }",
        ".visible .entry j() { .reg .b64 %gpud_bounds_off_0; ret; }",
        ".visible .entry j() { $gpud_bounds_warm_0: ret; }",
        ".visible .entry j() { .local .b8 gpud_arena[16]; ret; }",
    ],
)
def test_reserved_names(text: str) -> None:
    module = program(text, BODY.format("ld.global.u32 %r1, [%d1];"))
    with pytest.raises(KernelRejected, match="a name that gpud uses") as caught:
        check_names(call_graph(module))
    assert caught.value.reason == "reserved-name"


def test_sites_are_the_programs_own_instructions() -> None:
    made, sites = checked(entry("ld.global.u32 %r1, [4096];\n@%p1 st.global.u32 [%d1], %r1;\nret;"))
    checks = found(made.entries()["k"])
    texts = [sites.sites[one.site].instruction for one in checks]
    assert texts == ["ld.global.u32 %r1, [4096];", "@%p1 st.global.u32 [%d1], %r1;"]
    lines = [sites.sites[one.site].line for one in checks]
    assert lines[1] == lines[0] + 1


def test_a_variable_that_is_declared_behind_the_function() -> None:
    other = ".visible .entry j() { .reg .b64 %d<2>; mov.u64 %d1, table; ret; }"
    made, _ = checked(program(BODY.format("ld.global.u32 %r1, [%d1];"), TABLE, other))
    names = [item.name for item in made.items if hasattr(item, "name")]
    assert names.index("table") < names.index("k")
    verify_with_fault(made)


def verify_with_fault(module: Module) -> str:
    """The text of the module with a function that reports; it is well-formed."""
    text = print_module(module)
    text = text.replace(
        ".address_size 64\n",
        ".address_size 64\n.func gpud_fault(.reg .u32 k, .reg .u32 s, .reg .u64 a) { exit; }\n", 1,
    )  # fmt: skip
    verify(parse(text))
    return text


def test_an_address_that_was_checked_needs_no_other_check() -> None:
    """Three accesses: what is written was read before."""
    assert len(found(checked(compiled(KERNELS["saxpy"]))[0].entries()["k"])) == 2


@pytest.mark.parametrize("name", sorted(KERNELS))
def test_only_accesses_change(name: str) -> None:
    """What is left without the bounds checks is the program as it was."""
    module = compiled(KERNELS[name])
    made, _ = checked(module)
    verify_with_fault(made)
    for function in made.functions():
        before = next(f for f in module.functions() if f.name == function.name)
        if function.body is None or before.body is None:
            continue
        cut = {n for one in recognise(function) for part in (one.hot, one.cold)
               for n in range(*part)}  # fmt: skip
        kept = [s for n, s in enumerate(function.body) if n not in cut]
        added = [s for s in kept if getattr(s, "name", "").startswith("%gpud_bounds_")]
        assert kept[len(added) :] == before.body
        for statement in before.body:
            if isinstance(statement, Instruction) and accesses(statement):
                operands = statement.operands
                assert any(isinstance(o, Address) and o.base != Symbol("") for o in operands)


# -- NVIDIA's assembler ------------------------------------------------------------------------

needs_ptxas = pytest.mark.skipif(find_ptxas() is None, reason="ptxas is not installed")


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
@pytest.mark.parametrize("name", ["vectors", "calls", "state", "local"])
def test_kernels_assemble(name: str, arch: str) -> None:
    module = compiled(KERNELS[name], arch.replace("sm", "compute"))
    assert assemble(verify_with_fault(checked(module)[0]), arch)
    whole = compile_program(KERNELS[name], arch=arch.replace("sm", "compute"), bounds_checks=True)
    assert assemble(whole.ptx, arch)


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_each_kind_assembles(arch: str) -> None:
    new = ("noftz.bf16x2", "cp.async", "mbarrier", "v4.f32.add", "discard", "L2::128B", "cas.b16")
    lines = [
        kind.text
        for kind in (*KINDS, *GENERIC)
        if arch == "sm_90" or not any(word in kind.text for word in new)
    ]
    if arch == "sm_90":
        lines += [BULK.format(64), BULK.format("%r1"), MATRIX]
    body = DECLARED + MAKES.replace("local", "global") + "\n@%p1 ".join(["", *lines])
    module = entry(f"{body}\nret;", target=arch, version="8.8")
    assert assemble(verify_with_fault(checked(module)[0]), arch)
