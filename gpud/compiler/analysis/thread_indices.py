"""Finds thread indices of the form 32 w + lane, and warp-uniform values computed from them.

Problem: ``threadIdx.x / 32`` and ``threadIdx.x < 32`` differ between threads of a block but not
between lanes of a warp. Without this knowledge, every kernel whose first warp finishes a reduction
would seem to let lanes exit before a warp collective.

Approach: follow registers that are written once back to their definitions, and recognise the few
ways in which compilers and programmers compute a thread's index.

Terms: an *index* is a value 32 w + lane with w the same for all lanes of a warp; a *multiple* is a
uniform value that is a multiple of 32. Each holds for a `ShapeRule` of block.

Properties:
* ``%tid.x`` is an index if no warp spans two rows of the block;
* ``(%tid.z * %ntid.y + %tid.y) * %ntid.x + %tid.x`` is an index for every shape;
* an index plus a multiple is an index; ``%ntid.x`` is a multiple if rows are whole warps;
* an index shifted right by 5 or more, divided by or masked to a multiple of 32, or compared with
  a multiple, is warp-uniform.

A thread index is assumed to be less than 2**31, as it is in every launch that CUDA allows with an
``int`` index: the rounding that compilers add for negative dividends is then 0.

Source: CUDA C++ Programming Guide, section 4.1 (linear thread ID and warps).
"""

from __future__ import annotations

from gpud.compiler.analysis.block_shape import WARP_SIZE, ShapeRule
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.ptx.model import Instruction, Operand, Register, SpecialRegister

__all__ = ["REFINED", "ThreadIndices"]

REFINED = frozenset(("setp", "shr", "and", "div", "bfe"))
"""First words of the opcodes that can compute a warp-uniform value from an index."""

_BELOW = ("lt", "ge", "lo", "hs")
_UP_TO = ("le", "gt", "ls", "hi")
_DEPTH = 12  # longer chains do not occur; it bounds the work of one query


