"""The claim code of the persistent loop: claims task blocks in chunks, and some in advance.

Problem: waiting for a claim, an atomic on a counter that all blocks share, can take longer than a
short task block runs; and a block has to leave soon after it is told to release.

Approach: the leader claims a chunk of task blocks with one atomic, and the block runs them one by
one; while the last one runs, the atomic of a claim in advance is in flight. The leader checks
whether the block is released before each atomic, and only when the block holds nothing more.

Terms: those of `gpud.compiler.passes.forms.persistent`, and: a block *holds* the task blocks that
it has claimed and not begun; the host sets in the job record how many it claims at once
(``chunk``), and how many *in advance* (``ahead``, 0: none).

Algorithm, for the leader, in front of the loop's barrier::

              previous = slots[1 - slot]
              if previous < last and last is not PENDING:  # the block holds more of a chunk
                  claim = previous + 1
              else:
                  if previous < last:         # what was claimed in advance
                      claim, n = ahead, number in last
                  else if not released():     # holds nothing
                      n = job.chunk; claim = atomic_add(job.next, n)
                  else: claim = NOTHING; goto publish
                  last = min(claim + n, job.total) - 1
                  if claim >= job.total: claim = NOTHING
     publish: slots[slot] = claim
              if job.ahead and claim == last and not released():
                  last = PENDING | job.ahead; ahead = atomic_add(job.next, job.ahead)

    released: the bit of the block's index in launch.stays is 0, or %smid is named

``last`` is a word in shared memory after the slots, ``ahead`` a register. The atomic of a claim in
advance is issued and not waited for: its latency is hidden behind the task block.

Why one barrier is still enough with chunks and claims in advance: only the leader reads and writes
``last`` and ``ahead``, and between two barriers it still writes one slot, once. The other threads
cannot tell how the claim was made. The initial value of ``last`` does not matter: ``previous`` is
`NOTHING` then, the largest word.

Why no task block is lost or repeated: atomics on ``next`` hand out disjoint ranges. A block runs
its range in order, up to ``last``, and checks whether it is released only when it holds nothing:
so task blocks claimed in advance, too, are run before the block leaves. The size of a claim in
advance is kept in ``last``, with the mark `PENDING`, not read again, so ``chunk`` and ``ahead`` may
change at any time.

In kernels whose blocks wait for others, a block claims one task block when it can run it, whatever
the record says: running blocks could wait for a task block that is held and not begun.

A block is told to release by its index, so that the host can choose blocks, or by its SM, so that
no block begins there; it does the same in both cases. One load reads the bit for its index and the
offset of the bitmap that names SMs; in a launch without named SMs, the usual case, no bitmap is
read.

Properties:
* ``at most``: a block claims at most ``chunk + ahead`` task blocks after it was told to release;
* ``one at a time``: in kernels whose blocks wait for others none is claimed in advance.

Source: tests/unit/test_claim_protocol.py, which runs the loop with chunks and claims in advance
through every interleaving.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as words
from gpud.compiler.passes.builder import CodeBuilder
from gpud.compiler.ptx.model import (
    Address,
    Operand,
    Register,
    SpecialRegister,
    Symbol,
    Vector,
    immediate,
)

__all__ = ["add_claim", "branch_if_released"]

_LAST = 8  # offset from the slots of ``last``, the last task block that the block holds
_PAIR_SHIFT = words.BLOCKS_A_PAIR.bit_length() - 1
_PENDING = 1 << 31  # mark in ``last``, beside a size: a chunk has been claimed in advance


def add_claim(
    code: CodeBuilder,
    control: Symbol,
    leader: tuple[Register, Register],
    slot: Register,
    claim: Register,
    *,
    several: bool,
) -> None:
    """Append the code by which the leader publishes the block's next task block.

    Args:
        code: where to append. Its registers ``control`` and ``job`` then hold the addresses of the
            launch record and of the job record; in the leader, ``own`` holds the latter, too.
        control: the kernel's hidden parameter.
        leader: the leader's predicate, and a register that is 0 in the leader only.
        slot: register with the address of the slot in which the claim is published.
        claim: register for the leader's claim.
        several: whether blocks may hold task blocks that they have not begun.
    """
    is_leader, thread = leader
    met, publish = code.label("meet"), code.label("publish")
    ctl, job, own = (code.register(name, "b64") for name in ("control", "job", "own"))
    total, valid = code.register("total"), code.register("valid", "pred")
    code("ld.param.u64", ctl, Address(control))
    code("ld.global.nc.u64", job, Address(ctl, words.JOB))
    # An address that ptxas cannot prove to be uniform: for a uniform one it aggregates the atomic
    # over the lanes of the warp, and waits for its result at once.
    code("mad.wide.u32", own, thread, 4, job)
    code("bra", met, unless=is_leader)
    chunk: Operand = immediate(1)
    if several:
        chunk = code.register("chunk")
        _take_held(code, slot, claim)
    code("mov.u32", claim, immediate(words.NOTHING))
    branch_if_released(code, publish, code.label("stays"))
    code("atom.global.add.u32", claim, Address(own, words.NEXT), chunk)
    if several:
        code.place(code.label("check"))
    code("ld.global.nc.u32", total, Address(job, words.TOTAL))
    if several:
        _hold(code, claim, total)
    code("setp.lt.u32", valid, claim, total)
    code("selp.b32", claim, claim, immediate(words.NOTHING), valid)
    code.place(publish)
    code("st.shared.u32", Address(slot), claim)
    if several:
        _claim_in_advance(code, claim, met)
    code.place(met)


def branch_if_released(code: CodeBuilder, released: Symbol, stays: Symbol) -> None:
    """Branch to ``released`` if the block was told to release, else fall through to ``stays``."""
    ctl, job, word = (code.register(name, "b64") for name in ("control", "job", "word"))
    orders = code.register("orders", "b64")
    index, bits, named = (code.register(name) for name in ("index", "bits", "named"))
    stop = code.register("stop", "pred")
    code("mov.u32", index, SpecialRegister("%ctaid.x"))
    code("shr.u32", bits, index, _PAIR_SHIFT)
    code("mad.wide.u32", orders, bits, words.ORDER_BYTES, ctl)
    # A vector load is one access per word, as the memory model sees it: words the host writes.
    code("ld.volatile.global.v2.u32", Vector((bits, named)), Address(orders, words.ORDERS))
    code("and.b32", index, index, words.BLOCKS_A_PAIR - 1)
    code("shr.u32", bits, bits, index)
    code("and.b32", bits, bits, 1)
    code("setp.eq.u32", stop, bits, 0)
    code("bra", released, when=stop)
    code("setp.eq.u32", stop, named, 0)
    code("bra", stays, when=stop)
    # The SM's number modulo `MOST_SMS`, so that nothing outside the bitmap is read.
    code("mov.u32", index, SpecialRegister("%smid"))
    code("shr.u32", bits, index, 3)
    code("and.b32", bits, bits, words.NAMED_BYTES - 4)
    code("add.u32", bits, bits, named)
    code("cvt.u64.u32", word, bits)
    code("add.u64", word, word, job)
    code("ld.volatile.global.u32", bits, Address(word))
    code("and.b32", index, index, 31)
    code("shr.u32", bits, bits, index)
    code("and.b32", bits, bits, 1)
    code("setp.ne.u32", stop, bits, 0)
    code("bra", released, when=stop)
    code.place(stays)


def _take_held(code: CodeBuilder, slot: Register, claim: Register) -> None:
    """Branch, in the leader, to ``publish`` with the next task block that the block holds.

    With the first task block of a chunk claimed in advance, branch to ``check``; fall through if
    the block holds nothing.
    """
    none, empty = code.label("none"), code.register("empty", "pred")
    rest, previous, last = (code.register(name) for name in ("rest", "previous", "last"))
    chunk, pending = code.register("chunk"), code.register("pending", "pred")
    job = code.register("job", "b64")
    both = Vector((chunk, code.register("advance")))
    code("ld.global.nc.v2.u32", both, Address(job, words.CHUNK))
    code("xor.b32", previous, slot, 4)
    code("ld.shared.u32", previous, Address(previous))
    code("and.b32", rest, slot, immediate(-8))
    code("ld.shared.u32", last, Address(rest, _LAST))
    code("setp.ge.u32", empty, previous, last)
    code("bra", none, when=empty)
    code("and.b32", chunk, last, immediate(~_PENDING & 0xFFFFFFFF))
    code("setp.ge.u32", pending, last, immediate(_PENDING))
    code("add.u32", claim, previous, 1)
    code("mov.u32", claim, code.register("ahead"), when=pending)
    code("bra", code.label("check"), when=pending)
    code("bra", code.label("publish"))
    code.place(none)
    code("mov.u32", last, 0)


def _hold(code: CodeBuilder, claim: Register, total: Register) -> None:
    """Store as ``last``, in the leader, the end of a chunk that begins at ``claim``."""
    last = code.register("last")
    code("add.u32", last, claim, code.register("chunk"))
    code("min.u32", last, last, total)
    code("sub.u32", last, last, 1)
    code("st.shared.u32", Address(code.register("rest"), _LAST), last)


def _claim_in_advance(code: CodeBuilder, claim: Register, met: Symbol) -> None:
    """Issue, in the leader, the atomic of a claim in advance, at the last task block held.

    Its result is not needed before the next iteration.
    """
    wants = code.register("wants", "pred")
    last, advance = code.register("last"), code.register("advance")
    code("setp.ne.u32", wants, advance, 0)
    code("setp.eq.and.u32", wants, claim, last, wants)
    code("bra", met, unless=wants)
    branch_if_released(code, met, code.label("again"))
    code("or.b32", last, advance, immediate(_PENDING))
    code("st.shared.u32", Address(code.register("rest"), _LAST), last)
    own, ahead = code.register("own", "b64"), code.register("ahead")
    code("atom.global.add.u32", ahead, Address(own, words.NEXT), advance)
