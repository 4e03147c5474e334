"""Every way in which a bounds check is dropped, merged or moved: where it may be, and where not.

`count` is the number of bounds checks left, `in_front` whether one stands directly before a loop.
The programs also run, past the end of the arena, with and without bounds checks
(`tests.compiler.support.bounds_oracle`).
"""

from __future__ import annotations

import pytest

from gpud.compiler.instrumentation.bounds_checks import BoundsCheck, recognise
from gpud.compiler.passes.safety.check_placement import HULL_BYTES
from gpud.compiler.ptx.model import Function, Label
from tests.compiler.passes.test_bounds_checks_random import checked, module_of
from tests.compiler.support.bounds_oracle import ARENA, run
from tests.compiler.support.flat_programs import program

END = ARENA[0] + ARENA[1]


def checked_kernel(text: str) -> Function:
    """The checked kernel of these lines; it has been run over the arena's end."""
    module = module_of(text.strip().splitlines())
    made, sites = checked(module)
    for before in (0, 4, 8, 12, 16, 24, 32, 40, 64, 128, 4096):
        for bits in range(4):
            given = {"d0": END - before, "d1": END - before - 8, "d2": ARENA[0] + before}
            flags = {"%p1": bits & 1, "%p2": bits >> 1}
            plain = run(module, given, flags)
            found = run(made, given, flags)
            assert not found.illegal
            assert (found.fault is None) == (not plain.illegal)
            if found.fault is not None:
                kind, site, address = found.fault
                wrong = [(t.kind, t.line, t.address) for t in plain.illegal]
                assert (kind, sites.sites[site].line, address) in wrong
    return made.entries()["k"]


def checks(text: str) -> list[BoundsCheck]:
    return [found.check for found in recognise(checked_kernel(text))]


def count(text: str) -> int:
    return len(checks(text))


# -- dropped -----------------------------------------------------------------------------------

LOAD = "ld.global.u32 %r1, [%d0];"
STORE = "st.global.u32 [%d0], %r2;"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{LOAD}\n{STORE}", 1),
        ("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0];\nld.global.u32 %r1, [%d0+8];", 1),
        ("ld.global.u32 %r1, [%d0+8];\nadd.s64 %d0, %d0, 8;\nst.global.u32 [%d0], %r1;", 1),
        ("ld.global.u32 %r1, [%d0+8];\nadd.s64 %d1, %d0, 8;\nst.global.u32 [%d1], %r1;", 1),
        ("ld.global.u32 %r1, [%d0];\nsub.s64 %d1, %d0, 8;\nst.global.u32 [%d1+8], %r1;", 1),
        ("ld.global.u32 %r1, [%d0];\nmov.u64 %d1, %d0;\nst.global.u32 [%d1], %r1;", 1),
        ("ld.global.u32 %r1, [%d0];\ncvta.to.global.u64 %d1, %d0;\nst.global.u32 [%d1], %r1;", 1),
        (f"@%p1 {LOAD}\n@%p1 {STORE}", 1),
        (f"{LOAD}\n@%p1 {STORE}", 1),
        (f"{LOAD}\ncall nothing;\n{STORE}", 1),
        (f"{LOAD}\nbar.sync 0;\n{STORE}", 1),
        # Not: the register, or what it came from, has changed; the guard has; it may not have run.
        (f"{LOAD}\nld.global.u64 %d0, [%d1];\n{STORE}", 3),
        (f"{LOAD}\nadd.s64 %d0, %d0, %d1;\n{STORE}", 2),
        (f"{LOAD}\n@%p1 add.s64 %d0, %d0, 8;\n{STORE}", 2),
        (f"@%p1 {LOAD}\n{STORE}", 2),
        (f"@%p1 {LOAD}\n@!%p1 {STORE}", 2),
        (f"@%p1 {LOAD}\nnot.pred %p1, %p2;\n@%p1 {STORE}", 2),
        ("ld.global.u32 %r1, [%d0];\nld.global.u64 %q1, [%d0];\nbar.sync 0;", 1),
        ("ld.global.u32 %r1, [%d0];\nbar.sync 0;\nld.global.u64 %q1, [%d0];", 2),
        # The same length, another alignment; the second may mean less than the first.
        ("ld.global.u8 %r1, [%d0];\nld.global.u8 %r1, [%d0+1];\nld.global.u16 %r1, [%d0];", 1),
        ("ld.global.u64 %q1, [%d0];\nbar.sync 0;\nld.global.u32 %r1, [%d0+2];", 2),
        ("ld.global.u64 %q1, [%d0];\nbar.sync 0;\nld.global.u16 %r1, [%d0+2];", 1),
        ("ld.u32 %r1, [%d0];\nld.global.u32 %r1, [%d0];", 2),
        ("ld.u32 %r1, [%d0];\nst.u32 [%d0], %r1;", 2),
        ("st.u32 [%d0], %r1;\nld.u32 %r1, [%d0];", 1),
        ("ld.global.u32 %r1, [%d0];\nld.u32 %r1, [%d0];", 1),
    ],
)
def test_dropped_in_a_block(text: str, left: int) -> None:
    assert count(text) == left


