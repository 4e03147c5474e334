"""Parses operands, and caches the results.

Each text is parsed once: `OperandTable` maps text to node, so that the parser's inner loop is one
dictionary look-up per operand. The meaning of a bare name (``p``, without ``%``) depends on the
visible declarations, so a scope that declares such names gets a table of its own, which falls back
on the outermost table for every operand that mentions none of them.

Source: PTX ISA 9.0, chapter 6 (operands), section 4.5 (constants).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from gpud.compiler.ptx.constants import OperandError, evaluate, integer
from gpud.compiler.ptx.lexicon import (
    IDENTIFIER,
    INTEGER,
    is_special_register,
)
from gpud.compiler.ptx.model import (
    Address,
    Immediate,
    Not,
    Operand,
    Pair,
    RawOperand,
    Register,
    SpecialRegister,
    Symbol,
    SymbolOffset,
    Tuple,
    Vector,
)

__all__ = [
    "OperandError",
    "OperandTable",
    "number",
    "parse_operand",
    "shared_table",
    "split_operands",
]

_NAME = re.compile(IDENTIFIER, re.ASCII)
_DOTTED = re.compile(IDENTIFIER + r"\.[a-z]\w*", re.ASCII)
_VECTOR_ELEMENT = re.compile(IDENTIFIER + r"\.[xyzwrgba]", re.ASCII)
_INTEGER = re.compile(rf"(-?)\s*({INTEGER})", re.ASCII)
_OFFSET = rf"(?:([+-])\s*(-?)\s*({INTEGER}))?"
_INSIDE = re.compile(rf"({IDENTIFIER}(?:\.[xyzwrgba](?!\w))?)\s*{_OFFSET}", re.ASCII)
_FLOAT = re.compile(
    r"(-?)\s*(?:0[fF]([0-9a-fA-F]{8})|0[dD]([0-9a-fA-F]{16})"
    r"|((?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+))"
)
_FIRST_ELEMENT = re.compile(rf"({IDENTIFIER})\s*\[\s*0\s*\]", re.ASCII)
_WORD = re.compile(r"[%$\w]+", re.ASCII)
# Register names as compilers write them; the excluded prefixes are those of predefined registers.
_PLAIN_REGISTER = re.compile(r"%(?!envreg|pm|clock)[A-Za-z]+[0-9]+", re.ASCII)
_TWO_WORDS = re.compile(r"[\w$%\])}]\s+(?=[\w$%\[({])|[\])}](?=[\w$%])", re.ASCII)
_FOREIGN = re.compile(r"[^\w\s$%.,:+\-*/<>!~&|^?=(){}\[\]@]", re.ASCII)
_COMMA = re.compile(r" ?, ?")
_INNER_SPACE = re.compile(r"(?<=[(\[{]) | (?=[)\]}])")
_DEPTH = 32
_MARK = re.compile(r"[,(){}\[\]]")
_CLOSING = {")": "(", "}": "{", "]": "["}


class OperandTable(dict[str, Operand]):
    """Maps operand text to node, filled on demand.

    ``names`` has the visible names whose kind does not follow from their spelling: registers
    without ``%`` and variables with one; ``outer`` is the table for operands that mention none of
    them.
    """

    __slots__ = ("names", "outer")

    def __init__(
        self, names: Mapping[str, Operand] | None = None, outer: OperandTable | None = None
    ) -> None:
        super().__init__()
        self.names: Mapping[str, Operand] = names or {}
        self.outer = outer

    def __missing__(self, text: str) -> Operand:
        operand: Operand
        if self.outer is None:
            if _PLAIN_REGISTER.fullmatch(text):
                operand = Register(text)
            else:
                stripped = text.strip()
                operand = parse_operand(text, {}) if stripped == text else self[stripped]
        elif self.names.keys().isdisjoint(_WORD.findall(text)):
            operand = self.outer[text]
        else:
            operand = parse_operand(text.strip(), self.names)
        self[text] = operand
        return operand

    def declare(self, names: Mapping[str, Operand]) -> OperandTable:
        """Return the table for the rest of a scope that has declared ``names``."""
        return OperandTable({**self.names, **names}, self.outer or self) if names else self


_SHARED = OperandTable()
_SHARED_LIMIT = 1 << 15


def shared_table() -> OperandTable:
    """Return the outermost table, for scopes without unusual names, of every program.

    Shared by all parses, since kernels use the same few thousand register names; emptied when it
    has grown past 32,768 entries (about 6 MB).
    """
    if len(_SHARED) > _SHARED_LIMIT:
        _SHARED.clear()
    return _SHARED


def parse_operand(text: str, names: Mapping[str, Operand]) -> Operand:
    """Return the node for ``text``, which has no white space or comments around it.

    Raises:
        OperandError: it is not an operand.
    """
    if _NAME.fullmatch(text):
        return _name(text, names)
    first = text[:1]
    if first == "[" and text.endswith("]"):
        address = _address(text, names)
        if address is not None:
            return address
    elif first == "{" and text.endswith("}"):
        return Vector(tuple(_items(text, names)))
    elif first == "(" and text.endswith(")"):
        return Tuple(tuple(_items(text, names, may_be_empty=True)))
    elif first == "!":
        inner = parse_operand(text[1:].lstrip(), names) if len(text) > 1 else None
        if isinstance(inner, Register):
            return Not(inner)
        raise OperandError("a predicate register after '!'", 1)
    elif "|" in text:
        return _pair(text, names)
    else:
        literal = number(text)
        if literal is not None:
            return literal
        if _DOTTED.fullmatch(text):
            if is_special_register(text):
                return SpecialRegister(text)
            if _VECTOR_ELEMENT.fullmatch(text):
                return Register(text)
        match = _INSIDE.fullmatch(text)
        if match is not None:
            base = _name(match[1], names)
            if isinstance(base, Symbol):
                return SymbolOffset(base, _offset(match))
        value = evaluate(text)
        if value is not None:
            return Immediate(str(value), value)
        element = _FIRST_ELEMENT.fullmatch(text)
        if element is not None and isinstance(array := _name(element[1], names), Symbol):
            return array  # its address is that of the array
    return _raw(text)


def number(text: str) -> Immediate | None:
    """Return the node for a literal, None if ``text`` is not one.

    Raises:
        OperandError: an integer needs more than 64 bits, or an octal one has a digit 8 or 9.
    """
    match = _INTEGER.fullmatch(text)
    if match is not None:
        return Immediate("".join(text.split()), integer(match[2], negative=bool(match[1])))
    match = _FLOAT.fullmatch(text)
    if match is None:
        return None
    sign, single, double, decimal = match.groups()
    compact = "".join(text.split())
    if single is not None:
        return Immediate(compact, int(single, 16) ^ (1 << 31 if sign else 0), "f32")
    if double is not None:
        return Immediate(compact, int(double, 16) ^ (1 << 63 if sign else 0), "f64")
    value = -float(decimal) if sign else float(decimal)
    return Immediate(compact, int.from_bytes(struct.pack(">d", value), "big"), "f64")


def split_operands(text: str) -> Iterator[tuple[int, str]]:
    """Return ``(index, stripped text)`` of each part of ``text`` between top-level commas.

    A blank text has no parts.

    Raises:
        OperandError: brackets do not match, or a part is empty.
    """
    start = 0
    open_marks: list[tuple[str, int]] = []
    for match in _MARK.finditer(text):
        mark, index = match.group(), match.start()
        if mark == ",":
            if not open_marks:
                yield _part(text, start, index)
                start = index + 1
        elif mark in "([{":
            open_marks.append((mark, index))
            if len(open_marks) > _DEPTH:
                raise OperandError(f"at most {_DEPTH} nested brackets", index)
        elif not open_marks or open_marks[-1][0] != _CLOSING[mark]:
            raise OperandError("an operand, ',' or ';'", index)
        else:
            open_marks.pop()
    if open_marks:
        mark, index = open_marks[-1]
        raise OperandError(f"a closing bracket for '{mark}'", index)
    if start or text.strip():
        yield _part(text, start, len(text))


def _part(text: str, start: int, end: int) -> tuple[int, str]:
    part = text[start:end]
    stripped = part.strip()
    if not stripped:
        raise OperandError("an operand", end)
    return start + len(part) - len(part.lstrip()), stripped


def _name(text: str, names: Mapping[str, Operand]) -> Operand:
    declared = names.get(text)
    if declared is not None:
        return declared
    if text[0] != "%":
        element = text.rpartition(".")[0]
        return Register(text) if element and element in names else Symbol(text)
    return SpecialRegister(text) if is_special_register(text) else Register(text)


def _items(
    text: str, names: Mapping[str, Operand], *, may_be_empty: bool = False
) -> Iterator[Operand]:
    count = 0
    for index, part in _shifted(text[1:-1], 1):
        count += 1
        try:
            yield parse_operand(part, names)
        except OperandError as error:
            raise OperandError(error.expected, index + error.offset) from None
    if not count and not may_be_empty:
        raise OperandError("an element", 1)


def _shifted(text: str, by: int) -> Iterator[tuple[int, str]]:
    try:
        for index, part in split_operands(text):
            yield index + by, part
    except OperandError as error:
        raise OperandError(error.expected, error.offset + by) from None


def _address(text: str, names: Mapping[str, Operand]) -> Address | None:
    inner = text[1:-1].strip()
    match = _INSIDE.fullmatch(inner)
    if match is not None:
        base = _name(match[1], names)
        if isinstance(base, (Register, Symbol)):
            return Address(base, _offset(match))
        raise OperandError("a register, a variable or an integer as address", 1)
    match = _INTEGER.fullmatch(inner)
    if match is not None:
        return Address(None, integer(match[2], negative=bool(match[1])))
    if not inner:
        raise OperandError("an address", 1)
    match = _NAME.match(inner)
    rest = inner[match.end() :].lstrip() if match else ""
    if match is not None and rest[:1] in ("+", "-"):
        base, value = _name(match[0], names), evaluate(f"0{rest}")
        if value is not None and isinstance(base, (Register, Symbol)):
            return Address(base, value)
    return None


def _offset(match: re.Match[str]) -> int:
    sign, minus, digits = match[2], match[3], match[4]
    return integer(digits, negative=(sign == "-") != bool(minus)) if digits else 0


def _pair(text: str, names: Mapping[str, Operand]) -> Operand:
    value = evaluate(text)
    if value is not None:
        return Immediate(str(value), value)
    left, _, right = text.partition("|")
    if left.strip() and right.strip() and "|" not in right:
        first, second = (parse_operand(half.strip(), names) for half in (left, right))
        kinds = (Register, Symbol)
        if isinstance(first, kinds) and isinstance(second, kinds):
            return Pair(first, second)
    return _raw(text)


def _raw(text: str) -> RawOperand:
    """Return the node of any other text that could be an operand: balanced, no adjacent words."""
    foreign = _FOREIGN.search(text)
    if foreign is not None:
        raise OperandError("an operand", foreign.start())
    two = _TWO_WORDS.search(text)
    if two is not None:
        raise OperandError("',' or ';'", two.end())
    parts = list(split_operands(text))
    if len(parts) > 1:
        raise OperandError("one operand", parts[1][0])
    if not _WORD.search(text):
        raise OperandError("an operand")
    compact = _COMMA.sub(", ", _INNER_SPACE.sub("", " ".join(text.split())))
    return RawOperand(compact)
