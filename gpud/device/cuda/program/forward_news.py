"""Has persistent kernels read their orders from host memory only when there is news.

Problem: a persistent block reads a word of its launch record before every claim. Where that is in
host memory, the read crosses the bus, a microsecond or two for each task block; where it is in
device memory, only the driver can change it, at the cost of a call for each release.

Approach: launch records stay in host memory, where the host changes them by stores, and numbers its
changes in another word there, one for each job record. In device memory each job record has the
*news*, the largest number that was seen. Before a claim a block compares the news, a read of device
memory, with the number at which it last read its orders, and reads these only if they differ. Some
claims also *look*: they read the number in host memory and forward it to the news.

Which do is decided by a hash of the block's last task block, compared with `look_limit`: it is
multiplied by the golden ratio's fraction, so of the numbers that are claimed one after the other,
by all launches of the job together, no more than 2.7 times the wanted distance lie between two that
look (the three-distance theorem). Where several are claimed at once that holds for the mean only.

A block reads its orders before its first claim in any case: it may have been released, or be on a
barred SM, before it began. While SMs are barred to the launch (``named`` is not 0) it reads them
before every claim: the bitmap changes without news.

Order: the host stores orders before their number. A block that looks has a memory fence between its
read of the number and the forwarding, one that finds news has a memory fence between that and the
read of its orders: so what it reads is at least as new as the number.

Properties:
* ``obeyed``: a block reads its orders at its first claim after a change was forwarded;
* ``no lost news``: the news never falls, and a number that is forwarded late does no harm: orders
  are always read as they are then, and the next look forwards the newest;
* kernels of other forms, those without the structure of `gpud.device.cuda.program.by_value`, and
  all functions are unchanged.

The PTX assembles for sm_75 and later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpud.compiler.abi.reserved_names import slots_of
from gpud.compiler.forms.rules import SLOT_BYTES
from gpud.compiler.passes.builder import CodeBuilder, map_functions, split_declarations
from gpud.compiler.passes.forms.persistent import claim_and_slot
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Statement,
    Symbol,
    immediate,
    opcode,
)
from gpud.device.cuda.program.by_value import LOOK_LIMIT, NEWS, SAID, is_values
from gpud.device.cuda.program.host_poll import reads_order
from gpud.device.cuda.program.report_blocks import is_persistent

__all__ = ["HASH", "NEVER", "add_news", "look_limit"]

NEVER: Final = 0xFFFFFFFF
"""The number of a block that has not read its orders; no change has it."""

HASH: Final = 0x9E3779B1
"""The fraction of the golden ratio, times 2**32; odd."""

_LOOK_NS: Final = 2_000
_LOOKS_A_WAVE: Final = 16
_EACH: Final = (1 << 32) - 1
_STORE: Final = opcode("st.shared.u32")
_KNOWN: Final = 12  # offset in the slots, of the word that the loop does not use


def look_limit(blocks: int, block_ns: float | None) -> int:
    """Return which claims look: those whose hash is at most this.

    Args:
        blocks: persistent blocks of the launch.
        block_ns: how long they take for a task block; None: not known.
    """
    if block_ns is None or block_ns <= 0:
        distance = blocks / _LOOKS_A_WAVE
    else:
        distance = blocks * _LOOK_NS / block_ns
    return int(_EACH / max(1.0, distance))


def add_news(program: Module) -> Module:
    """Have the persistent kernels of a flat program, after `pass_by_value`, read news."""

    def change(function: Function) -> Function:
        if not is_persistent(function) or not any(is_values(p.name) for p in function.parameters):
            return function
        return _Change(function).made()

    return map_functions(program, change)


class _Change:
    """The change of one kernel."""

    def __init__(self, entry: Function) -> None:
        self._entry = entry
        control = entry.parameters[-1].name
        self._values = Symbol(next(p.name for p in entry.parameters if is_values(p.name)))
        _, self._slot = claim_and_slot(entry)
        self._code = CodeBuilder(f"{control}_news")
        self._slots = Symbol(slots_of(control))

    def made(self) -> Function:
        """Return the kernel."""
        code, entry = self._code, self._entry
        declarations, statements = split_declarations(entry.body or [])
        body: list[Statement] = []
        looks = True
        unmarked: Symbol | None = None  # where a block goes that has read its orders and stays
        for number, statement in enumerate(statements):
            if reads_order(statement):
                _, unmarked = _branches(statements[number:])
                if looks:
                    self._look()
                self._compare(unmarked)
                body += self._taken()
                looks = False
            elif unmarked is not None and _is_branch(statement, unmarked):
                assert isinstance(statement, Instruction)
                # Only here: no SM is barred.
                where, news = self._known(), code.register("news")
                body.append(Instruction(_STORE, (where, news), statement.guard))
                unmarked = None
            body.append(statement)
        # Every thread stores the same value, before the first barrier.
        place, news = code.register("place"), code.register("news")
        code("mov.u32", place, self._slots)
        code("mov.u32", news, immediate(NEVER))
        code("st.shared.u32", Address(place, _KNOWN), news)
        begins = self._taken()
        return replace(entry, body=[*declarations, *code.declarations, *begins, *body])

    def _taken(self) -> list[Statement]:
        made, self._code.body = self._code.body, []
        return made

    def _known(self) -> Address:
        """Return where the number is at which the block has read its orders."""
        return Address(self._code.register("place"), _KNOWN)

    def _compare(self, stays: Symbol) -> None:
        """Go to ``stays`` if there is no news since this block has read its orders."""
        code = self._code
        at, news, known = code.register("at", "b64"), code.register("news"), code.register("known")
        yes = code.register("yes", "pred")
        code("and.b32", code.register("place"), self._slot, immediate(-SLOT_BYTES))
        code("ld.param.u64", at, Address(self._values, NEWS))
        code("ld.volatile.global.u32", news, Address(at))
        code("ld.shared.u32", known, self._known())
        code("setp.eq.u32", yes, news, known)
        code("bra", stays, when=yes)
        code("membar.sys")

    def _look(self) -> None:
        """Forward the number of changes, if it is this claim's turn."""
        code = self._code
        last, limit, said = (code.register(name) for name in ("last", "limit", "said"))
        at, turn = code.register("at", "b64"), code.register("turn", "pred")
        near = code.label("near")
        code("xor.b32", last, self._slot, 4)
        code("ld.shared.u32", last, Address(last))
        code("mul.lo.u32", last, last, immediate(HASH))
        code("ld.param.u32", limit, Address(self._values, LOOK_LIMIT))
        code("setp.gt.u32", turn, last, limit)
        code("bra", near, when=turn)
        code("ld.param.u64", at, Address(self._values, SAID))
        code("ld.volatile.global.u32", said, Address(at))
        code("membar.sys")
        code("ld.param.u64", at, Address(self._values, NEWS))
        code("red.global.max.u32", Address(at), said)
        code.place(near)


def _branches(statements: list[Statement]) -> list[Symbol]:
    """Return the targets of the branches: where a released block goes, and one that stays."""
    targets = []
    for one in statements:
        if _is_branch(one):
            assert isinstance(one, Instruction)
            target = one.operands[0]
            assert isinstance(target, Symbol)
            targets.append(target)
            if len(targets) == 2:
                break
    return targets


def _is_branch(statement: Statement, target: Symbol | None = None) -> bool:
    """Return whether a statement is a branch, to ``target`` if that is given."""
    return (
        isinstance(statement, Instruction)
        and statement.opcode.base == "bra"
        and target in (None, statement.operands[0])
    )
