"""Loads, stores, moves, address conversion and cp.async on real memory."""

from __future__ import annotations

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from gpud.errors import KernelRejected
from tests.unit.cpu.lower.instruction_runner import (
    SHARED_SIZE,
    Instructions,
    Operation,
    address,
    optimised,
    register,
)

CODE = Instructions()
SHARED = CODE.addresses.shared
BASE = SHARED.ctypes.data


def vector(*names: str) -> ptx.Vector:
    return ptx.Vector(tuple(ptx.Symbol(n) if n == "_" else register(n) for n in names))


def load(text: str, output: str, count: int = 1, offset: int = 0) -> Operation:
    names = [f"%d{i}" for i in range(count)]
    target = vector(*names) if count > 1 else "%d0"
    return CODE.define(text, [output] * count, "u8", [target, address("%a0", offset)])


def store(text: str, source: str, count: int = 1, offset: int = 0) -> Operation:
    names = [f"%a{i + 1}" for i in range(count)]
    given = vector(*names) if count > 1 else "%a1"
    return CODE.define(text, [], ["u8"] + [source] * count, [address("%a0", offset), given])


LOADS = {
    (text, output): load(text, output)
    for text, output in (
        ("ld.global.u32", "u4"),
        ("ld.global.f32", "f4"),
        ("ld.global.b32", "f4"),
        ("ld.f64", "f8"),
        ("ld.const.b64", "f8"),
        ("ld.param.u64", "u8"),
        ("ld.local.u8", "u4"),
        ("ld.global.s8", "u4"),
        ("ld.global.nc.s16", "i8"),
        ("ld.global.b16", "u2"),
        ("ld.volatile.global.u32", "u4"),
        ("ld.acquire.gpu.global.u32", "u4"),
        ("ld.relaxed.sys.global.f64", "f8"),
        ("ld.weak.global.ca.u32", "u4"),
        ("ld.mmio.relaxed.sys.global.u32", "u4"),
        ("ld.global.nc.L1::no_allocate.L2::128B.f32", "f4"),
        ("ldu.global.u32", "u4"),
    )
}


@pytest.mark.parametrize("key", LOADS, ids=" ".join)
def test_load(key: tuple[str, str]) -> None:
    text, output = key
    data = np.array([0x80FF7F01, 0x12345678, 0xC0490FDB, 0x3FF00000], "u4")
    got = LOADS[key]([data.ctypes.data, data.ctypes.data + 8])
    type_ = text.rsplit(".", 1)[1]
    size = int(type_[1:]) // 8
    raw = [int.from_bytes(data.tobytes()[at : at + size], "little") for at in (0, 8)]
    if type_[0] == "s":
        raw = [v - (1 << 8 * size) if v >> (8 * size - 1) else v for v in raw]
    width = np.dtype(output).itemsize
    want = [v & ((1 << 8 * width) - 1) for v in raw]
    assert got.view(f"u{width}").tolist() == want


STORES = {
    (text, source): store(text, source)
    for text, source in (
        ("st.global.u32", "u4"),
        ("st.f32", "f4"),
        ("st.global.b32", "f4"),
        ("st.global.u8", "u4"),
        ("st.local.u16", "u2"),
        ("st.global.f64", "f8"),
        ("st.volatile.global.u32", "u4"),
        ("st.release.gpu.global.u32", "u4"),
        ("st.relaxed.cta.global.b64", "u8"),
        ("st.global.cs.f32", "f4"),
        ("st.global.wt.u32", "u4"),
    )
}


@pytest.mark.parametrize("key", STORES, ids=" ".join)
def test_store_touches_its_bytes_only(key: tuple[str, str]) -> None:
    text, source = key
    size = int(text.rsplit(".", 1)[1][1:]) // 8
    data = np.full(16, 0xEE, "u1")
    value = np.array([0x1122334455667788], "u8").view(source)[:1]
    STORES[key]([data.ctypes.data + 8], value)
    want = bytes([0xEE] * 8) + value.tobytes()[:size] + bytes([0xEE] * (8 - size))
    assert data.tobytes() == want


