"""Places the bounds checks of a function: drops, merges and hoists checks.

Problem: a check costs a few instructions before each access. Neighbouring fields of a structure,
unrolled loops, a load and a store of one element repeat the same check.

Approach: three steps, each of which omits or moves a check only if the behaviour of the program
stays the same for every input.

*Drop.* A check is redundant if every path has already made an access that includes it: same value,
same bytes, at least the same alignment, and nothing legal for that access that is not legal here.
*Merge.* Checks of one value in one basic block become one bounds check with several members, before
the first access. *Hoist.* A check at the start of a loop, of a register that the loop does not
write, moves to before the loop.

Terms: a *value* is the content of a register at some point; ``r + 8`` and, after ``add r, r, 8``,
``r`` itself are the same value at other distances. A *fact* states that a range of bytes from a
value has been accessed, so it was legal. An *entry value* is the content of a register at the start
of a block.

Algorithm. Values are numbered in each basic block; additions of constants, moves and conversions
between global and generic addresses only change the distance. Facts are available expressions, a
forward dataflow problem with intersection (Aho, Lam, Sethi and Ullman, "Compilers", section 9.2.6),
over the registers through whose entry values some block makes accesses; a write of a register kills
the facts about it, except those that its new value inherits.

Properties:
* ``sound``: on every path, before every access, a check that includes it has run since its register
  got its value (or the value that it was computed from);
* ``no_invention``: a bounds check stands only where the accesses of all its members certainly
  follow: no branch, call, barrier or warp collective lies between;
* a merged bounds check is no longer than `HULL_BYTES`, and its members' alignments agree;
* checks that need code of their own (addresses that are not in 64-bit registers, conditional
  copies) are never merged, hoisted or dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpud.compiler.analysis.cfg import Block, ControlFlow, Loop
from gpud.compiler.analysis.effects import BRANCH, FLAGS
from gpud.compiler.instrumentation.bounds_checks import Member
from gpud.compiler.passes.safety.access_checks import AccessCheck, signed
from gpud.compiler.passes.safety.value_numbering import (
    NO_FACTS,
    BlockValues,
    Fact,
    Facts,
    NumberedCheck,
    Value,
    events,
)
from gpud.compiler.ptx.model import Instruction, Register, Symbol

__all__ = ["HULL_BYTES", "PlacedCheck", "place_checks"]

HULL_BYTES = 4096
"""The longest range of one merged bounds check; arenas are larger."""


@dataclass(frozen=True, slots=True)
class PlacedCheck:
    """A bounds check at the position of ``first``; ``members`` are offsets from its register."""

    first: AccessCheck
    members: list[Member]


def place_checks(flow: ControlFlow, checks: Sequence[AccessCheck]) -> list[PlacedCheck]:
    """Return the bounds checks for ``checks`` of the function of ``flow``, in body order."""
    placer = _Placer(flow, checks)
    entering = placer.solve()
    if flow.back_edges and placer.hoist(entering):
        entering = placer.solve()
    placed: list[PlacedCheck] = []
    for hoisted in placer.hoisted.values():
        seen = [_seen_alone(check) for check in hoisted]
        placed += _merged(seen)
    for block in placer.blocks:
        placed += _merged(placer.walk(block, entering.get(block, NO_FACTS)).seen)
    placed.sort(key=lambda one: one.first.position)
    return placed


# -- merging -----------------------------------------------------------------------------------


def _merged(seen: Iterable[NumberedCheck]) -> list[PlacedCheck]:
    """Return bounds checks for the checks of one block that no fact covers, in order."""
    groups: list[_Group] = []
    last: dict[tuple[object, ...], _Group] = {}
    for one in seen:
        if one.covered:
            continue
        check = one.check
        key = (one.origin, one.condition, one.stretch, check.windows, check.variables, check.table)
        group = last.get(key)
        if group is None or not group.takes(one):
            last[key] = group = _Group(one)
            groups.append(group)
    return [group.placed() for group in groups]


class _Group:
    """Checks for all of which one comparison and one alignment can stand."""

    def __init__(self, first: NumberedCheck) -> None:
        self._checks = [first]
        self._low = first.low
        self._high = first.low + first.check.member.span

    def takes(self, one: NumberedCheck) -> bool:
        """Take in ``one`` if it fits; return whether it does."""
        member = one.check.member
        low, high = min(self._low, one.low), max(self._high, one.low + member.span)
        if high - low > HULL_BYTES or (one.low - low) % member.align:
            return False
        moves = low != self._low
        if moves and any((each.low - low) % each.check.member.align for each in self._checks):
            return False
        self._low, self._high = low, high
        self._checks.append(one)
        return True

    def placed(self) -> PlacedCheck:
        """Return one bounds check for all of them."""
        first = self._checks[0]
        to_register = first.check.member.low - first.low
        members = [
            replace(one.check.member, low=signed(one.low + to_register)) for one in self._checks
        ]
        return PlacedCheck(first.check, members)


# -- between blocks ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Transfer:
    """The transfer function of a block for facts.

    ``made`` are the facts that it generates. ``heirs`` has, by the register of an entry value, the
    registers that hold that value at the block's end, with their distances from it; registers that
    are only their own heir are left out. ``written`` are the registers that it writes.
    """

    made: Facts
    heirs: dict[str, tuple[Value, ...]]
    written: frozenset[str]

    def after(self, facts: Facts) -> Facts:
        """Return the facts that hold at the block's end if ``facts`` hold at its start."""
        if not self.written:
            return facts | self.made
        out = set(self.made)
        for fact in facts:
            if fact.condition is not None and fact.condition[0] in self.written:
                continue
            heirs = self.heirs.get(str(fact.origin))
            if heirs is None:
                out.add(fact)
            else:
                out.update(
                    replace(fact, origin=name, low=fact.low - distance) for name, distance in heirs
                )
        return frozenset(out)


