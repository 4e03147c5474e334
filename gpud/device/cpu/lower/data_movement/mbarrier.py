"""mbarrier: an object in shared memory that counts arrivals and bytes.

Problem: on a GPU, copies and arrivals complete asynchronously. On the CPU device every copy is
done when its instruction is, so an mbarrier is only a counter; a thread that finds it incomplete
tries again, and the code generator yields at that loop's back edge.

Layout of the 64-bit word, which programs must treat as opaque:

    bits  0..19  pending    arrivals that the current phase still waits for
    bits 20..39  expected   arrivals of every phase
    bits 40..60  bytes      transaction bytes still to come (two's complement)
    bit  63      phase      parity of the current phase

Algorithm: an arrival decreases ``pending``; a transaction increases or decreases ``bytes``. When
both are zero the phase ends: pending = expected, phase flips. The state that ``arrive`` returns
is the word before the arrival, so a test compares its phase with the current one.

Properties: plain loads and stores, since a block runs on one OS thread; volatile, so that LLVM
neither keeps the word in a register over a waiting loop nor vectorises over threads.

Source: PTX ISA 9.0, section 9.7.13.15 (mbarrier); the layout is gpud's own.
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Address, Immediate, Instruction
from gpud.device.cpu.ir.thread import Thread
from gpud.device.cpu.ir.values import Value, constant, read, write
from gpud.device.cpu.lower.registry import SCOPES, Modifiers, lowering, rejected

__all__ = ["arrive"]

_COUNT = (1 << 20) - 1
_BYTES = (1 << 21) - 1
_SHARED = ("shared", "shared::cta", "shared::cluster")


def _load(thread: Thread, pointer: str) -> Value:
    return Value(
        thread.emitter, "i64", thread.emitter.value(f"load volatile i64, ptr {pointer}, align 8")
    )


def _store(thread: Thread, pointer: str, word: Value) -> None:
    thread.emitter.do(f"store volatile i64 {word.text}, ptr {pointer}, align 8")


def _completed(word: Value) -> Value:
    """Return ``word``, or the next phase's if nothing is outstanding."""
    outstanding = word & (_COUNT | (_BYTES << 40))
    expected = (word >> 20) & _COUNT
    following = ((word & ((_COUNT << 20) | (1 << 63))) | expected) ^ (1 << 63)
    return outstanding.eq(0).select(following, word)


def _expect(word: Value, count: Value) -> Value:
    """Return ``word`` with ``count`` (i64) more transaction bytes to come."""
    total = ((word >> 40) + count) & _BYTES
    return (word & ~(_BYTES << 40) & ((1 << 64) - 1)) | (total << 40)


def arrive(
    thread: Thread, pointer: str, count: Value, *, bytes_: Value | None = None, drop: bool = False
) -> Value:
    """Arrive ``count`` (i64) times, first expecting ``bytes_`` more; returns the word before."""
    before = word = _load(thread, pointer)
    if bytes_ is not None:
        word = _expect(word, bytes_)
    if drop:
        word = word - (count << 20)
    _store(thread, pointer, _completed(word - count))
    return before


@lowering("mbarrier")
def _mbarrier(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    action = modifiers.require(
        "init",
        "inval",
        "expect_tx",
        "complete_tx",
        "arrive",
        "arrive_drop",
        "test_wait",
        "try_wait",
        "pending_count",
    )
    space = modifiers.choice(*_SHARED)
    modifiers.choice("relaxed", "acquire", "release")
    modifiers.choice(*SCOPES)
    if action in ("init", "inval", "expect_tx", "complete_tx"):
        modifiers.require("b64")
        modifiers.done(1 if action == "inval" else 2)
        pointer = thread.pointer(ins.operands[0], space)
        _change(thread, ins, action, pointer)
    elif action in ("arrive", "arrive_drop"):
        _arrive(thread, ins, modifiers, space)
    elif action == "pending_count":
        modifiers.require("b64")
        modifiers.done(2)
        state = read(thread, ins.operands[1], "b64")
        write(thread, ins.operands[0], "u32", (state & _COUNT).trunc("i32"))
    else:
        _test(thread, ins, modifiers, space)


def _change(thread: Thread, ins: Instruction, action: str, pointer: str) -> None:
    if action == "inval":
        _store(thread, pointer, constant(thread.emitter, "i64", 0))
        return
    number = read(thread, ins.operands[1], "u32").zext("i64")
    if action == "init":
        count = number & _COUNT
        _store(thread, pointer, count | (count << 20))
        return
    word = _load(thread, pointer)
    _store(thread, pointer, _completed(_expect(word, number if action == "expect_tx" else -number)))


def _arrive(thread: Thread, ins: Instruction, modifiers: Modifiers, space: str) -> None:
    """Lower ``mbarrier.arrive{_drop}{.expect_tx}{.noComplete} {state,} [addr]{, bytes, count}``."""
    expects = modifiers.flag("expect_tx")
    modifiers.flag("noComplete")  # promises that the phase does not end here
    modifiers.require("b64")
    modifiers.done()
    operands = list(ins.operands)
    # The state is absent for barriers of the cluster.
    state = None if isinstance(operands[0], Address) else operands.pop(0)
    pointer = thread.pointer(operands.pop(0), space)
    if len(operands) > 1 or (expects and not operands):
        raise rejected(ins, "it has the wrong operands")
    one = constant(thread.emitter, "i64", 1)
    number = read(thread, operands[0], "u32").zext("i64") if operands else one
    drop = ins.opcode.has("arrive_drop")
    if expects:
        before = arrive(thread, pointer, one, bytes_=number, drop=drop)
    else:
        before = arrive(thread, pointer, number, drop=drop)
    if state is not None:
        write(thread, state, "b64", before)


def _test(thread: Thread, ins: Instruction, modifiers: Modifiers, space: str) -> None:
    """Lower ``test_wait`` and ``try_wait``; the latter's time limit is an upper bound only."""
    parity = modifiers.flag("parity")
    modifiers.require("b64")
    modifiers.done()
    if len(ins.operands) not in (3, 4):
        raise rejected(ins, "it has the wrong operands")
    current = _load(thread, thread.pointer(ins.operands[1], space)) >> 63
    given = ins.operands[2]
    if parity:
        waited = read(thread, given, "u32").zext("i64") & 1
    elif isinstance(given, Immediate):
        raise rejected(ins, "it needs a state")
    else:
        waited = read(thread, given, "b64") >> 63
    write(thread, ins.operands[0], "pred", current.ne(waited))