BEHIND = "st.global.u32 [%d0+-8], %r2;"
BEYOND = "ld.global.u32 %r1, [%d0+8];"
STEP = "add.s64 %d0, %d0, 8;"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"{LOAD}\n@%p1 bra $L;\n{STORE}\n$L:\n{STORE}", 1),
        (f"@%p1 bra $L;\n{LOAD}\nbra $E;\n$L:\n{STORE}\n$E:\n{STORE}", 2),
        (f"{LOAD}\nadd.s64 %d0, %d0, 8;\n@%p1 bra $L;\nmov.u32 %r2, 1;\n$L:\n{BEHIND}", 1),
        (f"@%p1 {LOAD}\n@%p2 bra $L;\nmov.u32 %r2, 1;\n$L:\n@%p1 {STORE}", 1),
        (f"{BEYOND}\n@%p1 bra $A;\n$A:\n{STEP}\n@%p2 bra $B;\n$B:\n{STORE}", 1),
        (f"{LOAD}\n@%p1 bra $A;\n$A:\n{STEP}\n@%p2 bra $B;\n$B:\n{BEYOND}", 2),
        # One way does not pass an access, or changes the register, the guard.
        (f"@%p1 bra $L;\n{LOAD}\n$L:\n{STORE}", 2),
        (f"{LOAD}\n@%p1 bra $L;\nadd.s64 %d0, %d0, 8;\n$L:\n{STORE}", 2),
        (f"{LOAD}\n@%p1 bra $L;\nld.global.u64 %d0, [%d1];\n$L:\n{STORE}", 3),
        (f"@%p1 {LOAD}\n@%p2 bra $L;\nnot.pred %p1, %p1;\n$L:\n@%p1 {STORE}", 2),
        (f"@%p1 bra $M;\n{LOAD}\nadd.s64 %d0, %d0, 8;\nbra $L;\n$M:\n{LOAD}\n$L:\n{STORE}", 3),
    ],
)  # fmt: skip
def test_dropped_between_blocks(text: str, left: int) -> None:
    assert count(text) == left


def test_a_narrow_register_in_between_loses_bits() -> None:
    """Not PTX that NVIDIA's assembler takes, but devices may: the value is another one."""
    text = (
        "mov.u64 %c1, %d0;\nmov.u64 %d1, %c1;\nld.global.u32 %r1, [%d0];\nst.global.u32 [%d1], %r1;"
    )
    kernel = checked(module_of(text.splitlines()))[0].entries()["k"]
    assert len(recognise(kernel)) == 2


def test_an_opcode_that_nobody_knows_may_write_every_register() -> None:
    text = f"{LOAD}\nfrobnicate.b64 %q1, %d0;\n{STORE}"
    kernel = checked(module_of(text.splitlines()))[0].entries()["k"]
    assert len(recognise(kernel)) == 2


# -- merged ------------------------------------------------------------------------------------


def test_fields_of_a_structure_share_a_check() -> None:
    (one,) = checks(
        "ld.global.u32 %r1, [%d0+8];\nld.global.u64 %q1, [%d0];\nst.global.u32 [%d0+12], %r1;"
    )
    assert [(m.low, m.span, m.align) for m in one.members] == [(8, 4, 4), (0, 8, 8), (12, 4, 4)]
    assert (one.low, one.span, one.align) == (0, 16, 8)


def test_a_walking_pointer_shares_a_check() -> None:
    step = "ld.global.u32 %r1, [%d0];\nadd.s64 %d0, %d0, 4;\n"
    (one,) = checks(step * 8)
    assert [m.low for m in one.members] == list(range(0, 32, 4))


@pytest.mark.parametrize(
    "between",
    [
        "call nothing;",
        "bar.sync 0;",
        "bar.warp.sync -1;",
        "@%p1 bra $L;\nmov.u32 %r2, 1;\n$L:",
        "ld.global.u64 %d0, [%d1];",
        "@%p1 ret;",
    ],
)
def test_not_merged_over(between: str) -> None:
    """The next access is not certain to follow, or is of another value."""
    extra = 1 if "[%d1]" in between else 0
    assert count(f"{LOAD}\n{between}\nst.global.u32 [%d0+4], %r2;") == 2 + extra


def test_not_merged_where_alignments_disagree() -> None:
    """4 bytes at 4 and 8 bytes at 8: no one multiple from offset 4 on says both."""
    assert count("ld.global.u32 %r1, [%d0+4];\nld.global.u64 %q1, [%d0+8];") == 2
    assert count("ld.global.u32 %r1, [%d0];\nld.global.u64 %q1, [%d0+8];") == 1


def test_not_merged_over_a_long_gap() -> None:
    far = "ld.global.u32 %r1, [%d0];\nld.global.u32 %r1, [%d0+{}];"
    assert count(far.format(HULL_BYTES - 4)) == 1
    assert count(far.format(HULL_BYTES)) == 2


