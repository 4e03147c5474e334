"""How a persistent block claims: from the job's counter, in chunks, and some in advance.

Problem: a short task block would wait for its claim, an atomic on the counter that all blocks
share, for longer than it runs; and a block has to leave soon when it is told to.

Approach: the leader claims a chunk with one atomic, and the block runs it task block by task block;
while the last of it runs, the atomic of a claim in advance is on its way. Whether the block is told
to release the leader looks before each claim, and only when the block holds nothing.

Terms: beside those of `gpud.compiler.passes.forms.persistent`: a block *holds* the task blocks that
it has claimed and not begun; the host says in the job record how many it claims at once
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

``last`` is a word in shared memory behind the slots, ``ahead`` a register. The atomic of a claim in
advance is issued and not waited for: its way to memory and back hides behind the task block.

Why one barrier stays enough with chunks and claims in advance: what they add, ``last`` and
``ahead``, is read and written by the leader alone, and between two barriers it still writes one
slot, once. The others cannot tell from where the claim came. What ``last`` is at first does not
matter: ``previous`` is `NOTHING` then, the largest word that there is.

Why nothing is lost or repeated: atomics on ``next`` hand out ranges that do not overlap. A block
runs its range in order, up to ``last``, and looks whether it is to release only when it holds
nothing: so a claim in advance, too, is run before the block leaves. How many it took is kept in
``last`` with the mark, not read again: nothing depends on ``chunk`` and ``ahead`` staying what they
are.

Blocks that wait for others claim one task block when they can run it, whatever the record says:
a task block that somebody holds and has not begun would be waited for by those who run.

A block is told to release by its index, so that the host can choose which do, or by the SM that it
is on, so that none begins there; it does the same in both cases. The bit for its index and the
place of the bitmap that names SMs come with one load, and a launch of which no SM is named, as most
are, reads no bitmap.

Properties:
* ``at most``: a block claims at most ``chunk + ahead`` task blocks after it was told to release;
* ``one at a time``: in kernels whose blocks wait for others none is claimed in advance.

Source: tests/unit/test_claim_protocol.py, the loop with chunks and claims in advance through every
interleaving.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as words
from gpud.compiler.passes.builder import CodeBuilder, immediate
from gpud.compiler.ptx.model import Address, Operand, Register, SpecialRegister, Symbol, Vector

__all__ = ["add_claim"]

_LAST = 8  # from the slots on: the last task block that the block holds
_PAIR_SHIFT = words.BLOCKS_A_PAIR.bit_length() - 1
_PENDING = 1 << 31  # in its place, with a chunk's size: a chunk that was claimed in advance


def add_claim(
    code: CodeBuilder,
    control: Symbol,
    leader: tuple[Register, Register],
    slot: Register,
    claim: Register,
    *,
    several: bool,
) -> None:
    """The leader publishes the next task block that it holds, or claims some.

    Args:
        code: where the instructions are put. Its registers ``control`` and ``job`` then hold the
            addresses of the launch record and of the job record, and so does ``own``, of the job
            record, in the leader.
        control: the kernel's hidden parameter.
        leader: the leader's predicate, and a register that is 0 in the leader and in nobody else.
        slot: address of the slot in which the claim is published.
        claim: for the leader's claim.
        several: whether blocks may hold task blocks that they have not begun.
    """
    is_leader, thread = leader
    met, publish = code.label("meet"), code.label("publish")
    ctl, job, own = (code.register(name, "b64") for name in ("control", "job", "own"))
    total, valid = code.register("total"), code.register("valid", "pred")
    code("ld.param.u64", ctl, Address(control))
    code("ld.global.nc.u64", job, Address(ctl, words.JOB))
    # The leader's counters by an address that ptxas does not know to be the same in all lanes:
    # it would have lanes elect one of them, and wait for the result of the atomic at once.
    code("mad.wide.u32", own, thread, 4, job)
    code("bra", met, unless=is_leader)
    chunk: Operand = immediate(1)
    if several:
        chunk = code.register("chunk")
        _take_held(code, slot, claim)
    code("mov.u32", claim, immediate(words.NOTHING))
    _branch_if_released(code, publish, code.label("stays"))
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


def _branch_if_released(code: CodeBuilder, told: Symbol, stays: Symbol) -> None:
    """Go to ``told`` if the block has been told to release, else go on at ``stays``, here."""
    ctl, job, word = (code.register(name, "b64") for name in ("control", "job", "word"))
    orders = code.register("orders", "b64")
    index, bits, named = (code.register(name) for name in ("index", "bits", "named"))
    stop = code.register("stop", "pred")
    code("mov.u32", index, SpecialRegister("%ctaid.x"))
    code("shr.u32", bits, index, _PAIR_SHIFT)
    code("mad.wide.u32", orders, bits, words.ORDER_BYTES, ctl)
    # A vector is so many accesses of one word each: the words that the host writes.
    code("ld.volatile.global.v2.u32", Vector((bits, named)), Address(orders, words.ORDERS))
    code("and.b32", index, index, words.BLOCKS_A_PAIR - 1)
    code("shr.u32", bits, bits, index)
    code("and.b32", bits, bits, 1)
    code("setp.eq.u32", stop, bits, 0)
    code("bra", told, when=stop)
    code("setp.eq.u32", stop, named, 0)
    code("bra", stays, when=stop)
    # Only the last bits of the SM's number count, so that no other word is ever read.
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
    code("bra", told, when=stop)
    code.place(stays)


def _take_held(code: CodeBuilder, slot: Register, claim: Register) -> None:
    """The leader: go to ``publish`` with the next task block of the chunk that the block holds.

    If it has claimed a chunk in advance, go to ``check`` with that; go on if it holds nothing.
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
    """The leader: the block holds ``chunk`` task blocks from ``claim`` on, up to ``total``."""
    last = code.register("last")
    code("add.u32", last, claim, code.register("chunk"))
    code("min.u32", last, last, total)
    code("sub.u32", last, last, 1)
    code("st.shared.u32", Address(code.register("rest"), _LAST), last)


def _claim_in_advance(code: CodeBuilder, claim: Register, met: Symbol) -> None:
    """The leader: begin to claim what follows the last task block that the block holds.

    Nothing waits for the atomic until the next round.
    """
    wants = code.register("wants", "pred")
    last, advance = code.register("last"), code.register("advance")
    code("setp.ne.u32", wants, advance, 0)
    code("setp.eq.and.u32", wants, claim, last, wants)
    code("bra", met, unless=wants)
    _branch_if_released(code, met, code.label("again"))
    code("or.b32", last, advance, immediate(_PENDING))
    code("st.shared.u32", Address(code.register("rest"), _LAST), last)
    own, ahead = code.register("own", "b64"), code.register("ahead")
    code("atom.global.add.u32", ahead, Address(own, words.NEXT), advance)
