"""Accesses to shared, local, constant and parameter memory: in bounds, out of bounds, proved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx_model
from gpud.device.cpu.codegen.preparation.bounds_checks import accesses, insert_bounds_checks
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check
from gpud.device.cpu.codegen.preparation.pseudo_instructions import is_bounds_check
from gpud.errors import GpudError, IllegalAddress
from tests.unit.cpu.codegen.checked_arena import HEAD, PARTED, Arena
from tests.unit.cpu.codegen.prepared import instructions, kernel

REGISTERS = """.reg .u32 %r<20>; .reg .u64 %rd<20>; .reg .f32 %f<8>; .reg .pred %p<8>;"""
BOX_BYTES = 256

SHARED = {
    "ld.u32": ("ld.shared.u32 %r1, [%r4];", 4),
    "ld.v4": ("ld.shared.v4.u32 {%r1, %r2, %r5, %r6}, [%r4];", 16),
    "st.u64": ("st.shared.u64 [%r4], 7;", 8),
    "st.u8": ("st.shared.u8 [%r4], 7;", 1),
    "atom": ("atom.shared.add.u32 %r1, [%r4], 1;", 4),
    "atom.cas": ("atom.shared.cas.b64 %rd1, [%r4], 0, 1;", 8),
    "red": ("red.shared.max.u32 [%r4], 1;", 4),
    "mbarrier": ("mbarrier.init.shared.b64 [%r4], 1;", 8),
    "cp.async": ("cp.async.ca.shared.global [%r4], [%rd9], 8;", 8),
}


def program(space: str, access: str, parted: bool) -> str:
    """Thread t of eight makes the access at ``first + t * step`` of a variable."""
    variable = {
        "shared": f".shared .align 16 .b8 box[{BOX_BYTES}];",
        "local": f".local .align 16 .b8 box[{BOX_BYTES}];",
        "const": "",
        "param": "",
    }[space]
    before = f".const .align 16 .b8 box[{BOX_BYTES}];" if space == "const" else ""
    big = f".param .align 16 .b8 box[{BOX_BYTES}]" if space == "param" else ".param .u64 unused"
    return f"""{HEAD}{before}
    .visible .entry k(.param .u64 p, .param .u32 first, .param .u32 step, {big})
    {{ {REGISTERS} {variable} ld.param.u64 %rd9, [p]; ld.param.u32 %r7, [first];
    ld.param.u32 %r8, [step]; mov.u32 %r3, %tid.x; {PARTED if parted else ""}
    mad.lo.s32 %r10, %r3, %r8, %r7; mov.u64 %rd3, box; cvt.s64.s32 %rd4, %r10;
    add.s64 %rd5, %rd3, %rd4; cvt.u32.u64 %r4, %rd5; {access} ret; }}"""


def run(world: Arena, text: str, first: int, step: int, last: object = None) -> GpudError | None:
    values = (world.base, np.int32(first), np.int32(step), 0 if last is None else last)
    return world.run(text, *values)


@pytest.mark.parametrize("parted", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("kind", SHARED)
def test_shared_memory(world: Arena, kind: str, parted: bool) -> None:
    access, span = SHARED[kind]
    text = program("shared", access, parted)
    assert run(world, text, 0, 16) is None
    assert run(world, text, BOX_BYTES - span, 0) is None
    assert run(world, text, BOX_BYTES - 16, -16) is None
    for first, step in (
        (BOX_BYTES - 7 * 16, 16),
        (BOX_BYTES, 0),
        (1 << 20, 0),
        (-16, 0),
        (6 * 16, -16),
        (-(1 << 30), 1 << 24),
    ):
        error = run(world, text, first, step)
        assert isinstance(error, IllegalAddress), (first, step)
        assert error.space == "shared"
        assert error.thread is not None
        at = first + error.thread[0] * step
        assert not 0 <= at <= BOX_BYTES - span
        # A register of 32 bits holds the address.
        assert error.address == at % 2**32
    if span > 1:
        error = run(world, text, span // 2, 0)
        assert isinstance(error, IllegalAddress)
        assert error.misaligned


OTHERS = {
    "local": ("ld.local.u32 %r1, [%rd5];", "local"),
    "local store": ("st.local.u32 [%rd5], 7;", "local"),
    "const": ("ld.const.u32 %r1, [%rd5];", "const"),
    "param": ("ld.param.u32 %r1, [%rd5];", "param"),
}


@pytest.mark.parametrize("parted", [False, True], ids=["together", "apart"])
@pytest.mark.parametrize("name", OTHERS)
def test_local_constant_and_parameter_memory(world: Arena, name: str, parted: bool) -> None:
    access, space = OTHERS[name]
    text = program(space, access, parted)
    last = np.arange(BOX_BYTES, dtype=np.uint8) if space == "param" else None
    assert run(world, text, 0, 16, last) is None
    assert run(world, text, BOX_BYTES - 4, 0, last) is None
    for first, step in ((1 << 20, 0), (-(1 << 20), 0), (1 << 20, -4)):
        error = run(world, text, first, step, last)
        assert isinstance(error, IllegalAddress), (first, step)
        assert error.space == space
    error = run(world, text, 2, 0, last)
    assert isinstance(error, IllegalAddress)
    assert error.misaligned


def test_local_memory_is_each_threads_own(world: Arena) -> None:
    text = program("local", "st.local.u32 [%rd5], 7;", parted=False)
    error = run(world, text, BOX_BYTES, 0)
    assert isinstance(error, IllegalAddress)
    assert (error.space, error.address) == ("local", BOX_BYTES)


UNSET = {
    "too late": "{access} mov.u64 %rd3, box;",
    "on another path": """setp.eq.u64 %p1, %rd9, 0; @!%p1 bra L; mov.u64 %rd3, box; L: {access}""",
    "copied": """setp.eq.u64 %p1, %rd9, 0; @!%p1 bra L; mov.u64 %rd2, box; L: mov.u64 %rd3, %rd2;
        {access}""",
}


@pytest.mark.parametrize("how", UNSET)
@pytest.mark.parametrize("name", OTHERS)
def test_an_address_that_may_be_uninitialised(world: Arena, name: str, how: str) -> None:
    access, space = OTHERS[name]
    before = f".const .align 16 .b8 box[{BOX_BYTES}];" if space == "const" else ""
    local = f".local .align 16 .b8 box[{BOX_BYTES}];" if space == "local" else ""
    last = f", .param .align 16 .b8 box[{BOX_BYTES}]" if space == "param" else ""
    body = UNSET[how].format(access=access.replace("%rd5", "%rd3"))
    text = f"""{HEAD}{before} .visible .entry k(.param .u64 p{last}) {{ {REGISTERS} {local}
        ld.param.u64 %rd9, [p]; {body} ret; }}"""
    more = [np.zeros(BOX_BYTES, np.uint8)] if space == "param" else []
    error = world.run(text, world.base, *more)
    assert isinstance(error, IllegalAddress)
    assert error.space == space


DYNAMIC = """extern "C" __global__ void k(int* a, int at, int by) {
    extern __shared__ int box[];
    box[at + (int)threadIdx.x * by] = 1;
    a[threadIdx.x] = box[at + (int)threadIdx.x * by];
}"""


def test_dynamic_shared_memory(world: Arena) -> None:
    def dynamic(count: int, at: int) -> GpudError | None:
        values = (world.base, np.int32(at), np.int32(1))
        return world.run(DYNAMIC, *values, shared=4 * count)

    assert dynamic(8, 0) is None
    assert isinstance(dynamic(7, 0), IllegalAddress)
    assert isinstance(dynamic(0, 0), IllegalAddress)
    assert isinstance(dynamic(8, -1), IllegalAddress)
    assert dynamic(1024, 1016) is None


REDUCTION = """extern "C" __global__ void k(const int* a, int* out, int width) {
    __shared__ int box[256];
    int t = threadIdx.x;
    box[t] = a[t];
    __syncthreads();
    for (int s = width; s > 0; s >>= 1) {
        if (t < s) box[t] += box[t + s];
        __syncthreads();
    }
    if (t == 0) *out = box[0];
}"""


def test_inactive_threads_may_be_out_of_bounds(world: Arena) -> None:
    world.bytes[:] = 0
    world.words()[:256] = 3
    values = (world.base, world.base + 4096)
    assert world.run(REDUCTION, *values, np.int32(128), block=256) is None
    assert world.words()[1024] == 768
    error = world.run(REDUCTION, *values, np.int32(129), block=256)
    assert isinstance(error, IllegalAddress)
    assert (error.space, error.thread) == ("shared", (127, 0, 0))


# -- what the code generator does --------------------------------------------------------------


def checks_of(body: str, before: str = "") -> list[str]:
    """The bounds checks that a kernel's body gets: register, hull and members."""
    module = kernel(f"{REGISTERS} {body} ret;", before)
    bounded = insert_bounds_checks(module, module.entries()["k"])
    found = [decode_check(ins) for ins in instructions(bounded) if is_bounds_check(ins)]
    return [f"{c.space} {getattr(c.base, 'name', '')}{c.low:+} {c.span}" for c in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("ld.shared.u32 %r1, [box+4];", []),
        ("ld.shared.u32 %r1, [box+252];", []),
        ("ld.shared.u32 %r1, [box+256];", ["shared box+256 4"]),
        ("ld.shared.u32 %r1, [box+-4];", ["shared box-4 4"]),
        ("ld.shared.v2.u64 {%rd1, %rd2}, [box+248];", ["shared box+248 16"]),
        ("mov.u32 %r2, box; ld.shared.u32 %r1, [%r2+8];", []),
        ("mov.u32 %r2, box; add.u32 %r3, %r2, 16; st.shared.u32 [%r3+-16], 1;", []),
        ("mov.u32 %r2, box; add.u32 %r3, %r2, 256; st.shared.u32 [%r3], 1;", ["shared %r3+0 4"]),
        ("mov.u32 %r2, box; xor.b32 %r2, %r2, 4; ld.shared.u32 %r1, [%r2];", []),
        ("mov.u32 %r2, box; xor.b32 %r2, %r2, 16; ld.shared.u32 %r1, [%r2];", ["shared %r2+0 4"]),
        # One bounds check for all accesses through a register in a basic block.
        (
            "ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r3, [%r2+8]; st.shared.u64 [%r2+16], 1;",
            ["shared %r2+0 24"],
        ),
        ("ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r3, [%r2+8192];",
         ["shared %r2+0 4", "shared %r2+8192 4"]),
        ("ld.shared.u32 %r2, [%r2]; ld.shared.u32 %r3, [%r2];", ["shared %r2+0 4"] * 2),
        ("ld.shared.u32 %r1, [%r2]; L: ld.shared.u32 %r3, [%r2];", ["shared %r2+0 4"] * 2),
        ("@%p1 ld.shared.u32 %r1, [%r2]; ld.shared.u32 %r3, [%r2];", ["shared %r2+0 4"] * 2),
        ("ld.global.u32 %r1, [%rd1]; ld.u32 %r1, [%rd1];", []),
        ("ld.param.u64 %rd1, [out];", []),
        ("ld.param.u64 %rd1, [out+8];", ["param out+8 8"]),
        ("ld.const.u32 %r1, [%rd1];", ["const %rd1+0 4"]),
    ],
)  # fmt: skip
def test_which_accesses_are_checked(body: str, expected: list[str]) -> None:
    assert checks_of(body, f".shared .align 16 .b8 box[{BOX_BYTES}];") == expected


def test_a_check_has_the_guard_of_its_access() -> None:
    module = kernel(f"{REGISTERS} @!%p1 ld.shared.u32 %r1, [%r2]; ret;")
    bounded = insert_bounds_checks(module, module.entries()["k"])
    (check,) = [ins for ins in instructions(bounded) if is_bounds_check(ins)]
    assert check.guard == ptx_model.Guard(ptx_model.Register("%p1"), negated=True)


def test_a_function_without_such_accesses_is_the_same_object() -> None:
    module = kernel(f"{REGISTERS} ld.global.u32 %r1, [%rd1]; ret;")
    function = module.entries()["k"]
    assert insert_bounds_checks(module, function) is function
    assert accesses(instructions(replace(function), "ret")[0]) == []
