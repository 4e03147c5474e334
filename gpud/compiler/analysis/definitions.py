"""Single definitions: the only instruction that writes a register.

Compilers write nearly every register once, so most questions about a value ("is this barrier
number a constant?") are answered by following definitions back, without data-flow analysis.

Properties:
* a register has a definition only if exactly one instruction of the function writes it, and that
  instruction has no guard;
* `Definitions.constant` returns an integer only if the operand has it wherever it is defined.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.compiler.analysis.effects import written
from gpud.compiler.ptx.model import Immediate, Instruction, Operand, Register, Statement

__all__ = ["Definitions"]

_DEPTH = 12  # longer chains of moves do not occur; it bounds the work of one query

_OPPOSITE = {"eq": "ne", "lt": "ge", "le": "gt", "lo": "hs", "ls": "hi"}
_OPPOSITE |= {second: first for first, second in _OPPOSITE.items()}


class Definitions:
    """The single definitions of the registers of a flat ``body``.

    ``several`` are the registers that more than one instruction writes.
    """

    def __init__(self, body: Iterable[Statement]) -> None:
        self.several: set[str] = set()
        self._writes: dict[str, Instruction | None] = {}
        for statement in body:
            if type(statement) is Instruction:
                self.add(statement, written(statement))

    def add(self, ins: Instruction, targets: Iterable[Register]) -> None:
        """Note that ``ins`` writes ``targets``."""
        writes = self._writes
        for register in targets:
            if register.name in writes:
                writes[register.name] = None
                self.several.add(register.name)
            else:
                writes[register.name] = ins if ins.guard is None else None

    def of(self, operand: Operand) -> Instruction | None:
        """Return the only write of a register; ``None`` if it is predicated, or one of several."""
        return self._writes.get(operand.name) if isinstance(operand, Register) else None

    def constant(self, operand: Operand) -> int | None:
        """Return the value of ``operand`` if it is a constant, followed through single moves."""
        for _ in range(_DEPTH):
            if isinstance(operand, Immediate):
                return operand.value if operand.kind == "int" else None
            definition = self.of(operand)
            if definition is None or definition.opcode.base != "mov":
                return None
            operand = definition.operands[1]
        return None

    def same_condition(self, first: Register, second: Register) -> bool:
        """Return whether two predicates are the same comparison, or one the negation of the other.

        ``False`` means unknown. Floating-point relations have no negation here (NaN).
        """
        one, other = self._without_not(first), self._without_not(second)
        if one == other:
            return True
        left, right = self.of(one), self.of(other)
        if left is None or right is None or left.operands[1:] != right.operands[1:]:
            return False
        if left.opcode.base != "setp" or right.opcode.base != "setp" or len(left.operands) != 3:
            return False
        relation, kind = left.opcode.modifiers[0], left.opcode.modifiers[1:]
        if kind != right.opcode.modifiers[1:]:
            return False
        return right.opcode.modifiers[0] in (relation, _OPPOSITE.get(relation))

    def _without_not(self, register: Register) -> Register:
        """Return the register from which ``register`` derives by any number of ``not.pred``."""
        for _ in range(_DEPTH):
            definition = self.of(register)
            if definition is None or definition.opcode.text != "not.pred":
                break
            source = definition.operands[1]
            if not isinstance(source, Register):
                break
            register = source
        return register
