"""Parses declarations: variables with initialisers, registers, and function parameters.

Source: PTX ISA 9.0, sections 5.1 to 5.4 (state spaces, types, variables) and 7.1 (parameters).
"""

from __future__ import annotations

import re

from gpud.compiler.ptx.constants import OperandError, integer
from gpud.compiler.ptx.cursor import Cursor
from gpud.compiler.ptx.lexicon import IDENTIFIER, INTEGER
from gpud.compiler.ptx.model import (
    Immediate,
    Initializer,
    InitialValue,
    Parameter,
    RawOperand,
    RegisterDeclaration,
    Variable,
)
from gpud.compiler.ptx.operands import number

__all__ = ["NAME", "fast_variable", "parameters", "registers", "variables"]

NAME = re.compile(IDENTIFIER, re.ASCII)

_DOTTED = re.compile(r"\.([A-Za-z]\w*+)", re.ASCII)
_INTEGER = re.compile(INTEGER, re.ASCII)
_SIGNED = re.compile(rf"([+-])?\s*({INTEGER})", re.ASCII)
_NUMBER = re.compile(
    r"-?\s*(?:0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}"
    r"|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
    rf"|{INTEGER})(?![\w.])",
    re.ASCII,
)
_MASK = re.compile(rf"({INTEGER})\s*\(", re.ASCII)
_PARENTHESES = re.compile(r"\((?:[^();{}]|\([^();{}]*\))*\)")
_FLAT_INTEGERS = re.compile(r"\{((?:\s*+-?[0-9]++\s*+,)*+\s*+-?[0-9]++\s*+)\}")
_BRACES = re.compile(r"\{[^{};]*\}")
_OPAQUE = ("texref", "samplerref", "surfref")
_MOST_NUMBERED = 1 << 20
_DEPTH = 32
_VECTORS = ("v2", "v4", "v8")
_POINTER_SPACES = ("global", "shared", "const", "local", "generic", "param")
_FAST = re.compile(
    r"[ \t]*(?:\.(visible|weak|common|extern)[ \t]+)?\.(global|const|shared|local)[ \t]+"
    r"\.align[ \t]+([1-9][0-9]*+)[ \t]+\.([bus](?:8|16|32|64))[ \t]+([\w$]++)"
    r"(?:\[([0-9]++)\])?(?:[ \t]*=[ \t]*(?:\{([-0-9, ]*+)\}|(-?(?:0|[1-9][0-9]*+))))?;[ \t]*\n",
    re.ASCII,
)
_FAST_PARAMETER = re.compile(
    r"\.(param|reg)[ \t]+(?:\.align[ \t]+([1-9][0-9]*+)[ \t]+)?\.([busf](?:8|16|32|64))[ \t]+"
    r"([A-Za-z_$][\w$]*+)(?:\[([1-9][0-9]*+)\])?(?=[,)\n])",
    re.ASCII,
)


def fast_variable(cursor: Cursor) -> Variable | None:
    """Parse a variable on one line, in the layout of compilers; None for any other layout.

    A fast path for the hundreds of constants in headers, with the same result as `variables`. The
    cursor may be anywhere on or before the declaration's first word.
    """
    match = _FAST.match(cursor.text, cursor.pos)
    if match is None:
        return None
    linkage, space, align, kind, name, dim, values, value = match.groups()
    if name[0].isdigit() or (dim is not None and dim[0] == "0" and dim != "0"):
        return None
    init: InitialValue | None = None
    if value is not None:
        init = Immediate(value, int(value))
    elif values is not None:
        try:
            init = _integers(values)
        except (OperandError, ValueError):
            return None
    dims = () if dim is None else (int(dim),)
    line = cursor.line
    cursor.pos = match.end()
    cursor.line += 1
    return Variable(space, kind, name, dims, int(align), None, linkage, init, (), line)


