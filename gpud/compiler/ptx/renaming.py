"""Replaces the names in operands, for flattening, inlining and register renaming."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpud.compiler.ptx.model import (
    Address,
    Not,
    Operand,
    Pair,
    RawOperand,
    Register,
    Symbol,
    SymbolOffset,
    Tuple,
    Vector,
)

__all__ = ["replace_names"]

_WORD = re.compile(r"[%$A-Za-z_][%$\w]*(?:\.[xyzw](?!\w))?", re.ASCII)


def replace_names(operand: Operand, new: Callable[[Register | Symbol], Operand]) -> Operand:
    """Return ``operand`` with each of its registers and symbols replaced by the result of ``new``.

    ``new`` returns its argument for names that do not change; if none changes, ``operand`` itself
    is returned. Words of a `RawOperand` are passed as registers if they start with ``%``, else as
    symbols. A replacement that does not fit (an immediate as the base of an address, a vector
    inside text) is ignored.
    """
    match operand:
        case Register() | Symbol():
            return new(operand)
        case Address(Register() | Symbol() as base, offset):
            substitute = new(base)
            if substitute is base or not isinstance(substitute, (Register, Symbol)):
                return operand
            return Address(substitute, offset)
        case SymbolOffset(symbol, offset):
            substitute = new(symbol)
            if substitute is symbol or not isinstance(substitute, Symbol):
                return operand
            return SymbolOffset(substitute, offset)
        case Not(register):
            substitute = new(register)
            if substitute is register or not isinstance(substitute, Register):
                return operand
            return Not(substitute)
        case Pair(first, second):
            left, right = replace_names(first, new), replace_names(second, new)
            return operand if left is first and right is second else Pair(left, right)
        case Vector(items):
            replaced = _all(items, new)
            return operand if replaced is items else Vector(replaced)
        case Tuple(items):
            replaced = _all(items, new)
            return operand if replaced is items else Tuple(replaced)
        case RawOperand(text):
            written = _WORD.sub(lambda match: _word(match.group(), new), text)
            return operand if written == text else RawOperand(written)
        case _:
            return operand


def _all(
    items: tuple[Operand, ...], new: Callable[[Register | Symbol], Operand]
) -> tuple[Operand, ...]:
    replaced = tuple(replace_names(item, new) for item in items)
    return items if all(a is b for a, b in zip(items, replaced, strict=True)) else replaced


def _word(word: str, new: Callable[[Register | Symbol], Operand]) -> str:
    replaced = new(Register(word) if word[0] == "%" else Symbol(word))
    return replaced.name if isinstance(replaced, (Register, Symbol)) else word
