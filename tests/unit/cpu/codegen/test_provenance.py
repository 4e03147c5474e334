"""Provenance: a check tests the right range first, and admits nothing illegal if it is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.model import Instruction
from gpud.compiler.ptx.parser import parse
from gpud.device.cpu.codegen.emit.device_functions import frame_sizes
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check
from gpud.device.cpu.codegen.preparation.pipeline import Prepared, prepare
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check
from gpud.errors import IllegalAddress, KernelTrap
from tests.unit.cpu.codegen.checked_arena import HEAD, PARTED, Arena, ptx

TOP = """.extern .func (.param .b64 r) malloc(.param .b64 n);
.global .align 256 .b8 table[256];
.extern .shared .align 16 .b8 given[];
"""
TAKE = """{ .param .b64 n; .param .b64 r; st.param.b64 [n], 256; call (r), malloc, (n);
    ld.param.b64 %rd2, [r]; }"""
WHERE = {
    "arena": "mov.u64 %rd2, %rd6;",
    "data": "mov.u64 %rd2, table;",
    "static": "mov.u64 %rd2, box; cvta.shared.u64 %rd2, %rd2;",
    "shared": "mov.u64 %rd2, given; cvta.shared.u64 %rd2, %rd2;",
    "thread": "mov.u64 %rd2, mine; cvta.local.u64 %rd2, %rd2;",
    "heap": TAKE,
}
"""What puts the address of 256 bytes into ``%rd2``: of 32 for each thread, or all its own."""


def program(where: str, access: str, *, parted: bool = False) -> str:
    """Thread t of eight makes the access at ``%rd2 + t * step + n``."""
    return f"""{HEAD}{TOP}.visible .entry k(.param .u64 q, .param .u64 step, .param .u64 n)
    {{ .reg .b32 %r<10>; .reg .b64 %rd<10>; .reg .pred %p<8>;
    .shared .align 256 .b8 box[256]; .local .align 16 .b8 mine[256];
    ld.param.u64 %rd6, [q]; ld.param.u64 %rd3, [step]; ld.param.u64 %rd7, [n];
    mov.u32 %r3, %tid.x; {PARTED if parted else ""} {where}
    cvt.u64.u32 %rd4, %r3; mad.lo.s64 %rd1, %rd4, %rd3, %rd2; add.s64 %rd1, %rd1, %rd7;
    {access} ret; }}"""


def prepared_of(text: str) -> Prepared:
    """The prepared kernel of the sliced form of ``text``."""
    module = flatten_module(parse(ptx(text, "sliced").ptx))
    return prepare(module, module.entries()["k"], checked=True)


def origins(text: str) -> list[tuple[str, ...]]:
    """The origins of the bounds checks of the kernel in ``text``, and of its functions."""
    prepared = prepared_of(text)
    checks = [
        decode_check(statement)
        for function in (prepared.entry, *prepared.functions.values())
        for statement in function.body or ()
        if isinstance(statement, Instruction) and is_bounds_check(statement)
    ]
    return [check.origins for check in checks if check.origins]


@pytest.mark.parametrize("origin", WHERE)
def test_an_address_has_the_origin_that_it_comes_from(origin: str) -> None:
    expected = ("static", "shared") if origin == "static" else (origin,)
    assert origins(program(WHERE[origin], "st.u32 [%rd1], 1;")) == [expected]
    assert origins(program(WHERE[origin], "st.u32 [%rd1], 1;", parted=True)) == [expected]


@pytest.mark.parametrize("parted", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("origin", WHERE)
def test_accesses_at_both_ends_of_an_origin(world: Arena, origin: str, parted: bool) -> None:
    text = program(WHERE[origin], "st.u32 [%rd1], 1;", parted=parted)
    step, q = 32, world.end - 256

    def run(n: int, by: int = step) -> object:
        return world.run(text, q, by, n, shared=256 if origin == "shared" else 0)

    assert run(0) is None
    assert run(32 - 4) is None
    assert run(256 - 32, -step) is None
    # Memory of the same kind may follow; the addresses of all of it are far from these.
    for beyond in (1 << 30, -(1 << 30), 1 << 62):
        error = run(beyond)
        assert isinstance(error, IllegalAddress)
        assert (error.space, error.misaligned) == ("global", False)
    if origin not in ("data", "heap"):  # nothing else lies behind these that may be accessed
        error = run(256 if origin == "thread" else 32, 0 if origin == "thread" else step)
        assert isinstance(error, IllegalAddress)
        if not parted:
            assert error.thread == ((0, 0, 0) if origin == "thread" else (7, 0, 0))
    error = run(2)
    assert isinstance(error, IllegalAddress)
    assert error.misaligned


TABLES = f"""{HEAD}.func one(); .func other();
    .global .align 8 .u64 functions[2] = {{one, other}};
    .visible .entry k(.param .u64 q) {{
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [q]; mov.u64 %rd4, functions; st.global.u64 [%rd1+8], %rd4;
    ld.global.u64 %rd2, [%rd1]; ld.u64 %rd3, [%rd2+8];
    P: .callprototype _ (); call %rd3, (), P; ret; }}
    .func one() {{ ret; }} .func other() {{ ret; }}"""


def test_function_tables_are_assumed_in_the_module(world: Arena) -> None:
    first, *_ = origins(TABLES)
    assert first == ("arena",)
    assert [one[:2] for one in origins(TABLES)[1:]] == [("data", "arena")]
    table = world.base + 64  # but need not be: elsewhere there is just no function address
    world.bytes[:] = 0
    world.words(np.uint64)[0] = table
    error = world.run(TABLES, world.base, block=1)
    assert isinstance(error, KernelTrap)
    assert "jump or call to 0x0" in error.cause
    world.words(np.uint64)[0] = world.end
    error = world.run(TABLES, world.base, block=1)
    assert isinstance(error, IllegalAddress)
    assert error.address == world.end + 8


def test_a_wrong_origin_admits_nothing_illegal(world: Arena) -> None:
    text = program("mov.u64 %rd2, table; sub.s64 %rd5, %rd6, %rd2; add.s64 %rd2, %rd2, %rd5;",
                   "st.global.u32 [%rd1], 1;")  # fmt: skip
    assert origins(text) == [("data",)]
    assert world.run(text, world.end - 4 * 8, 4, 0) is None
    error = world.run(text, world.end - 4 * 7, 4, 0)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.thread) == (world.end, (7, 0, 0))


def test_an_address_of_unknown_origin_tests_all_ranges(world: Arena) -> None:
    choice = "".join(
        f"{{ {text} }} setp.eq.u64 %p1, %rd7, {8 * at}; @%p1 mov.u64 %rd8, %rd2;"
        for at, text in enumerate(WHERE.values())
    )
    text = program(f"mov.u64 %rd8, 0; {choice} mov.u64 %rd2, %rd8;", "st.u32 [%rd1], 1;")
    ((first, *others),) = origins(text)
    assert first == "arena"
    assert {"static", first, *others} == set(WHERE)
    for at in range(len(WHERE)):
        assert world.run(text, world.end - 256, 16, 8 * at, shared=256) is None
    error = world.run(text, world.end - 256, 16, 8 * len(WHERE))
    assert isinstance(error, IllegalAddress)
    assert error.address == 8 * len(WHERE)


def test_shared_memory_behind_the_variables_is_legal_too(world: Arena) -> None:
    text = program("mov.u64 %rd2, box;", "mov.u64 %rd8, given; st.shared.u32 [%rd1], 1;")
    assert origins(text) == [("static", "shared")]
    assert world.run(text, 0, 4, 256 - 4 * 8) is None
    assert world.run(text, 0, 4, 256 - 4 * 7, shared=4) is None
    error = world.run(text, 0, 4, 256 - 4 * 7)
    assert isinstance(error, IllegalAddress)
    assert (error.space, error.thread) == ("shared", (7, 0, 0))


@pytest.mark.parametrize("low", [-64, 0, 64])
def test_shared_addresses_of_32_bits_that_begin_below_0(world: Arena, low: int) -> None:
    """Only threads from the fourth on make the access: the first one's address is negative."""
    text = f"""{HEAD}.visible .entry k(.param .u64 q, .param .u32 by, .param .u32 n)
    {{ .reg .b32 %r<10>; .reg .pred %p<3>; .shared .align 256 .b8 box[256];
    mov.u32 %r3, %tid.x; setp.lt.u32 %p1, %r3, 4; @%p1 bra END;
    ld.param.u32 %r4, [by]; ld.param.u32 %r5, [n]; mov.u32 %r1, box;
    mad.lo.u32 %r2, %r3, %r4, %r1; add.u32 %r2, %r2, %r5; st.shared.u32 [%r2+{low}], 1;
    END: ret; }}"""

    def run(first: int, by: int) -> object:
        n = np.int32(first - 4 * by - low)
        return world.run(text, 0, np.int32(by), n, block=32)

    least = max(low, 0)  # the register is widened before the offset is added
    last = least + 26 * 4
    assert run(least, 4) is None
    assert run(256 - 28 * 4, 4) is None
    assert run(252, -4) is None
    assert run(last + 4, -4) is None
    for first, by, thread in (
        (least - 4, 4, 4), (256 - 27 * 4, 4, 31), (256, 0, 4), (last, -4, 31),
    ):  # fmt: skip
        error = run(first, by)
        assert isinstance(error, IllegalAddress)
        assert error.space == "shared"
        assert error.thread == (thread, 0, 0)
    error = run(least + 2, 4)
    assert isinstance(error, IllegalAddress)
    assert error.misaligned


