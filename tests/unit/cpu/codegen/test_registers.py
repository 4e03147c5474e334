"""Passes on registers before code generation: webs, inductions, recipes, storage, NaNs."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.analysis.effects import MEMORY_READ, flags, read, state_space, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis import rematerialization
from gpud.device.cpu.codegen.analysis.canonical_nans import noncanonical_registers
from gpud.device.cpu.codegen.analysis.convergence import Convergence
from gpud.device.cpu.codegen.analysis.regions import CodeRegions
from gpud.device.cpu.codegen.analysis.register_types import register_storage
from gpud.device.cpu.codegen.analysis.rematerialization import Rematerializable
from gpud.device.cpu.codegen.preparation.induction import split_inductions
from gpud.device.cpu.codegen.preparation.webs import split_webs
from gpud.device.cpu.device import CPUDevice
from tests.unit.cpu.codegen.prepared import (
    analysed,
    instructions,
    kernel,
    prepared,
    random_programs,
    text_of,
)
from tests.unit.cpu.device_helpers import TIMEOUT_S, pointer, words

# -- webs --------------------------------------------------------------------------------------


def webs(body: str) -> list[str]:
    return text_of(split_webs(kernel(body).entries()["k"]))


def test_unrelated_uses_of_a_register_are_split() -> None:
    lines = webs("""
    .reg .u32 %r<4>;
    mov.u32 %r1, 1; add.u32 %r2, %r1, 1; mov.u32 %r1, 2; add.u32 %r3, %r1, 1; ret;""")
    targets = [line.split()[1].rstrip(",") for line in lines if line.startswith("mov")]
    assert len(set(targets)) == 2
    assert targets[0] in lines[1]
    assert targets[1] in lines[3]


def test_a_register_with_one_web_keeps_its_name() -> None:
    lines = webs(".reg .u32 %r<3>; mov.u32 %r1, 1; add.u32 %r2, %r1, %r1; ret;")
    assert lines == ["mov.u32 %r1, 1;", "add.u32 %r2, %r1, %r1;", "ret;"]


@pytest.mark.parametrize(
    "body",
    [
        # two paths to one reader
        """setp.eq.u32 %p, %r2, 0; @%p bra A; mov.u32 %r1, 1; bra B;
        A: mov.u32 %r1, 2; B: add.u32 %r3, %r1, 1; ret;""",
        # around a loop
        """mov.u32 %r1, 0; A: add.u32 %r1, %r1, 1; setp.lt.u32 %p, %r1, 9; @%p bra A;
        mov.u32 %r3, %r1; ret;""",
        # a guard may leave the old value
        "mov.u32 %r1, 0; setp.eq.u32 %p, %r2, 0; @%p mov.u32 %r1, 1; mov.u32 %r3, %r1; ret;",
    ],
)
def test_definitions_that_reach_one_reader_stay_together(body: str) -> None:
    function = kernel(".reg .u32 %r<4>; .reg .pred %p;" + body).entries()["k"]
    assert split_webs(function) is function


# -- inductions --------------------------------------------------------------------------------

WALK = """
.reg .u32 %r<6>; .reg .u64 %rd<4>; .reg .pred %p;
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
mov.u32 %r3, 0;
LOOP:
ld.global.u32 %r4, [%rd3]; add.u32 %r5, %r4, 1; st.global.u32 [%rd3], %r5;
add.s64 %rd3, %rd3, 128; add.u32 %r3, %r3, 1;
setp.lt.u32 %p, %r3, %r1; @%p bra LOOP;
ret;
"""


def split(body: str) -> ptx.Function | None:
    entry = prepared(body)
    regions = CodeRegions(entry)
    found = Convergence(regions, frozenset())
    return split_inductions(entry, regions.flow, found.varying, found.inner)


def test_a_pointer_that_all_threads_advance_alike_is_split() -> None:
    found = split(WALK)
    assert found is not None
    regions = CodeRegions(found)
    varying = Convergence(regions, frozenset()).varying
    moved = [n for i in instructions(found) for n in [r.name for r in written(i)] if "moved" in n]
    assert moved
    assert not varying.intersection(moved)
    assert any(".start" in name for name in varying)


def readers(found: ptx.Function, base: str) -> list[list[str]]:
    """The operands of the instructions ``base`` of a split program, in order."""
    return [[r.name for r in read(ins)] for ins in instructions(found) if ins.opcode.base == base]


def test_readers_read_the_start_until_a_step_may_have_run() -> None:
    body = """.reg .u32 %r<6>; .reg .u64 %rd<4>; .reg .pred %p;
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;
    setp.eq.u32 %p, %r1, 9; @%p bra OVER;
    mul.wide.u32 %rd2, %r2, 4; st.global.u32 [%rd1], %r2;
    OVER: shl.b32 %r3, %r2, 1;
    LOOP: not.b32 %r4, %r2; neg.s32 %r5, %r2;
    add.u32 %r2, %r2, 3; abs.s32 %r4, %r2; setp.lt.u32 %p, %r1, 7; @%p bra LOOP;
    AFTER: popc.b32 %r4, %r2; mov.u32 %r2, %tid.y; clz.b32 %r5, %r2;
    setp.lt.u32 %p, %r1, 6; @%p bra AFTER; ret;"""
    found = split(body)
    assert found is not None
    started = ["%r2.start"]
    assert readers(found, "mul") == readers(found, "shl") == readers(found, "clz") == [started]
    # Two consecutive readers share a sum; the one after the step reads another.
    sums = [*readers(found, "not"), *readers(found, "neg"), *readers(found, "abs")]
    assert sums == [["%r2.at0"], ["%r2.at0"], ["%r2.at1"]]
    assert readers(found, "popc") == [["%r2.at2"]]


def test_values_computed_from_a_start_can_be_recomputed_in_the_loop() -> None:
    body = """.reg .u32 %r<6>; .reg .u64 %rd<4>; .reg .pred %p;
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
    LOOP: bar.sync 0; st.global.u32 [%rd3], %r2;
    add.u32 %r2, %r2, 3; setp.lt.u32 %p, %r1, 7; @%p bra LOOP; ret;"""
    found = split(body)
    assert found is not None
    regions = CodeRegions(found)
    convergence = Convergence(regions, frozenset())
    again = Rematerializable(regions.flow, convergence.varying, convergence.inner)
    store = next(
        n for n in regions.flow.order
        if any(p.instruction.opcode.base == "st" for p in regions.flow.blocks[n].places)
    )  # fmt: skip
    assert "%rd3" in again.available[store]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add.s64 %rd3, %rd3, 128", "add.s64 %rd3, %rd3, %rd2"),  # each thread by its own step
        ("add.s64 %rd3, %rd3, 128", "@%p add.s64 %rd3, %rd3, 128"),  # under a guard
        ("add.s64 %rd3, %rd3, 128", "xor.b64 %rd3, %rd3, 128"),  # no sum
    ],
)
def test_a_step_that_is_not_uniform_is_not_split(old: str, new: str) -> None:
    body = WALK.replace("mov.u32 %r3, 0;", "mov.u32 %r3, 0; setp.lt.u32 %p, %r2, 5;")
    assert split(body.replace(old, new)) is None


def test_sums_wrap_as_the_additions_do(device: CPUDevice) -> None:
    """A 32-bit index that starts near the top and wraps many times."""
    text = """.version 8.0\n.target sm_75\n.address_size 64
    .visible .entry k(.param .u64 out, .param .u32 n) {
    .reg .u32 %r<8>; .reg .u64 %rd<4>; .reg .pred %p;
    ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x; mul.wide.u32 %rd2, %r2, 4; add.s64 %rd3, %rd1, %rd2;
    sub.u32 %r3, %r2, 4; mov.u32 %r4, 0; mov.u32 %r6, 0;
    LOOP:
    add.u32 %r3, %r3, 1431655765; shr.u32 %r5, %r3, 3; add.u32 %r6, %r6, %r5;
    add.u32 %r4, %r4, 1; setp.lt.u32 %p, %r4, %r1; @%p bra LOOP;
    st.global.u32 [%rd3], %r6; ret; }"""
    memory, out = words(device, 64)
    parameters = pointer(memory) + (20).to_bytes(4, "little")
    device.launch(device.load(text).kernel("k"), (1, 1, 1), (64, 1, 1), parameters).result(
        TIMEOUT_S
    )
    index, total = np.arange(64, dtype=np.uint32) - np.uint32(4), np.zeros(64, np.uint32)
    for _ in range(20):
        index += np.uint32(1431655765)
        total += index >> 3
    assert np.array_equal(out, total)


# -- recipes -----------------------------------------------------------------------------------


def recomputable(body: str) -> tuple[CodeRegions, Rematerializable]:
    regions, found = analysed(body)
    return regions, Rematerializable(regions.flow, found.varying, found.inner)


ADDRESS = """
.reg .u32 %r<6>; .reg .u64 %rd<4>;
ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [n];
mov.u32 %r2, %tid.x; add.u32 %r3, %r2, %r1; mul.wide.u32 %rd2, %r3, 4; add.s64 %rd3, %rd1, %rd2;
{0}
bar.sync 0;
st.global.u32 [%rd3], %r3; ret;
"""


def after_the_barrier(regions: CodeRegions) -> int:
    [cut] = [c for c in regions.cuts if c]
    return cut


def test_an_address_of_a_thread_number_is_recomputed() -> None:
    regions, found = recomputable(ADDRESS.format(""))
    cut = after_the_barrier(regions)
    assert {"%rd3", "%r3"} <= found.available[cut]
    assert sorted(found.leaves("%rd3")) == ["%r1", "%rd1"]
    assert [i.operands[0].name for i in found.recipe("%rd3")][-1] == "%rd3"  # type: ignore[union-attr]


def test_a_register_whose_operand_changed_is_spilled() -> None:
    regions, found = recomputable(ADDRESS.format("add.u32 %r1, %r1, 1;") + "")
    # %r1 is split into webs: the recipe still mentions the old one, so nothing changed.
    assert "%rd3" in found.available[after_the_barrier(regions)]
    loop = ADDRESS.format("LOOP:").replace("ret;", "add.u32 %r1, %r1, 1; bra LOOP;")
    regions, found = recomputable(loop)
    assert all("%rd3" not in names for names in list(found.available.values())[1:])


@pytest.mark.parametrize(
    "instruction",
    [
        "mov.u32 %r3, %clock;",
        "ld.global.u32 %r3, [%rd1];",
        "mov.u32 %r3, %smid;",
        "div.u32 %r3, %r2, %r1;",
    ],
)
def test_unstable_or_expensive_registers_are_spilled(instruction: str) -> None:
    body = ADDRESS.format("").replace("add.u32 %r3, %r2, %r1;", instruction)
    regions, found = recomputable(body)
    assert "%r3" not in found.available[after_the_barrier(regions)]


def test_recipes_are_short_and_read_no_memory_but_parameters() -> None:
    for regions, convergence in random_programs(8):
        found = Rematerializable(regions.flow, convergence.varying, convergence.inner)
        names = {name for available in found.available.values() for name in available}
        for name in names:
            steps = found.recipe(name)
            assert len(steps) <= rematerialization._MAX_RECIPE
            for step in steps:
                if flags(step.opcode) & MEMORY_READ:
                    assert state_space(step.opcode) == "param"
            made = {r.name for step in steps for r in written(step)}
            needed = {r.name for step in steps for r in read(step)} - made
            assert needed == set(found.leaves(name)) - made
            assert not needed & convergence.varying


# -- storage -----------------------------------------------------------------------------------


def storage(body: str) -> dict[str, str]:
    return register_storage(kernel(body).entries()["k"].body or ())


def test_registers_are_stored_by_their_use() -> None:
    found = storage("""
    .reg .b32 %i, %f<3>; .reg .b64 %d<3>, %p<3>; .reg .pred %q; .reg .f16 %h; .reg .b128 %w;
    ld.param.u64 %p1, [out]; cvta.to.global.u64 %p2, %p1;
    mov.u32 %i, %tid.x; cvt.rn.f32.u32 %f1, %i; add.f32 %f2, %f1, %f1;
    cvt.f64.f32 %d1, %f2; st.global.f64 [%p2], %d1; ret;""")
    assert found["%i"] == "i32"
    assert (found["%f1"], found["%f2"], found["%d1"]) == ("float", "float", "double")
    assert (found["%p2"], found["%q"], found["%h"], found["%w"]) == ("ptr", "i1", "i16", "i128")
    assert found["%CC.CF"] == "i1"


def test_a_register_that_is_computed_with_is_no_pointer() -> None:
    found = storage("""
    .reg .b64 %p<4>; .reg .b32 %r;
    ld.param.u64 %p1, [out]; xor.b64 %p2, %p1, 64; ld.global.u32 %r, [%p2];
    st.global.u32 [%p2], %r; ret;""")
    assert found["%p2"] == "i64"


# -- NaNs --------------------------------------------------------------------------------------

NANS = """.version 8.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 out) {
.reg .u32 %r<9>; .reg .f32 %f<9>; .reg .u64 %rd<4>;
ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
ld.global.f32 %f1, [%rd3];
st.global.f32 [%rd3+256], %f1;
add.f32 %f2, %f1, 0f3F800000; st.global.f32 [%rd3+512], %f2;
mul.f32 %f3, %f1, %f1; mov.b32 %r2, %f3; st.global.u32 [%rd3+768], %r2;
neg.f32 %f4, %f2; mov.f32 %f5, %f4; st.global.f32 [%rd3+1024], %f5;
sub.f32 %f6, %f2, %f2; fma.rn.f32 %f7, %f6, %f6, %f1; st.global.f32 [%rd3+1280], %f7;
ret; }
"""


def test_nans_have_the_bits_of_a_gpu_where_they_can_be_seen(device: CPUDevice) -> None:
    memory, view = words(device, 6 * 64)
    given = [0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF800000, 0x7F800000, 0x3F800000]
    view[:6] = given
    device.launch(device.load(NANS).kernel("k"), (1, 1, 1), (6, 1, 1), pointer(memory)).result(
        TIMEOUT_S
    )
    loaded, added, squared, negated, fused = view.reshape(6, 64)[1:, :6].tolist()
    assert loaded == given, "what is only moved keeps its payload"
    assert added[:3] == squared[:3] == [0x7FFFFFFF] * 3
    assert added[3:] == [0xFF800000, 0x7F800000, 0x40000000]
    assert fused[:5] == [0x7FFFFFFF] * 5
    assert all(bits & 0x7FFFFFFF == 0x7FFFFFFF for bits in negated[:3])


def test_only_results_of_arithmetic_may_be_noncanonical() -> None:
    body = (
        kernel("""
    .reg .f32 %f<6>; .reg .u64 %rd;
    ld.param.u64 %rd, [out]; ld.global.f32 %f1, [%rd]; add.f32 %f2, %f1, %f1;
    mov.f32 %f3, %f2; mov.f32 %f4, %f1; sqrt.rn.f32 %f5, %f2; ret;""")
        .entries()["k"]
        .body
        or ()
    )
    found = noncanonical_registers(body, register_storage(body))
    assert found == {"%f2", "%f3"}