def variables(cursor: Cursor, space: str, linkage: str | None, line: int) -> list[Variable]:
    """Parse the rest of a variable declaration, after its state space, with the ``;``."""
    align: int | None = None
    vector: str | None = None
    kind: str | None = None
    attributes: list[str] = []
    while True:
        match = cursor.maybe(_DOTTED)
        if match is None:
            break
        word = match[1]
        if word == "align":
            align = _integer(cursor, "an alignment in bytes")
        elif word == "attribute":
            text = cursor.take(_PARENTHESES, "'(' and the attributes")
            attributes.append(text[1:-1].strip())
        elif word in _VECTORS:
            vector = word
        elif kind is None:
            kind = word
        else:
            raise cursor.error("one type only", match.start())
    if kind is None:
        raise cursor.error("a type such as .b32")
    parsed: list[Variable] = []
    while True:
        name = cursor.take(NAME, "a variable name")
        dims: tuple[int | None, ...] = ()
        init: InitialValue | None = None
        if cursor.accept("<"):
            count = _count(cursor)
            cursor.expect(">")
            names = [f"{name}{i}" for i in range(count)]
        else:
            names = [name]
            dims = _dims(cursor)
            init = _initial(cursor, opaque=kind in _OPAQUE) if cursor.accept("=") else None
        for one in names:
            parsed.append(
                Variable(
                    space, kind, one, dims, align, vector, linkage, init, tuple(attributes), line
                )
            )
        if cursor.accept(";"):
            return parsed
        if not cursor.accept(","):
            raise cursor.error("',', '=' or ';'")


def registers(cursor: Cursor, line: int) -> list[RegisterDeclaration]:
    """Parse the rest of a ``.reg`` declaration, with the ``;``."""
    vector: str | None = None
    kind: str | None = None
    while True:
        match = cursor.maybe(_DOTTED)
        if match is None:
            break
        if match[1] in _VECTORS:
            vector = match[1]
        elif match[1] == "align":
            _integer(cursor, "an alignment in bytes")  # it means nothing for registers
        elif kind is None:
            kind = match[1]
        else:
            raise cursor.error("one type only", match.start())
    if kind is None:
        raise cursor.error("a register type such as .b32")
    parsed: list[RegisterDeclaration] = []
    while True:
        name = cursor.take(NAME, "a register name")
        count: int | None = None
        if cursor.accept("<"):
            count = _count(cursor)
            cursor.expect(">")
        parsed.append(RegisterDeclaration(kind, name, count, vector, line))
        if cursor.accept(";"):
            return parsed
        if not cursor.accept(","):
            raise cursor.error("',' or ';'")


def parameters(cursor: Cursor) -> tuple[Parameter, ...]:
    """Parse a parameter list after its ``(``, with the ``)``."""
    parsed: list[Parameter] = []
    if cursor.accept(")"):
        return ()
    while True:
        parsed.append(_parameter(cursor))
        if cursor.accept(")"):
            return tuple(parsed)
        if not cursor.accept(","):
            raise cursor.error("',' or ')'")


def _parameter(cursor: Cursor) -> Parameter:
    at = cursor.pos
    fast = _FAST_PARAMETER.match(cursor.text, at)
    if fast is not None:
        cursor.pos = fast.end()
        cursor.skip()
        return _plain_parameter(*fast.groups())
    space = cursor.take(_DOTTED, "a parameter (.param or .reg)")[1:]
    if space not in ("param", "reg"):
        raise cursor.error("a parameter (.param or .reg)", at)
    align: int | None = None
    vector: str | None = None
    kind: str | None = None
    pointer: list[str] | None = None
    while True:
        match = cursor.maybe(_DOTTED)
        if match is None:
            break
        word = match[1]
        if word == "align":
            value = _integer(cursor, "an alignment in bytes")
            if pointer is None:
                align = value
            else:
                pointer.append(f".align {value}")
        elif word == "ptr" and pointer is None:
            pointer = []
        elif pointer is not None and word in _POINTER_SPACES:
            pointer.append(f".{word}")
        elif word in _VECTORS:
            vector = word
        elif kind is None:
            kind = word
        else:
            raise cursor.error("one type only", match.start())
    if kind is None:
        raise cursor.error("a type such as .b32")
    name = cursor.take(NAME, "a parameter name")
    dims = _dims(cursor)
    text = None if pointer is None else " ".join(pointer)
    return Parameter(kind, name, dims, align, space, text, vector)