class ThreadIndices:
    """The thread indices of one function."""

    def __init__(self, definitions: Definitions) -> None:
        self.definition = definitions.of
        self.constant = definitions.constant
        self._index: dict[str, ShapeRule | None] = {}

    def warp_uniform(self, ins: Instruction) -> ShapeRule | None:
        """Return in which blocks ``ins`` makes a warp-uniform value of an index, if in any."""
        base, operands = ins.opcode.base, ins.operands
        if len(operands) < 3:
            return None
        if base == "setp":
            if len(operands) != 3 or not ins.opcode.modifiers:
                return None
            return self._compared(ins.opcode.modifiers[0], operands[1], operands[2])
        if base not in REFINED:
            return None
        number = self.constant(operands[2])
        if number is None:
            return None
        if base in ("shr", "bfe"):
            fits = number >= 5
        elif base == "and":
            fits = number % WARP_SIZE == 0
        else:
            fits = number > 0 and number % WARP_SIZE == 0
        return self.index(operands[1]) if fits else None

    def index(self, operand: Operand, depth: int = _DEPTH) -> ShapeRule | None:
        """Return for which blocks ``operand`` is an index 32 w + lane; ``None``: none."""
        if isinstance(operand, SpecialRegister):
            return ShapeRule.ROWS if operand.name == "%tid.x" else None
        if not isinstance(operand, Register) or depth == 0:
            return None
        if operand.name not in self._index:
            self._index[operand.name] = None  # a register defined by itself is no index
            definition = self.definition(operand)
            if definition is not None:
                self._index[operand.name] = self._defines_index(definition, depth - 1)
        return self._index[operand.name]

    # -- helpers -------------------------------------------------------------------------------

    def _compared(self, relation: str, left: Operand, right: Operand) -> ShapeRule | None:
        index = self.index(left)
        if index is None:
            return None
        if relation in _BELOW:
            multiple = self._multiple(right)
            return None if multiple is None else index | multiple
        number = self.constant(right)
        fits = relation in _UP_TO and number is not None and number % WARP_SIZE == WARP_SIZE - 1
        return index if fits else None

    def _defines_index(self, ins: Instruction, depth: int) -> ShapeRule | None:
        base, operands = ins.opcode.base, ins.operands
        if _is_copy(ins):
            return self.index(operands[1], depth)
        if base == "add":
            for first, second in ((operands[1], operands[2]), (operands[2], operands[1])):
                index = self.index(first, depth)
                if index is None:
                    continue
                if self._rounds_negative(second):
                    return index
                multiple = self._multiple(second, depth)
                if multiple is not None:
                    return index | multiple
                if self._is_row_offset(second, depth) and self._special(first) == "%tid.x":
                    return ShapeRule.ANY
        if base == "mad" and ins.opcode.has("lo"):
            left, right, added = operands[1:4]
            if self._special(added) == "%tid.x" and (
                (self._special(right) == "%ntid.x" and self._is_row(left, depth))
                or (self._special(left) == "%ntid.x" and self._is_row(right, depth))
            ):
                return ShapeRule.ANY
            index = self.index(added, depth)
            multiple = self._product(left, right, depth)
            if index is not None and multiple is not None:
                return index | multiple
        return None

    def _is_row_offset(self, operand: Operand, depth: int) -> bool:
        """Return whether ``operand`` is row times ``%ntid.x``."""
        ins = self.definition(operand)
        if ins is None or ins.opcode.base != "mul" or not ins.opcode.has("lo"):
            return False
        left, right = ins.operands[1:3]
        return (self._special(right) == "%ntid.x" and self._is_row(left, depth)) or (
            self._special(left) == "%ntid.x" and self._is_row(right, depth)
        )

    def _is_row(self, operand: Operand, depth: int) -> bool:
        """Return whether ``operand`` is ``%tid.z * %ntid.y + %tid.y``: the thread's row."""
        ins = self.definition(operand)
        if ins is None or depth == 0:
            return False
        base, operands = ins.opcode.base, ins.operands
        if _is_copy(ins):
            return self._is_row(operands[1], depth - 1)
        if base == "mad":
            names = {self._special(operands[1]), self._special(operands[2])}
            return names == {"%tid.z", "%ntid.y"} and self._special(operands[3]) == "%tid.y"
        if base == "add":
            for first, second in ((operands[1], operands[2]), (operands[2], operands[1])):
                product = self.definition(first)
                if (
                    self._special(second) == "%tid.y"
                    and product is not None
                    and product.opcode.base == "mul"
                ):
                    names = {self._special(operand) for operand in product.operands[1:3]}
                    return names == {"%tid.z", "%ntid.y"}
        return False

    def _special(self, operand: Operand) -> str | None:
        """Return the special register that ``operand`` is a copy of."""
        for _ in range(_DEPTH):
            if isinstance(operand, SpecialRegister):
                return operand.name
            definition = self.definition(operand)
            if definition is None or not _is_copy(definition):
                return None
            operand = definition.operands[1]
        return None

    def _multiple(self, operand: Operand, depth: int = _DEPTH) -> ShapeRule | None:
        """Return for which blocks ``operand`` is a uniform multiple of 32; ``None``: none."""
        number = self.constant(operand)
        if number is not None:
            return ShapeRule.ANY if number % WARP_SIZE == 0 else None
        if self._special(operand) == "%ntid.x":
            return ShapeRule.WHOLE
        ins = self.definition(operand)
        if ins is None or depth == 0:
            return None
        base, operands = ins.opcode.base, ins.operands
        if _is_copy(ins):
            return self._multiple(operands[1], depth - 1)
        if base == "mul" and not ins.opcode.has("hi"):
            return self._product(operands[1], operands[2], depth - 1)
        if base == "add":
            first = self._multiple(operands[1], depth - 1)
            second = self._multiple(operands[2], depth - 1)
            return None if first is None or second is None else first | second
        if base == "shl":
            number = self.constant(operands[2])
            plain = number is not None and number >= 5 and self._plain(operands[1])
            return ShapeRule.ANY if plain else None
        return None

    def _product(self, left: Operand, right: Operand, depth: int) -> ShapeRule | None:
        for first, second in ((left, right), (right, left)):
            multiple = self._multiple(first, depth)
            if multiple is not None and self._plain(second):
                return multiple
        return None

    def _plain(self, operand: Operand) -> bool:
        """Return whether ``operand`` is a constant, or a block's or grid's coordinate or size."""
        if self.constant(operand) is not None:
            return True
        special = self._special(operand)
        return special is not None and special.startswith(("%ctaid", "%nctaid", "%ntid"))

    def _rounds_negative(self, operand: Operand) -> bool:
        """Return whether ``operand`` is ``(x >>s 31) >>u 27``: 31 for a negative x, else 0."""
        outer = self.definition(operand)
        if outer is None or outer.opcode.base != "shr" or self.constant(outer.operands[2]) != 27:
            return False
        inner = self.definition(outer.operands[1])
        return (
            inner is not None
            and inner.opcode.base == "shr"
            and self.constant(inner.operands[2]) == 31
            and self.index(inner.operands[1]) is not None
        )


def _is_copy(ins: Instruction) -> bool:
    """Return whether ``ins`` copies an integer, or changes only its width."""
    op = ins.opcode
    if op.base == "cvt":
        return len(op.modifiers) == 2 and all(m[0] in "us" for m in op.modifiers)
    return op.base == "mov" and len(ins.operands) == 2
