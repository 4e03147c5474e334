"""Value numbering of the addresses in a basic block, and facts about them.

Problem and terms: `gpud.compiler.passes.safety.check_placement`. Whether one check implies another
depends on the contents of their registers, and so on every instruction that writes one of them.

Approach: one walk over the relevant instructions of a block: those with checks, those that write a
register from which addresses or guards derive, and those from which a thread may not return.

Properties:
* two checks have the same origin only if the difference of their addresses always equals that of
  their distances;
* a check is covered only if a fact of the same origin includes its range, implies its alignment,
  holds under its condition, and allows nothing that the check does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    CLUSTER,
    COLLECTIVE,
    FLAGS,
    read,
    written,
)
from gpud.compiler.analysis.memory_accesses import is_familiar
from gpud.compiler.instrumentation.bounds_checks import Range
from gpud.compiler.passes.safety.access_checks import AccessCheck, RegisterWidths, signed
from gpud.compiler.ptx.model import Guard, Immediate, Instruction, Operand, Register

__all__ = ["NO_FACTS", "BlockValues", "Event", "Fact", "Facts", "NumberedCheck", "Value", "events"]

Value = tuple[str | int, int]
"""A register's value: its origin (an entry value's register, or a number) and its distance."""

Legal = tuple[tuple[str, ...], tuple[Range, ...], int]
"""The windows and variables that are legal for an access, and how much of the table."""

Condition = tuple[str, int, bool] | None
"""A guard: its register, how often the block has written that register so far, and negation."""


@dataclass(frozen=True, slots=True)
class Fact:
    """``span`` bytes at ``origin + low`` lie in the arena or in ``legal``, and are aligned.

    It holds for threads for which ``condition`` holds. Between blocks, origins are registers.
    """

    origin: str | int
    low: int
    span: int
    align: int
    condition: Condition
    legal: Legal


@dataclass(slots=True)
class NumberedCheck:
    """A check in its block: its range begins at ``origin + low``.

    ``stretch`` counts the instructions before it in the block from which a thread may not return.
    ``covered`` says whether a fact includes it.
    """

    check: AccessCheck
    origin: str | int
    low: int
    condition: Condition
    stretch: int
    covered: bool

    @property
    def fact(self) -> Fact:
        """The fact that holds after the access."""
        member = self.check.member
        legal = (self.check.windows, self.check.variables, self.check.table)
        return Fact(self.origin, self.low, member.span, member.align, self.condition, legal)


Facts = frozenset[Fact]
NO_FACTS: Facts = frozenset()
"""No facts."""


class BlockValues:
    """The values and checks of one basic block, given the facts at its start."""

    def __init__(self, events_: Iterable[Event], facts: Facts) -> None:
        self.values: dict[str, Value] = {}
        self.writes: dict[str, int] = {}
        self.seen: list[NumberedCheck] = []
        self._facts: dict[str | int, list[Fact]] = {}
        for fact in facts:
            self._facts.setdefault(fact.origin, []).append(fact)
        self._fresh = 0
        self._stretch = 0
        for checks, stops, targets, step in events_:
            for check in checks:
                self._see(check)
            self._stretch += stops
            if targets:
                self._write(targets, step)

    def value(self, register: Register) -> Value:
        """Return the current value of ``register``."""
        return self.values.get(register.name) or (register.name, 0)

    def condition(self, guard: Guard | None) -> Condition:
        """Return ``guard`` as a condition, with the current contents of its register."""
        if guard is None:
            return None
        name = guard.register.name
        return name, self.writes.get(name, 0), guard.negated

    def _see(self, check: AccessCheck) -> None:
        if not check.is_plain or check.register is None:
            self._fresh += 1
            seen = NumberedCheck(
                check, self._fresh, check.member.low, None, self._stretch, covered=False
            )
            self.seen.append(seen)
            return
        origin, distance = self.value(check.register)
        low = distance + check.member.low
        condition = self.condition(check.guard)
        known = self._facts.setdefault(origin, [])
        covered = any(_covers(fact, check, low, condition) for fact in known)
        seen = NumberedCheck(check, origin, low, condition, self._stretch, covered)
        self.seen.append(seen)
        if not covered:
            known.append(seen.fact)

    def _write(self, targets: Iterable[Register], step: Step | None) -> None:
        derived: Value | None = None
        if step is not None:
            origin, distance = self.value(step[0])
            derived = origin, distance + step[1]
        for target in targets:
            self.writes[target.name] = self.writes.get(target.name, 0) + 1
            self._fresh += 1
            self.values[target.name] = (self._fresh, 0) if derived is None else derived


Step = tuple[Register, int]
"""The register whose value an instruction copies, and the constant that it adds."""


def _step(ins: Instruction, widths: RegisterWidths) -> Step | None:
    """Return the copy that ``ins`` makes; ``None`` if it does anything else, or has a guard."""
    text, operands = ins.opcode.text, ins.operands
    step = _source(text, operands)
    if step is None or ins.guard is not None:
        return None
    # Not every device refuses registers of other widths, which would lose bits.
    return step if all(_is_wide(one, widths) for one in (operands[0], step[0])) else None


def _is_wide(operand: Operand, widths: RegisterWidths) -> bool:
    try:
        return isinstance(operand, Register) and widths.of(operand) == 64
    except KeyError:
        return False


def _source(text: str, operands: Sequence[Operand]) -> Step | None:
    if text in _SAME:
        return (operands[1], 0) if isinstance(operands[1], Register) else None
    left, right = operands[1], operands[2]
    if isinstance(left, Immediate) and text in _ADDS:
        left, right = right, left
    if not isinstance(left, Register) or not isinstance(right, Immediate):
        return None
    by = signed(right.value)
    return left, by if text in _ADDS else -by


_SAME = frozenset((
    "mov.b64", "mov.u64", "mov.s64", "cvta.global.u64", "cvta.to.global.u64",
))  # fmt: skip
_ADDS = frozenset(("add.s64", "add.u64"))
_SUBTRACTS = frozenset(("sub.s64", "sub.u64"))
_COPIES = _SAME | _ADDS | _SUBTRACTS
_SIMPLE = frozenset((
    "mov", "add", "sub", "mul", "mad", "fma", "div", "and", "or", "xor", "shl", "shr", "cvt",
    "selp", "cvta", "min", "max", "neg", "bfe", "not",
))  # fmt: skip
"""First words of opcodes that only write their first operand: a fast path."""
_MAY_STOP = CALL | BARRIER | COLLECTIVE | CLUSTER
_MAY_STOP_BASES = frozenset(("griddepcontrol", "brkpt", "trap"))

Event = tuple[Sequence[AccessCheck], bool, tuple[Register, ...], Step | None]
"""A relevant instruction: its checks, whether a thread may not return from it, the registers it
writes from which addresses or guards derive, and the copy that it makes."""


def events(flow: ControlFlow, at: Mapping[int, Sequence[AccessCheck]]) -> list[list[Event]]:
    """Return the relevant instructions of each block."""
    widths = RegisterWidths(flow.function)
    steps: dict[int, Step] = {}
    sources: dict[str, list[str]] = {}
    for block in flow.blocks:
        for place in block.places:
            text = place.instruction.opcode.text
            step = _step(place.instruction, widths) if text in _COPIES else None
            if step is not None:
                steps[place.position] = step
                target = place.instruction.operands[0]
                assert isinstance(target, Register)
                sources.setdefault(target.name, []).append(step[0].name)
    wanted = _wanted(at, sources)
    events: list[list[Event]] = []
    for block in flow.blocks:
        here: list[Event] = []
        for place in block.places:
            ins = place.instruction
            base, operands = ins.opcode.base, ins.operands
            if base in _SIMPLE and operands and type(operands[0]) is Register:
                if operands[0].name in wanted:
                    here.append(((), False, (operands[0],), steps.get(place.position)))
                continue
            checks = at.get(place.position, ())
            stops = FLAGS[ins.opcode.text] & _MAY_STOP != 0 or base in _MAY_STOP_BASES
            targets = tuple(r for r in _results(ins) if r.name in wanted)
            if checks or stops or targets:
                here.append((checks, stops, targets, steps.get(place.position)))
        events.append(here)
    return events


def _results(ins: Instruction) -> tuple[Register, ...]:
    """Return the registers that ``ins`` may write: all that it names if its opcode is unknown."""
    if is_familiar(ins.opcode.base):
        return written(ins)
    return (*written(ins), *read(ins))


def _wanted(
    at: Mapping[int, Sequence[AccessCheck]], sources: Mapping[str, Sequence[str]]
) -> set[str]:
    """Return the registers of checks, bases and guards, and the registers they are copied from."""
    wanted: set[str] = set()
    for checks in at.values():
        for check in checks:
            if check.register is not None:
                wanted.add(check.register.name)
            if check.guard is not None:
                wanted.add(check.guard.register.name)
    stack = list(wanted)
    while stack:
        for name in sources.get(stack.pop(), ()):
            if name not in wanted:
                wanted.add(name)
                stack.append(name)
    return wanted


def _covers(fact: Fact, check: AccessCheck, low: int, condition: Condition) -> bool:
    """Return whether ``fact`` includes the check's range, ``low`` from the same origin."""
    member = check.member
    if not (fact.low <= low and low + member.span <= fact.low + fact.span):
        return False
    if fact.align % member.align or (low - fact.low) % member.align:
        return False
    if fact.condition is not None and fact.condition != condition:
        return False
    windows, variables, table = fact.legal
    if table > check.table:
        return False
    return set(windows) <= set(check.windows) and set(variables) <= set(check.variables)