VECTORS = {
    ("ld.global.v2.u32", "u4", 2),
    ("ld.global.v4.f32", "f4", 4),
    ("ld.global.nc.v4.u8", "u4", 4),
    ("ld.v2.f64", "f8", 2),
    ("ld.global.v8.b32", "f4", 8),
    ("ld.volatile.global.v2.u32", "u4", 2),
}
VECTOR_LOADS = {key: load(*key, offset=8) for key in sorted(VECTORS)}
VECTOR_STORE = store("st.global.v4.f32", "f4", 4, offset=-16)
SINK = CODE.define("ld.global.v2.u32", "u4", "u8", [vector("_", "%d0"), address("%a0")])
CONSTANTS = CODE.define(
    "st.global.v2.u32",
    [],
    "u8",
    [address("%a0"), ptx.Vector((ptx.Immediate("7", 7), ptx.Immediate("-1", -1)))],
)
# The address register is also a destination.
OVERLAP = CODE.define(
    [
        ptx.Instruction(ptx.opcode("mov.u64"), (register("%t64"), register("%a0"))),
        ptx.Instruction(ptx.opcode("ld.global.v2.u64"), (vector("%t64", "%d0"), address("%t64"))),
        ptx.Instruction(ptx.opcode("mov.u64"), (register("%d1"), register("%t64"))),
    ],
    "u8 u8",
    "u8",
)


def test_vector_accesses() -> None:
    data = np.arange(1, 17, dtype="u4")
    for (text, output, count), operation in VECTOR_LOADS.items():
        size = int(text.rsplit(".", 1)[1][1:]) // 8
        element = f"f{size}" if output == "f8" else f"u{size}"
        want = data.view("u1")[8 : 8 + count * size].view(element)
        got = operation([data.ctypes.data])
        if output == "f4":
            got, want = [g.view("u4") for g in got], want.view("u4")
        assert [g[0] for g in got] == want.tolist()
    target = np.zeros(8, "f4")
    VECTOR_STORE([target.ctypes.data + 32], [1], [2], [3], [4])
    assert target.tolist() == [0, 0, 0, 0, 1, 2, 3, 4]
    assert SINK([data.ctypes.data])[0] == 2
    CONSTANTS([data.ctypes.data])
    assert data[:2].tolist() == [7, 0xFFFFFFFF]
    longs = np.array([5, 6], "u8")
    assert [int(x[0]) for x in OVERLAP([longs.ctypes.data])] == [6, 5]


B128 = CODE.define(
    [
        ptx.Instruction(ptx.opcode("mov.b128"), (register("%q"), vector("%a1", "%a2"))),
        ptx.Instruction(ptx.opcode("st.global.b128"), (address("%a0"), register("%q"))),
        ptx.Instruction(ptx.opcode("ld.relaxed.gpu.global.b128"), (register("%q"), address("%a0"))),
        ptx.Instruction(ptx.opcode("mov.b128"), (vector("%d0", "%d1"), register("%q"))),
    ],
    "u8 u8",
    "u8 u8 u8",
    extra={"%q": "i128"},
)