def _count(cursor: Cursor) -> int:
    at = cursor.pos
    count = _integer(cursor, "a count")
    if count > _MOST_NUMBERED:
        raise cursor.error(f"a count of at most {_MOST_NUMBERED}", at)
    return count


def _plain_parameter(
    space: str, align: str | None, kind: str, name: str, length: str | None
) -> Parameter:
    """Return the node for the groups of a `_FAST_PARAMETER` match."""
    dims = (int(length),) if length else ()
    return Parameter(kind, name, dims, int(align) if align else None, space)


def _dims(cursor: Cursor) -> tuple[int | None, ...]:
    dims: list[int | None] = []
    while cursor.accept("["):
        if cursor.at("]") and not dims:
            dims.append(None)
        else:
            dims.append(_integer(cursor, "an array length"))
        cursor.expect("]")
    return tuple(dims)


def _initial(cursor: Cursor, *, opaque: bool = False, depth: int = 0) -> InitialValue:
    """Parse an initialiser: a leaf, ``{ ... }`` of initialisers, or text for opaque types."""
    if opaque:
        text = cursor.take(_BRACES, "'{' and the fields")
        return RawOperand(" ".join(text.split()))
    if not cursor.at("{"):
        return _leaf(cursor)
    flat = _FLAT_INTEGERS.match(cursor.text, cursor.pos)
    if flat is not None:
        try:
            values = _integers(flat[1])
        except (OperandError, ValueError):
            pass  # the slow path below finds the position of the error
        else:
            cursor.move(flat.end())
            cursor.skip()
            return values
    if depth > _DEPTH:
        raise cursor.error(f"at most {_DEPTH} nested braces")
    cursor.expect("{")
    items: list[InitialValue] = []
    if cursor.accept("}"):
        return ()
    while True:
        items.append(_initial(cursor, depth=depth + 1))
        if cursor.accept("}"):
            return tuple(items)
        if not cursor.accept(","):
            raise cursor.error("',' or '}'")


def _leaf(cursor: Cursor) -> InitialValue:
    masked = cursor.maybe(_MASK)
    if masked is not None:
        symbol = _symbol(cursor)
        cursor.expect(")")
        return Initializer(symbol.name, symbol.offset, symbol.generic, integer(masked[1]))
    literal = cursor.maybe(_NUMBER)
    if literal is None:
        return _symbol(cursor)
    try:
        value = number(literal.group())
    except OperandError as error:
        raise cursor.error(error.expected, literal.start()) from None
    if value is None:
        raise cursor.error("a number or a symbol", literal.start())
    return value


def _symbol(cursor: Cursor) -> Initializer:
    name = cursor.take(NAME, "a number or a symbol")
    offset = 0
    generic = name == "generic" and cursor.accept("(")
    if generic:
        name = cursor.take(NAME, "a symbol")
        offset += _offset(cursor)
        cursor.expect(")")
    return Initializer(name, offset + _offset(cursor), generic)


def _offset(cursor: Cursor) -> int:
    if not cursor.at("+") and not cursor.at("-"):
        return 0
    negative = cursor.at("-")
    cursor.pos += 1
    cursor.skip()
    match = cursor.maybe(_SIGNED)
    if match is None:
        raise cursor.error("an integer offset")
    return integer(match[2], negative=negative != (match[1] == "-"))


def _integer(cursor: Cursor, expected: str) -> int:
    at = cursor.pos
    text = cursor.take(_INTEGER, expected)
    try:
        return integer(text)
    except OperandError as error:
        raise cursor.error(error.expected, at) from None


class _Integers(dict[str, Immediate]):
    """Integer literals by text: the values in an initialiser's table often repeat."""

    def __missing__(self, text: str) -> Immediate:
        value = number(text.strip())
        if value is None:
            raise OperandError("an integer")
        self[text] = value
        return value


def _integers(text: str) -> InitialValue:
    """Parse a comma-separated list of decimal integers."""
    table = _Integers()
    return tuple([table[item] for item in text.split(",")]) if text.strip() else ()
