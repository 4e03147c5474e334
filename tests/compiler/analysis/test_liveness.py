"""Live registers (gpud.compiler.analysis.liveness)."""

from __future__ import annotations

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.liveness import Liveness
from tests.compiler.support.flat_programs import kernel


def live(body: str) -> Liveness:
    return Liveness(ControlFlow(kernel(body)))


def names(liveness: Liveness, bits: int) -> set[str]:
    return {register.name for register in liveness.registers(bits)}


def test_straight_code() -> None:
    code = ["mov.u32 %r1, 1;", "add.s32 %r2, %r1, %r3;", "st.shared.u32 [%r4], %r2;", "ret;"]
    rests = [live(" ".join(code[first:])) for first in range(4)]
    at = [names(rest, rest.live_in[0]) for rest in rests]
    assert at == [{"%r3", "%r4"}, {"%r1", "%r3", "%r4"}, {"%r2", "%r4"}, set()]


def test_a_predicated_write_keeps_the_old_value_alive() -> None:
    found = live("@%p1 mov.u32 %r1, 1; st.shared.u32 [%r4], %r1; ret;")
    assert names(found, found.live_in[0]) == {"%r1", "%r4", "%p1"}


def test_values_live_around_a_loop() -> None:
    found = live("""
        mov.u32 %r1, 0;
    LOOP:
        add.s32 %r1, %r1, %r2;
        setp.lt.s32 %p1, %r1, 100;
        @%p1 bra LOOP;
        ret;
    """)
    assert names(found, found.live_in[0]) == {"%r2"}
    assert names(found, found.live_in[1]) == {"%r1", "%r2"}
    assert names(found, found.live_in[2]) == set()


def test_a_register_written_on_one_way_only_is_live_before_the_branch() -> None:
    found = live("@%p1 bra SKIP; mov.u32 %r1, 1; SKIP: st.shared.u32 [%r4], %r1; ret;")
    assert names(found, found.live_in[0]) == {"%p1", "%r1", "%r4"}
    assert names(found, found.live_in[1]) == {"%r4"}