def test_128_bits() -> None:
    data = np.zeros(4, "u8")
    at = (data.ctypes.data + 15) // 16 * 16
    assert [int(x[0]) for x in B128([at], [5], [6])] == [5, 6]
    assert data[(at - data.ctypes.data) // 8 :][:2].tolist() == [5, 6]


# -- shared memory

SHARED_LOAD = CODE.define("ld.shared.u32", "u4", "u4", ["%d0", address("%a0", 4)])
SHARED_STORE = CODE.define("st.shared::cta.u32", [], "u4 u4", [address("%a0"), "%a1"])
SHARED_SYMBOL = CODE.define(
    "ld.shared.u32", "u4", "", ["%d0", ptx.Address(ptx.Symbol("buffer"), 4)]
)
TO_GENERIC = CODE.define("cvta.shared.u64", "u8", "u8")
FROM_GENERIC = CODE.define("cvta.to.shared.u64", "u8", "u8")
TO_GLOBAL = CODE.define("cvta.to.global.u64", "u8", "u8")
SYMBOL_GENERIC = CODE.define("cvta.shared.u64", "u8", "", ["%d0", "buffer"])


def test_shared_addresses_are_offsets() -> None:
    SHARED_STORE([16, 20], [7, 8])
    assert SHARED[16:24].view("u4").tolist() == [7, 8]
    assert SHARED_LOAD([16]) == 8
    SHARED[68:72].view("u4")[0] = 9
    assert SHARED_SYMBOL() == 9  # symbol "buffer" is at 64
    assert TO_GENERIC([16])[0] == BASE + 16
    assert FROM_GENERIC([BASE + 16])[0] == 16
    assert TO_GLOBAL([0x123456789])[0] == 0x123456789
    assert SYMBOL_GENERIC()[0] == BASE + 64


SPACES = ("shared", "local", "const", "param", "global", "shared::cluster", "param::entry")
ISSPACEP = {s: CODE.define(f"isspacep.{s}", "?", "u8") for s in SPACES}


def test_isspacep() -> None:
    inside = {
        "shared": [BASE, BASE + SHARED_SIZE - 1],
        "local": [0x1000, 0x1FFF],
        "const": [0x4000, 0x4FFF],
        "param": [0x8000, 0x80FF],
        "global": [BASE + SHARED_SIZE, 0xFFF, 0x2000, 0x8100, 1 << 40],
    }
    for space, operation in ISSPACEP.items():
        for other, addresses in inside.items():
            assert (operation(addresses) == (space.partition("::")[0] == other)).all()


# -- moves

MOVES = {
    (text, output, source): CODE.define(text, output, source)
    for text, output, source in (
        ("mov.u32", "u4", "u4"),
        ("mov.f32", "f4", "f4"),
        ("mov.b32", "f4", "u4"),
        ("mov.b32", "u4", "f4"),
        ("mov.b64", "u8", "f8"),
        ("mov.u16", "u2", "u2"),
        ("mov.pred", "?", "?"),
    )
}
PACK = CODE.define("mov.b64", "u8", "u4 f4", ["%d0", vector("%a0", "%a1")])
UNPACK = CODE.define("mov.b32", "u2 u2", "f4", [vector("%d0", "%d1"), "%a0"])
UNPACK_HIGH = CODE.define("mov.b64", "u4", "u8", [vector("_", "%d0"), "%a0"])
UNPACK_FOUR = CODE.define(
    "mov.b32", "u1 u1 u1 u1", "u4", [vector("%d0", "%d1", "%d2", "%d3"), "%a0"]
)
SYMBOL = CODE.define("mov.u64", "u8", "", ["%d0", "table"])
SYMBOL_OFFSET = CODE.define("mov.u64", "u8", "", ["%d0", ptx.SymbolOffset(ptx.Symbol("table"), 8)])
SPECIAL = CODE.define("mov.u32", "u4", "", ["%d0", ptx.SpecialRegister("%laneid")])
SPECIAL_VECTOR = CODE.define(
    "mov.v4.u32",
    ["u4"] * 4,
    "",
    [vector("%d0", "%d1", "%d2", "%d3"), ptx.SpecialRegister("%tid")],
)
IMMEDIATE = CODE.define(
    "mov.f32", "f4", "", ["%d0", ptx.Immediate("0f3FC00000", 0x3FC00000, "f32")]
)


def test_moves_keep_the_bits() -> None:
    nan = np.array([0x7F800001, 0xFFC12345, 1], "u4")  # payloads survive moves
    for (_, output, source), operation in MOVES.items():
        given = np.array([True, False, True]) if output == "?" else nan.astype(f"u{source[1]}")
        got = operation(given.view(source))
        assert got.tobytes() == given.tobytes()
    assert PACK([7], [1.0])[0] == 0x3F80000000000007
    assert [x[0] for x in UNPACK(np.array([0x12345678], "u4").view("f4"))] == [0x5678, 0x1234]
    assert UNPACK_HIGH([0xAAAAAAAA55555555])[0] == 0xAAAAAAAA
    assert [x[0] for x in UNPACK_FOUR([0x04030201])] == [1, 2, 3, 4]
    assert [SYMBOL()[0], SYMBOL_OFFSET()[0], SPECIAL()[0]] == [4096, 4104, 7]
    assert [x[0] for x in SPECIAL_VECTOR()] == [5, 6, 7, 0]
    assert IMMEDIATE()[0] == 1.5


# -- cp.async

COPY = CODE.define("cp.async.ca.shared.global", [], "u4 u8", [address("%a0"), address("%a1"), 16])
COPY_SOME = CODE.define(
    "cp.async.cg.shared.global.L2::128B",
    [],
    "u4 u8 u4",
    [address("%a0"), address("%a1"), 16, "%a2"],
)
COPY_IGNORE = CODE.define(
    "cp.async.ca.shared.global", [], "u4 u8 ?", [address("%a0"), address("%a1"), 8, "%a2"]
)
GROUPS = CODE.define(
    [
        ptx.Instruction(ptx.opcode("cp.async.commit_group")),
        ptx.Instruction(ptx.opcode("cp.async.wait_group"), (ptx.Immediate("0", 0),)),
        ptx.Instruction(ptx.opcode("cp.async.wait_all")),
        ptx.Instruction(ptx.opcode("prefetch.global.L2"), (address("%a0"),)),
        ptx.Instruction(
            ptx.opcode("discard.global.L2"), (address("%a0"), ptx.Immediate("128", 128))
        ),
        ptx.Instruction(ptx.opcode("griddepcontrol.wait")),
    ],
    [],
    "u8",
)


def test_cp_async_copies_at_once_and_fills_with_zeros() -> None:
    data = np.arange(1, 33, dtype="u1")
    SHARED[128:160] = 0xEE
    COPY([128], [data.ctypes.data])
    GROUPS([0])
    assert SHARED[128:160].tolist() == [*range(1, 17), *[0xEE] * 16]
    for count in (0, 4, 5, 16):
        SHARED[128:160] = 0xEE
        COPY_SOME([128], [data.ctypes.data], [count])
        want = [*range(1, count + 1), *[0] * (16 - count), *[0xEE] * 16]
        assert SHARED[128:160].tolist() == want
    for ignore in (False, True):
        SHARED[128:160] = 0xEE
        COPY_IGNORE([128], [0 if ignore else data.ctypes.data], [ignore])
        assert SHARED[128:137].tolist() == [*([0] * 8 if ignore else range(1, 9)), 0xEE]


def test_a_source_of_zero_bytes_is_not_read() -> None:
    SHARED[128:160] = 0xEE
    COPY_SOME([128], [0], [0])  # address 0 would fault
    assert SHARED[128:144].tolist() == [0] * 16


# -- what reaches LLVM


def test_strong_accesses_are_atomic_and_tags_are_kept() -> None:
    code = Instructions(tags=", !alias.scope !0", ordered_tags=", !alias.scope !3")
    scopes = "!0 = !{!1}\n!1 = distinct !{!1, !2}\n!2 = distinct !{!2}\n!3 = !{!4}"
    code.module.metadata("!0", scopes + "\n!4 = distinct !{!4, !2}")
    for text in ("ld.global.u32", "ld.volatile.shared.u32", "ld.acquire.sys.global.u32"):
        code.define(text, "u4", "u8", ["%d0", address("%a0")])
    code.define("st.release.gpu.f32", [], "u8 f4", [address("%a0"), "%a1"])
    text = code.module.text()
    assert ", align 4, !alias.scope !0" in text
    assert "load atomic volatile i32" in text
    assert "acquire, align 4, !alias.scope !3" in text
    assert "store atomic float" in text
    optimised(text)  # LLVM accepts it


@pytest.mark.parametrize(
    "text",
    ["ld.global.v3.u32", "ld.gpu.global.u32", "ld.global.pred", "ld.global.async.u32", "ld.global"],
)
def test_unknown_forms_are_refused(text: str) -> None:
    with pytest.raises(KernelRejected, match=text):
        Instructions().define(text, "u4", "u8", ["%d0", address("%a0")])