CALLS = f"""{HEAD}{TOP}
.func put(.param .b64 p)
{{ .reg .b64 %rd<4>; .reg .pred %p1; ld.param.b64 %rd1, [p]; setp.eq.u64 %p1, %rd1, 1;
@%p1 bra END; st.u32 [%rd1+4], 1; END: ret; }}
.visible .entry k(.param .u64 q, .param .u64 n)
{{ .reg .b64 %rd<10>; .local .align 16 .b8 mine[16];
ld.param.u64 %rd1, [q]; ld.param.u64 %rd3, [n]; mov.u64 %rd2, mine; cvta.local.u64 %rd2, %rd2;
add.s64 %rd2, %rd2, %rd3;
{{ .param .b64 p; st.param.b64 [p], %rd2; call put, (p); }}
OTHER ret; }}"""


def test_parameters_have_the_origins_of_all_arguments(world: Arena) -> None:
    one = CALLS.replace("OTHER", "")
    two = CALLS.replace("OTHER", "{ .param .b64 p; st.param.b64 [p], %rd1; call put, (p); }")
    assert origins(one) == [("thread",)]
    ((*both,),) = origins(two)
    assert both[:2] == ["arena", "thread"]
    for text in (one, two):
        assert world.run(text, world.base, 8) is None
        error = world.run(text, world.base, 12)
        assert isinstance(error, IllegalAddress)
        assert error.thread == (0, 0, 0)
    error = world.run(two, world.end - 4, 0)
    assert isinstance(error, IllegalAddress)
    assert error.address == world.end


