"""Atomics, reductions and mbarriers, alone and with several OS threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from gpud.compiler.ptx import model as ptx
from gpud.errors import KernelRejected
from tests.unit.cpu.lower.instruction_runner import Instructions, Operation, address, f2, register

CODE = Instructions()
SHARED = CODE.addresses.shared


def atom(text: str, type_: str, sources: int = 1) -> Operation:
    operands = ["%d0", address("%a0"), *(f"%a{i + 1}" for i in range(sources))]
    return CODE.define(text, type_, ["u8"] + [type_] * sources, operands)


def wrap(value: int, type_: str) -> int:
    return int(np.array(value & ((1 << 8 * int(type_[1])) - 1), f"u{type_[1]}").view(type_))


OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}
TYPES = {
    "add": "u32 s32 u64",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    **dict.fromkeys(("and", "or", "xor", "exch"), "b32 b64"),
    "inc": "u32",
    "dec": "u32",
}
INTEGER = {
    (space, name, t): atom(
        f"atom{space}.{name}.{t}", f"{'i' if t[0] == 's' else 'u'}{int(t[1:]) // 8}"
    )
    for space in (".global", ".shared", "")
    for name, types in TYPES.items()
    for t in types.split()
}
SAMPLES = [0, 1, 5, 6, -1, 1 << 31, (1 << 31) - 1, 1 << 63, 0x12345678, -7]


@pytest.mark.parametrize("space", [".global", ".shared", ""])
def test_integer_operations(space: str) -> None:
    for (where, name, t), operation in INTEGER.items():
        if where != space:
            continue
        type_ = f"{'i' if t[0] == 's' else 'u'}{int(t[1:]) // 8}"
        memory = SHARED[256:264].view(type_) if space == ".shared" else np.zeros(1, type_)
        at = 256 if space == ".shared" else memory.ctypes.data
        for before in (wrap(v, type_) for v in SAMPLES):
            for operand in (wrap(v, type_) for v in SAMPLES):
                memory[0] = before
                assert operation([at], [operand])[0] == before
                want = wrap(OPERATIONS[name](before, operand), type_)
                assert memory[0] == want, (space, name, t, before, operand)


CAS = {
    (space, t): atom(f"atom{space}.cas.{t}", f"u{int(t[1:]) // 8}", 2)
    for space in (".global", ".shared", "")
    for t in ("b16", "b32", "b64")
}


def test_compare_and_swap() -> None:
    for (space, t), operation in CAS.items():
        type_ = f"u{int(t[1:]) // 8}"
        memory = SHARED[256:264].view(type_) if space == ".shared" else np.zeros(2, type_)
        at = 256 if space == ".shared" else memory.ctypes.data
        memory[:] = 5
        assert operation([at], [4], [9])[0] == 5
        assert memory[0] == 5
        assert operation([at], [5], [9])[0] == 5
        assert memory[0] == 9
        assert (memory[1:] == 5).all()


def quad(text: str, sources: int) -> Operation:
    """A 128-bit operation on pairs of 64-bit registers."""
    packs = [
        ptx.Instruction(
            ptx.opcode("mov.b128"),
            (
                register(f"%q{i}"),
                ptx.Vector((register(f"%a{2 * i + 1}"), register(f"%a{2 * i + 2}"))),
            ),
        )
        for i in range(sources)
    ]
    operands: tuple[ptx.Operand, ...] = (
        register("%q9"),
        address("%a0"),
        *(register(f"%q{i}") for i in range(sources)),
    )
    unpack = ptx.Instruction(
        ptx.opcode("mov.b128"), (ptx.Vector((register("%d0"), register("%d1"))), register("%q9"))
    )
    program = [*packs, ptx.Instruction(ptx.opcode(text), operands), unpack]
    extra = dict.fromkeys(("%q0", "%q1", "%q9"), "i128")
    return CODE.define(program, "u8 u8", ["u8"] * (1 + 2 * sources), extra=extra)


CAS_128 = quad("atom.global.relaxed.gpu.cas.b128", 2)
EXCH_128 = quad("atom.global.exch.b128", 1)


def test_128_bits() -> None:
    memory = np.zeros(4, "u8")
    at = (memory.ctypes.data + 15) // 16 * 16
    view = memory[(at - memory.ctypes.data) // 8 :][:2]
    view[:] = (1, 2)
    assert [int(x[0]) for x in CAS_128([at], [1], [2], [3], [4])] == [1, 2]
    assert view.tolist() == [3, 4]
    assert [int(x[0]) for x in EXCH_128([at], [7], [8])] == [3, 4]
    assert view.tolist() == [7, 8]


FLOATS = {
    text: atom(text, "f8" if "f64" in text else "f4")
    for text in (
        "atom.global.add.f32",
        "atom.shared.add.f32",
        "atom.add.f32",
        "atom.global.add.f64",
        "atom.shared.add.f64",
        "atom.global.gpu.acq_rel.add.f32",
    )
}


@pytest.mark.parametrize("text", FLOATS)
def test_floating_point(text: str) -> None:
    type_ = "f8" if "f64" in text else "f4"
    shared = ".shared" in text
    memory = SHARED[256:264].view(type_) if shared else np.zeros(1, type_)
    at = 256 if shared else memory.ctypes.data
    memory[0] = 1.5
    assert FLOATS[text]([at], [0.25])[0] == 1.5
    assert memory[0] == 1.75


def test_float_add_flushes_in_global_memory_only() -> None:
    tiny = np.float32(1e-40)
    memory = np.array([tiny])
    FLOATS["atom.global.add.f32"]([memory.ctypes.data], [tiny])
    assert memory[0] == 0
    memory[0] = tiny
    FLOATS["atom.add.f32"]([memory.ctypes.data], [tiny])
    assert memory[0] == 0
    view = SHARED[256:260].view("f4")
    for operation, at in (
        (FLOATS["atom.shared.add.f32"], 256),
        (FLOATS["atom.add.f32"], SHARED.ctypes.data + 256),  # generic, points to shared
    ):
        view[0] = tiny
        operation([at], [tiny])
        assert view[0] == tiny + tiny


HALVES = {
    "atom.global.add.noftz.f16x2": atom("atom.global.add.noftz.f16x2", "u4"),
    "atom.shared.add.noftz.f16x2": atom("atom.shared.add.noftz.f16x2", "u4"),
    "atom.global.add.noftz.bf16": atom("atom.global.add.noftz.bf16", "u2"),
}


def test_halves() -> None:
    for space in ("global", "shared"):
        memory = SHARED[256:260] if space == "shared" else np.zeros(4, "u1")
        at = 256 if space == "shared" else memory.ctypes.data
        memory.view("f2")[:] = (1.5, -2)
        HALVES[f"atom.{space}.add.noftz.f16x2"]([at], f2([0.25, 6e-8]).view("u4"))
        assert memory.view("f2").tolist() == [1.75, -2]
    cell = np.array([0x3F80, 0x7777], "u2")
    HALVES["atom.global.add.noftz.bf16"]([cell.ctypes.data], [0x4000])
    assert cell.tolist() == [0x4040, 0x7777]


VECTORS = {
    text: CODE.define(
        text,
        [kind] * 2,
        ["u8", kind, kind],
        [
            ptx.Vector((register("%d0"), register("%d1"))),
            address("%a0"),
            ptx.Vector((register("%a1"), register("%a2"))),
        ],
    )
    for text, kind in (("atom.global.v2.f32.add", "f4"), ("atom.global.v2.max.noftz.f16", "u2"))
}
RED = {
    text: CODE.define(text, [], "u8 u4", [address("%a0"), "%a1"])
    for text in ("red.global.add.u32", "red.relaxed.sys.global.max.u32", "red.shared.or.b32")
}
MANY = CODE.define("red.global.add.f64", [], "u8 f8", [address("%a0"), "%a1"])
MANY_INC = CODE.define("red.global.inc.u32", [], "u8 u4", [address("%a0"), "%a1"])


def test_vectors_and_reductions() -> None:
    memory = np.array([1, 2], "f4")
    first, second = VECTORS["atom.global.v2.f32.add"]([memory.ctypes.data], [10], [20])
    assert (first[0], second[0]) == (1, 2)
    assert memory.tolist() == [11, 22]
    halves = f2([1, -2])
    VECTORS["atom.global.v2.max.noftz.f16"]([halves.ctypes.data], [0x4100], [0xC100])
    assert halves.tolist() == [2.5, -2]
    cell = np.array([5], "u4")
    RED["red.global.add.u32"]([cell.ctypes.data] * 3, [1, 2, 3])
    assert cell[0] == 11
    RED["red.relaxed.sys.global.max.u32"]([cell.ctypes.data], [100])
    assert cell[0] == 100
    SHARED[256:260] = 0
    RED["red.shared.or.b32"]([256] * 2, [1, 8])
    assert SHARED[256] == 9


def test_shared_atomics_in_a_loop_over_threads_lose_nothing() -> None:
    """LLVM must not vectorise a loop whose iterations add to one address."""
    view = SHARED[256:260].view("u4")
    view[0] = 0
    old = INTEGER[".shared", "add", "u32"](np.full(1000, 256), np.ones(1000))
    assert view[0] == 1000
    assert old.tolist() == list(range(1000))


def test_several_os_threads() -> None:
    count, threads = 20_000, 4
    total, counter = np.zeros(1, "f8"), np.zeros(1, "u4")
    MANY([total.ctypes.data], [0.0])  # compile before the threads start
    at, ones = np.full(count, total.ctypes.data), np.ones(count)
    at_counter, limit = np.full(count, counter.ctypes.data), np.full(count, 999)

    def work() -> None:  # ctypes lets go of the GIL
        MANY(at, ones)
        MANY_INC(at_counter, limit)

    running = [threading.Thread(target=work) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert total[0] == count * threads
    assert counter[0] == count * threads % 1000


FENCES = CODE.define(
    [
        ptx.Instruction(ptx.opcode(text))
        for text in (
            "membar.gl",
            "membar.cta",
            "membar.sys",
            "fence.sc.cta",
            "fence.acq_rel.gpu",
            "fence.proxy.async",
            "fence.proxy.async.shared::cta",
            "fence.mbarrier_init.release.cluster",
        )
    ],
    [],
    [],
)


def test_fences_compile() -> None:
    FENCES()


@pytest.mark.parametrize(
    "text",
    [
        "atom.global.add.b32",
        "atom.global.inc.s32",
        "atom.local.add.u32",
        "atom.global.add.f16",
        "atom.global.add.noftz.f32",
        "atom.global.max.f32",
        "atom.global.max.noftz.f16",
        "atom.global.exch.f32",
        "atom.global.v2.add.u32",
        "atom.shared.v2.add.f32",
        "red.exch.b32",
    ],
)
def test_forms_that_do_not_exist_are_refused(text: str) -> None:
    with pytest.raises(KernelRejected, match=text):
        Instructions().define(text, "u4", "u8 u4", ["%d0", address("%a0"), "%a1"])


# -- mbarrier

BARRIER = 512
INIT = CODE.define("mbarrier.init.shared.b64", [], "u4 u4", [address("%a0"), "%a1"])
INVAL = CODE.define("mbarrier.inval.shared.b64", [], "u4", [address("%a0")])
ARRIVE = CODE.define("mbarrier.arrive.shared.b64", "u8", "u4", ["%d0", address("%a0")])
ARRIVE_GENERIC = CODE.define("mbarrier.arrive.b64", "u8", "u8", ["%d0", address("%a0")])
ARRIVE_COUNT = CODE.define(
    "mbarrier.arrive.release.cta.shared::cta.b64", "u8", "u4 u4", ["%d0", address("%a0"), "%a1"]
)
ARRIVE_DROP = CODE.define("mbarrier.arrive_drop.shared.b64", "u8", "u4", ["%d0", address("%a0")])
ARRIVE_EXPECT = CODE.define(
    "mbarrier.arrive.expect_tx.shared::cta.b64", "u8", "u4 u4", ["%d0", address("%a0"), "%a1"]
)
COMPLETE = CODE.define("mbarrier.complete_tx.shared.b64", [], "u4 u4", [address("%a0"), "%a1"])
TEST = CODE.define("mbarrier.test_wait.shared.b64", "?", "u4 u8", ["%d0", address("%a0"), "%a1"])
PARITY = CODE.define(
    "mbarrier.try_wait.parity.shared::cta.b64", "?", "u4 u4", ["%d0", address("%a0"), "%a1"]
)
PENDING = CODE.define("mbarrier.pending_count.b64", "u4", "u8")
COPIED = CODE.define("cp.async.mbarrier.arrive.noinc.shared.b64", [], "u4", [address("%a0")])
COPIED_NEUTRAL = CODE.define("cp.async.mbarrier.arrive.shared.b64", [], "u4", [address("%a0")])


def test_mbarrier_phases() -> None:
    INIT([BARRIER], [3])
    first = ARRIVE([BARRIER])
    assert PENDING(first)[0] == 3
    assert not TEST([BARRIER], first)[0]
    assert not PARITY([BARRIER], [0])[0]
    assert PARITY([BARRIER], [1])[0]  # the phase before the first counts as complete
    second = ARRIVE_GENERIC([SHARED.ctypes.data + BARRIER])
    assert PENDING(second)[0] == 2
    COPIED_NEUTRAL([BARRIER])
    assert not TEST([BARRIER], first)[0]
    COPIED([BARRIER])
    assert TEST([BARRIER], first)[0]
    assert PARITY([BARRIER], [0])[0]
    assert not PARITY([BARRIER], [1])[0]
    # The next phase counts from three again, and drops one participant.
    state = ARRIVE_DROP([BARRIER])
    ARRIVE_COUNT([BARRIER], [2])
    assert TEST([BARRIER], state)[0]
    ARRIVE([BARRIER])
    assert PARITY([BARRIER], [1])[0]
    ARRIVE([BARRIER])
    assert PARITY([BARRIER], [0])[0]
    INVAL([BARRIER])


def test_mbarrier_transactions() -> None:
    INIT([BARRIER], [1])
    state = ARRIVE_EXPECT([BARRIER], [48])
    assert not TEST([BARRIER], state)[0]
    COMPLETE([BARRIER], [16])
    assert not TEST([BARRIER], state)[0]
    COMPLETE([BARRIER], [32])
    assert TEST([BARRIER], state)[0]
    # Bytes may arrive before they are expected.
    COMPLETE([BARRIER], [8])
    state = ARRIVE_EXPECT([BARRIER], [8])
    assert TEST([BARRIER], state)[0]