def test_not_merged_under_different_guards() -> None:
    assert count("@%p1 ld.global.u32 %r1, [%d0];\nld.global.u32 %r1, [%d0+4];") == 2
    assert count("@%p1 ld.global.u32 %r1, [%d0];\n@%p1 ld.global.u32 %r1, [%d0+4];") == 1


def test_a_merged_hull_covers_no_gap() -> None:
    """Both ends may lie in different legal ranges: what is between is checked all the same."""
    found = checks(
        "ld.global.u32 %r1, [%d0];\nld.global.u32 %r1, [%d0+64];\nbar.sync 0;\n"
        "ld.global.u32 %r1, [%d0+32];"
    )
    assert [[m.low for m in one.members] for one in found] == [[0, 64], [32]]


# -- moved -------------------------------------------------------------------------------------

LOOP = "mov.u32 %c1, 0;\n{before}$L:\n{body}\nadd.u32 %c1, %c1, 1;\n{after}\n"
BOTTOM = "setp.lt.u32 %p3, %c1, 3;\n@%p3 bra $L;\n$E:"


def in_front(text: str, label: str = "$L") -> bool:
    """Whether a bounds check stands before ``label``."""
    kernel = checked_kernel(text)
    body = kernel.body or []
    start = next(n for n, s in enumerate(body) if isinstance(s, Label) and s.name == label)
    return any(one.hot[0] < start for one in recognise(kernel))


def test_moved_in_front_of_a_loop() -> None:
    kernel = checked_kernel(LOOP.format(before="", body=LOAD, after=BOTTOM))
    body = kernel.body or []
    (one,) = recognise(kernel)
    after = body[one.hot[1]]
    assert isinstance(after, Label)
    assert after.name == "$L"


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        # Entered by falling through a branch that may leave; by an unconditional jump.
        ("@%p1 bra $E;\n", LOAD, BOTTOM),
        ("bra $L;\n", LOAD, BOTTOM),
        # The header runs even if the loop does not go round.
        ("", f"{LOAD}\nsetp.ge.u32 %p3, %c1, 3;\n@%p3 bra $E;", "bra $L;\n$E:"),
    ],
)
def test_moved(before: str, body: str, after: str) -> None:
    assert in_front(LOOP.format(before=before, body=body, after=after))


@pytest.mark.parametrize(
    ("before", "body", "after"),
    [
        # Tested at the top: perhaps no round is run.
        ("", f"setp.ge.u32 %p3, %c1, %r5;\n@%p3 bra $E;\n{LOAD}", "bra $L;\n$E:"),
        # Written in the loop, at its end.
        ("", LOAD, f"ld.global.u64 %d0, [%d1];\n{BOTTOM}"),
        ("", LOAD, f"add.s64 %d0, %d0, 4;\n{BOTTOM}"),
        ("", f"@%p1 {LOAD}", BOTTOM),
        # Not certain to be reached.
        ("", f"call nothing;\n{LOAD}", BOTTOM),
        ("", f"bar.sync 0;\n{LOAD}", BOTTOM),
        ("", f"@%p1 bra $M;\n{LOAD}\n$M:", BOTTOM),
        # Entered by a branch that may also go on, or from two places.
        ("@%p1 bra $L;\nbra $E;\n", LOAD, BOTTOM),
        ("@%p1 bra $L;\nmov.u32 %r5, 7;\n", LOAD, BOTTOM),
        ("@%p1 bra $X;\n", LOAD, f"{BOTTOM[:-4]}\nbra $E;\n$X:\nbra $L;\n$E:"),
    ],
)
def test_not_moved(before: str, body: str, after: str) -> None:
    text = LOOP.format(before=before, body=body, after=after)
    kernel = checked_kernel(text)
    place = next(
        n for n, s in enumerate(kernel.body or []) if isinstance(s, Label) and s.name == "$L"
    )
    hot = [one.hot[0] for one in recognise(kernel) if one.check.register.name == "%d0"]
    assert hot
    assert all(start > place for start in hot)


def test_what_was_moved_stands_for_the_whole_loop() -> None:
    body = f"{LOAD}\n@%p1 bra $M;\n{STORE}\n$M:\nld.global.u8 %r1, [%d0+3];"
    assert count(LOOP.format(before="", body=body, after=BOTTOM)) == 1


def test_a_loop_at_the_very_start_has_nothing_in_front() -> None:
    """A branch back to the first statement: no facts hold there on entry."""
    module = program(
        ".visible .entry k(.param .u64 d0)\n{ .reg .b64 %d<2>; .reg .b32 %r<3>; .reg .pred %p<2>;\n"
        "$L:\nld.global.u32 %r1, [%d0];\n@%p1 bra $L;\nst.global.u32 [%d0], %r1;\nret;\n}"
    )
    made, _ = checked(module)
    (one,) = recognise(made.entries()["k"])
    body = made.entries()["k"].body or []
    label = next(n for n, s in enumerate(body) if isinstance(s, Label))
    assert one.hot[0] > label