def test_only_functions_that_need_one_take_a_frame(world: Arena) -> None:
    def chain(last: str) -> str:
        functions = [
            f".func f{n}(.param .b64 p) {{ .reg .b64 %rd<3>; ld.param.b64 %rd1, [p];"
            f" {{ .param .b64 x; st.param.b64 [x], %rd1; call f{n + 1}, (x); }} ret; }}"
            for n in reversed(range(3))
        ]
        leaf = f".func f3(.param .b64 p) {{ .reg .b64 %rd<3>; .reg .b32 %r<3>; {last} ret; }}"
        call = "{ .param .b64 p; st.param.b64 [p], %rd1; call f0, (p); }"
        entry = ".visible .entry k(.param .u64 q) { .reg .b64 %rd<3>; ld.param.u64 %rd1, [q];"
        return "\n".join((HEAD, leaf, *functions, f"{entry} {call} ret; }}"))

    plain = chain("ld.param.b64 %rd1, [p]; st.global.u32 [%rd1], 9;")
    local = chain("""{ .local .align 4 .b8 own[8]; ld.param.b64 %rd1, [p]; mov.u64 %rd2, own;
        st.local.u32 [%rd2], 9; ld.local.u32 %r1, [%rd2]; st.global.u32 [%rd1], %r1; }""")
    for text, names in ((plain, set()), (local, {"f3"})):
        prepared = prepared_of(text)
        assert set(frame_sizes(prepared.functions)) == names
        world.bytes[:] = 0
        assert world.run(text, world.base) is None
        assert world.words(np.uint32)[0] == 9
        error = world.run(text, world.end)
        assert isinstance(error, IllegalAddress)
        assert error.address == world.end


def test_recursive_functions_take_frames(world: Arena) -> None:
    calls = "{ .param .b32 x; st.param.b32 [x], %r1; call NEXT, (x); }"
    body = f"{{ .reg .b32 %r<3>; ld.param.b32 %r1, [n]; {calls} ret; }}"
    functions = "".join(
        f".func {name}(.param .b32 n);\n" for name in ("one", "other", "third")
    ) + "".join(
        f".func {name}(.param .b32 n) {body.replace('NEXT', following)}\n"
        for name, following in (("one", "other"), ("other", "one"), ("third", "one"))
    )
    entry = ".visible .entry k(.param .u64 q) { .reg .b32 %r<3>; mov.b32 %r1, 0;"
    text = f"{HEAD}{functions}{entry} {calls.replace('NEXT', 'third')} ret; }}"
    prepared = prepared_of(text)
    found = frame_sizes(prepared.functions)
    assert {name.partition("__")[0] for name in found} == {"one", "other"}
    error = world.run(text, world.base, block=1)
    assert isinstance(error, KernelTrap)
    assert error.cause.startswith("stack exhausted")
