"""Atomics with several OS threads and in loops over threads; orders; mbarriers.

Their values are in the conformance suite's tables.
"""

from __future__ import annotations

import threading

import numpy as np

from gpud.compiler.ptx import model as ptx
from tests.unit.cpu.lower.instruction_runner import Instructions, address, optimised

CODE = Instructions()
SHARED = CODE.addresses.shared


MANY = CODE.define("red.global.add.f64", [], "u8 f8", [address("%a0"), "%a1"])
MANY_INC = CODE.define("red.global.inc.u32", [], "u8 u4", [address("%a0"), "%a1"])
ADD = CODE.define("atom.shared.add.u32", "u4", "u8 u4", ["%d0", address("%a0"), "%a1"])


def test_shared_atomics_in_a_loop_over_threads_lose_nothing() -> None:
    """LLVM must not vectorise a loop whose iterations add to one address."""
    view = SHARED[256:260].view("u4")
    view[0] = 0
    old = ADD(np.full(1000, 256), np.ones(1000))
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
