"""Accesses to the rows of a matrix have one check of bounded size, which is exact for each row."""

from __future__ import annotations

import random

import pytest

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.forms.classifier import classify
from gpud.compiler.instrumentation.bounds_checks import BoundsCheck, Member, recognise
from gpud.compiler.passes.safety.bounds_checks import pass_bounds_checks
from gpud.compiler.pipeline import compile_program
from gpud.compiler.ptx.model import Instruction, Module
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.compiler.toolchain.ptxas import assemble, find_ptxas
from tests.compiler.support.bounds_oracle import ARENA, LOCAL, SHARED, TABLE, run
from tests.compiler.support.flat_programs import entry

REGISTERS = "{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}"
LOAD = f"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {REGISTERS}, [%d1]"
WINDOWS = (
    ".shared .align 16 .b8 s[64]; .local .align 16 .b8 l[64];"
    "mov.u64 %d9, s; cvta.shared.u64 %d9, %d9; mov.u64 %d9, l; cvta.local.u64 %d9, %d9;\n"
)

# Of a rewrite, for one access: generic addresses, two windows and a variable are legal.
MOST_STATEMENTS = 50


def checked(module: Module) -> Module:
    sites = SiteTable(module)
    made = pass_bounds_checks(module, {n: classify(module, n) for n in module.entries()}, sites)
    assert parse(print_module(made)) == made
    return made


def check_of(text: str) -> BoundsCheck:
    (match,) = recognise(checked(entry(f"{text}\nret;", target="sm_90")).entries()["k"])
    return match.check


def test_rows_at_a_distance_are_one_check() -> None:
    for stride in ("%r9", "32"):
        check = check_of(f"{LOAD}, {stride};")
        assert (check.rows, check.members) == (16, (Member(0, 32, 16, 0),))


@pytest.mark.parametrize("stride", ["", ", 16"])
def test_rows_without_gaps_are_one_range(stride: str) -> None:
    check = check_of(f"{LOAD}{stride};")
    assert (check.rows, check.members) == (1, (Member(0, 512, 16, 0),))


# -- size ------------------------------------------------------------------------------------------

FRAGMENTS = [
    ("a", "row", "f16", 8), ("a", "col", "f16", 8), ("b", "row", "bf16", 4), ("b", "col", "s8", 2),
    ("c", "row", "f32", 8), ("c", "col", "s32", 8),
]  # fmt: skip
WIDEST = [
    "ld{space}.v4.u32 {{%r1, %r2, %r3, %r4}}, [%d1];",
    "ld{space}.v2.u64 {{%d2, %d3}}, [%d1];",
    "st{space}.v4.u32 [%d1], {{%r1, %r2, %r3, %r4}};",
    "atom{space}.exch.b128 %q1, [%d1], %q2;",
    *(
        f"wmma.load.{role}.sync.aligned.{layout}.m16n16k16{{space}}.{kind} "
        f"{{{{{', '.join(f'%r{n}' for n in range(1, count + 1))}}}}}, [%d1], %r9;"
        for role, layout, kind, count in FRAGMENTS
    ),
    "wmma.load.a.sync.aligned.row.m8n8k32{space}.s4 {{%r1}}, [%d1], %r9;",
    "wmma.load.a.sync.aligned.row.m8n8k128{space}.b1 {{%r1}}, [%d1], %r9;",
    (
        "wmma.load.a.sync.aligned.row.m32n8k16{space}.f16 "
        "{{%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}}, [%d1], %r9;"
    ),
    (
        "wmma.store.d.sync.aligned.row.m16n16k16{space}.f32 "
        "[%d1], {{%f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8}}, %r9;"
    ),
]


@pytest.mark.parametrize("space", ["", ".global"])
@pytest.mark.parametrize("text", WIDEST, ids=lambda text: text.split("{")[0] + text[-30:-12])
def test_what_a_check_adds_is_bounded(text: str, space: str) -> None:
    """Beside the access itself, and beside what a module has once."""
    one = text.format(space=space)

    def statements(count: int) -> int:
        lines = "add.s64 %d1, %d1, %d2;\n".join([f"{one}\n"] * count)
        header = ".reg .b128 %q<3>;" + WINDOWS
        made = checked(entry(f"{header}{lines}ret;", target="sm_90", version="8.8")).entries()["k"]
        return len([s for s in made.body or [] if isinstance(s, Instruction)])

    added = statements(3) - statements(2) - 2
    assert 0 < added <= MOST_STATEMENTS


def test_a_program_of_fragments_stays_a_program() -> None:
    """64 pairs of loads, with all rewrites: it grew by a factor of 160 once."""
    pairs = "\n".join(
        f"wmma.load.{role}.sync.aligned.row.m16n16k16.f16 {REGISTERS}, [%d{n % 4}], %r9;"
        f"add.s64 %d{n % 4}, %d{n % 4}, 512;"
        for n in range(64)
        for role in "ab"
    )
    text = print_module(entry(f"{WINDOWS}{pairs}\nret;", target="sm_90", version="8.8"))
    made = compile_program(text)
    assert made.kernels["k"].form != "rejected"
    assert len(made.ptx.splitlines()) < 128 * (MOST_STATEMENTS + 10)
    if find_ptxas() is not None:
        assert assemble(made.ptx, "sm_90")


# -- meaning ---------------------------------------------------------------------------------------


def places() -> list[tuple[int, int]]:
    """(address of the first row, stride in elements), many of them at an edge."""
    draw = random.Random(7)
    edges = [edge for base, size in (ARENA, SHARED, LOCAL, TABLE) for edge in (base, base + size)]
    strides = [0, 8, 16, 17, 24, 32, 256, 260, 4096, (1 << 32) - 1, 1 << 31]
    found = [(ARENA[0], 16), (ARENA[0] + ARENA[1] - 512, 16), (ARENA[0], 256)]
    for _ in range(3000):
        stride = draw.choice(strides)
        back = draw.choice([0, 15 * stride * 2 + 32, draw.randrange(64) * 16, stride * 2])
        address = draw.choice(edges) - back + draw.choice([0, 0, 0, 16, -16, 8, 1, -32])
        found.append((address % (1 << 64), stride))
    # The first row in one legal range and the last one in another: those between are not legal.
    gap = (SHARED[0] - ARENA[0]) // 15
    found += [(SHARED[0] - 15 * (gap & ~31), (gap & ~31) // 2), (ARENA[0], gap // 32 * 16)]
    return found


@pytest.mark.parametrize("space", ["", ".global"])
def test_a_fault_is_reported_for_the_first_row_that_is_illegal(space: str) -> None:
    load = LOAD.replace(".global", space)
    plain = entry(f"{WINDOWS}{load}, %r9;\nret;", target="sm_90")
    made = checked(plain)
    outcomes = {"legal": 0, "outside": 0, "misaligned": 0}
    for address, stride in places():
        registers = {"%d1": address, "%r9": stride}
        illegal = run(plain, {}, registers).illegal
        found = run(made, {}, registers)
        if not illegal:
            assert found.fault is None
            assert len(found.touches) == 16
            outcomes["legal"] += 1
            continue
        assert found.touches == []
        assert found.fault is not None
        kind, _, reported = found.fault
        assert (kind, reported) == (illegal[0].kind, illegal[0].address), (hex(address), stride)
        outcomes["outside" if illegal[0].kind == 1 else "misaligned"] += 1
    assert min(outcomes.values()) > 20
