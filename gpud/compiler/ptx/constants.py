"""Evaluates integer literals and constant expressions: ``0x1F``, ``(4<<3)|1``, ``a ? b : c``.

Problem. Hand-written assembly contains ``[%rd1+4*2]`` where compilers write ``[%rd1+8]``; later
stages should see numbers only.

Approach. Precedence climbing over a token list; values are Python integers, wrapped to signed 64
bits after each operator as PTX computes them (unsigned operands are treated as signed: the results
that differ, divisions and shifts of values of 2^63 and more, do not fit into operands).

Source: PTX ISA 9.0, sections 4.5.1 (integer constants), 4.5.4 and 4.5.5 (expressions).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Final

from gpud.compiler.ptx.lexicon import INTEGER

__all__ = ["OperandError", "evaluate", "integer"]

_TOKEN: Final = re.compile(rf"\s*({INTEGER}|WARP_SZ|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^~!?:()])")
_PLAIN: Final = re.compile(r"[\s\w+\-*/%<>=!&|^~?:()]+", re.ASCII)
_WARP_SIZE: Final = 32
_DEPTH: Final = 64


class OperandError(ValueError):
    """A text that is not an operand; ``expected`` says what belongs at index ``offset`` of it."""

    def __init__(self, expected: str, offset: int = 0) -> None:
        super().__init__(expected)
        self.expected = expected
        self.offset = offset


def integer(text: str, *, negative: bool = False) -> int:
    """Return the value of an unsigned integer literal such as ``0x1FU``, negated if ``negative``.

    Raises:
        OperandError: it needs more than 64 bits, or an octal one has a digit 8 or 9.
    """
    digits = text.removesuffix("U")
    try:
        if digits[:2] in ("0x", "0X", "0b", "0B"):
            value = int(digits, 0)
        elif digits[0] == "0" and len(digits) > 1:
            value = int(digits, 8)
        else:
            value = int(digits) if len(digits) <= 20 else 1 << 64
    except ValueError:
        raise OperandError("an octal number (it starts with 0)") from None
    if value >= 1 << 64:
        raise OperandError("an integer of at most 64 bits")
    return -value if negative else value


def evaluate(text: str) -> int | None:
    """Return the value of a constant integer expression, None if ``text`` is not one.

    The result is a signed 64-bit integer, or for a single literal its value. ``WARP_SZ`` is 32.

    Raises:
        OperandError: a literal needs more than 64 bits, the expression divides by zero or nests
            too deeply.
    """
    if len(text) > 1000 or not _PLAIN.fullmatch(text):
        return None
    tokens: list[str] = []
    pos, end = 0, len(text.rstrip())
    while pos < end:
        match = _TOKEN.match(text, pos)
        if match is None:
            return None
        tokens.append(match[1])
        pos = match.end()
    try:
        parser = _Expression(tokens)
        value = parser.conditional(0)
    except IndexError:
        return None
    return value if value is not None and parser.at == len(tokens) else None


class _Expression:
    """A precedence-climbing parser; its methods return None if there is no expression."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.at = 0

    def accept(self, token: str) -> bool:
        if self.at < len(self.tokens) and self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def conditional(self, depth: int) -> int | None:
        value = self.binary(0, depth)
        if value is None or not self.accept("?"):
            return value
        first = self.conditional(depth + 1)
        if first is None or not self.accept(":"):
            return None
        second = self.conditional(depth + 1)
        return None if second is None else (first if value else second)

    def binary(self, level: int, depth: int) -> int | None:
        if level == len(_LEVELS):
            return self.unary(depth)
        value = self.binary(level + 1, depth)
        while value is not None and self.at < len(self.tokens):
            action = _LEVELS[level].get(self.tokens[self.at])
            if action is None:
                break
            self.at += 1
            right = self.binary(level + 1, depth)
            value = None if right is None else _wrap(action(value, right))
        return value

    def unary(self, depth: int) -> int | None:
        if depth > _DEPTH:
            raise OperandError(f"at most {_DEPTH} nested operators")
        if self.accept("("):
            value = self.conditional(depth + 1)
            return value if self.accept(")") else None
        if self.accept("WARP_SZ"):
            return _WARP_SIZE
        word = self.tokens[self.at]
        self.at += 1
        if word in _UNARY:
            value = self.unary(depth + 1)
            return None if value is None else _UNARY[word](value)
        return integer(word) if word[0].isdigit() else None


def _wrap(value: int) -> int:
    """Wrap ``value`` to signed 64 bits; keep values that a literal may have, below 2^64."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63) if not 0 <= value < 1 << 64 else value


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise OperandError("a divisor other than zero")
    value = abs(left) // abs(right)
    return value if (left < 0) == (right < 0) else -value


def _remainder(left: int, right: int) -> int:
    return left - right * _quotient(left, right)


def _shift(shift: Callable[[int, int], int]) -> Callable[[int, int], int]:
    return lambda left, right: shift(left, right & 63)


_UNARY: Final[dict[str, Callable[[int], int]]] = {
    "-": operator.neg,
    "+": operator.pos,
    "~": operator.invert,
    "!": lambda value: int(not value),
}
_LEVELS: Final[list[dict[str, Callable[[int, int], int]]]] = [
    {"||": lambda left, right: int(bool(left or right))},
    {"&&": lambda left, right: int(bool(left and right))},
    {"|": operator.or_},
    {"^": operator.xor},
    {"&": operator.and_},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": _shift(operator.lshift), ">>": _shift(operator.rshift)},
    {"+": operator.add, "-": operator.sub},
    {"*": operator.mul, "/": _quotient, "%": _remainder},
]