class _Placer:
    """The facts of one function, and the checks hoisted out of its loops."""

    def __init__(self, flow: ControlFlow, checks: Sequence[AccessCheck]) -> None:
        self._flow = flow
        self._at: dict[int, list[AccessCheck]] = {}
        for check in checks:
            self._at.setdefault(check.position, []).append(check)
        self.blocks = [
            block.index
            for block in flow.blocks
            if any(place.position in self._at for place in block.places)
        ]
        self.hoisted: dict[tuple[int, int], list[AccessCheck]] = {}
        """Hoisted checks, of entry values, by (block before the loop, loop header)."""
        self._events = events(flow, self._at)
        self._alone = {block: BlockValues(self._events[block], NO_FACTS) for block in self.blocks}
        self._exposed = sorted(
            {
                one.origin
                for walk in self._alone.values()
                for one in walk.seen
                if type(one.origin) is str
            }
        )
        self._effects: list[_Transfer] = []
        if self._exposed and len(flow.blocks) > 1:
            self._effects = [
                self._effect(self._alone.get(index) or BlockValues(its, NO_FACTS))
                for index, its in enumerate(self._events)
            ]

    def walk(self, block: int, facts: Facts) -> BlockValues:
        """Return the values of a block at whose start ``facts`` hold."""
        if not facts and block in self._alone:
            return self._alone[block]
        return BlockValues(self._events[block], facts)

    def _effect(self, walk: BlockValues) -> _Transfer:
        """Return the transfer function of a block, from a walk without facts."""
        heirs: dict[str | int, list[Value]] = {}
        for name in self._exposed:
            origin, distance = walk.value(Register(name))
            heirs.setdefault(origin, []).append((name, distance))
        made: set[Fact] = set()
        for one in walk.seen:
            condition = one.condition
            if condition is not None:
                name, writes, negated = condition
                if walk.writes.get(name, 0) != writes:
                    continue
                condition = (name, 0, negated)
            made.update(
                replace(one.fact, origin=name, low=one.low - distance, condition=condition)
                for name, distance in heirs.get(one.origin, ())
            )
        changed = {
            name: tuple(heirs.get(name, ()))
            for name in self._exposed
            if heirs.get(name) != [(name, 0)]
        }
        return _Transfer(frozenset(made), changed, frozenset(walk.writes))

    def solve(self) -> dict[int, Facts]:
        """Return the facts that hold at the start of each block."""
        entering: dict[int, Facts] = {}
        leaving: dict[int, Facts] = {}
        changed = bool(self._effects)
        while changed:
            changed = False
            for block in self._flow.order:
                facts = self._meet(block, leaving)
                if block in entering and entering[block] == facts:
                    continue
                entering[block] = facts
                leaving[block] = self._effects[block].after(facts)
                changed = True
        return entering

    def _meet(self, block: int, leaving: Mapping[int, Facts]) -> Facts:
        if block == 0:
            return NO_FACTS
        met: Facts | None = None
        for before in self._flow.blocks[block].predecessors:
            facts = leaving.get(before)
            if facts is None:
                continue  # not visited yet, or unreachable: the set of all facts
            hoisted = self.hoisted.get((before, block), ())
            facts |= {_seen_alone(check).fact for check in hoisted}
            met = facts if met is None else met & facts
        return met or NO_FACTS

    def hoist(self, entering: Mapping[int, Facts]) -> bool:
        """Hoist checks out of each loop where possible; returns whether any was hoisted."""
        flow = self._flow
        for loop in flow.loops if self._effects else ():
            way = _preheader(flow, loop)
            if way is None:
                continue
            before, position = way
            writes = frozenset().union(*(self._effects[block].written for block in loop.blocks))
            hoisted = []
            for one in self.walk(loop.header, entering.get(loop.header, NO_FACTS)).seen:
                if one.stretch:
                    break
                if one.covered or type(one.origin) is not str or one.origin in writes:
                    continue
                if one.condition is None and one.check.is_plain:
                    member = replace(one.check.member, low=signed(one.low))
                    register = Register(one.origin)
                    hoisted.append(
                        replace(one.check, position=position, register=register, member=member)
                    )
            if hoisted:
                self.hoisted[before, loop.header] = hoisted
        return bool(self.hoisted)


def _seen_alone(check: AccessCheck) -> NumberedCheck:
    """Return a hoisted check, which is of an entry value."""
    assert check.register is not None
    return NumberedCheck(check, check.register.name, check.member.low, None, 0, covered=False)


def _preheader(flow: ControlFlow, loop: Loop) -> tuple[int, int] | None:
    """Return (the block before ``loop``, a position that control passes only on entering it).

    ``None`` if there is no such position: the loop has several entering edges, or one by a
    conditional branch.
    """
    header = flow.blocks[loop.header]
    inside = frozenset(loop.blocks)
    outside = [b for b in header.predecessors if b not in inside]
    if len(outside) != 1 or loop.header == 0:
        return None
    before = flow.blocks[outside[0]]
    last = before.last
    if before.successors == (loop.header,) and last is not None and last.opcode.base == "bra":
        return before.index, before.places[-1].position
    if before.index + 1 != loop.header or _names_label(last, header):
        return None
    if any(b + 1 == loop.header for b in header.predecessors if b != before.index):
        return None
    return before.index, header.start


def _names_label(ins: Instruction | None, block: Block) -> bool:
    """Return whether ``ins`` is a branch to a label of ``block``."""
    if ins is None or not FLAGS[ins.opcode.text] & BRANCH:
        return False
    if ins.opcode.base != "bra":
        return True
    target = ins.operands[0]
    return isinstance(target, Symbol) and target.name in block.labels
