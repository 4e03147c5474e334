"""Parses directives that are kept as text: those of functions and modules, and unknown ones."""

from __future__ import annotations

import re

from gpud.compiler.ptx.cursor import Cursor
from gpud.compiler.ptx.lexicon import STRING
from gpud.compiler.ptx.model import Directive

__all__ = ["KEYWORD", "STRINGS", "attribute", "comma_separated", "directive"]

KEYWORD = re.compile(r"\.[A-Za-z][\w]*+", re.ASCII)
_FILE = re.compile(rf"\.file\s+[0-9]+\s*{STRING}(?:\s*,\s*[0-9]+\s*,\s*[0-9]+)?|\.file\s*{STRING}")
_SECTION = re.compile(r"\.section\s+[\w.$]+[^{};]*?(?=\{)", re.ASCII)
_PLAIN_DIRECTIVE = re.compile(rf'\.[A-Za-z]\w*(?:[^;{{}}\n"/]|{STRING}|/(?![/*]))*+;?', re.ASCII)
_DWARF = re.compile(r"@@[^\n]*")
_BRACES = re.compile(rf"[{{}}]|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/|{STRING}")
STRINGS = re.compile(rf"{STRING}(?:\s*,\s*{STRING})*")
_ATTRIBUTE_NUMBERS = re.compile(r"\w+(?:\s*,\s*\w+)*", re.ASCII)
_PARENTHESES = re.compile(r"\((?:[^();{}]|\([^();{}]*\))*\)")
_STRING = re.compile(STRING)


def attribute(cursor: Cursor) -> str:
    """Parse a directive between a function's parameters and its body; normalises white space."""
    word = cursor.take(KEYWORD, "a directive")
    if cursor.at("("):
        return f"{word}{cursor.take(_PARENTHESES, 'attributes in parentheses')}"
    strings = cursor.maybe(STRINGS)
    if strings is not None:
        cursor.accept(";")
        return f"{word} {comma_separated(strings.group())}"
    numbers = cursor.maybe(_ATTRIBUTE_NUMBERS)
    return f"{word} {comma_separated(numbers.group())}" if numbers else word


def directive(cursor: Cursor, expected: str) -> Directive:
    """Parse a directive that is kept as text, with its block in braces if it has one."""
    line, start = cursor.line, cursor.pos
    text = cursor.text
    match = _FILE.match(text, start) or _DWARF.match(text, start)
    if match is None:
        match = _SECTION.match(text, start) or _PLAIN_DIRECTIVE.match(text, start)
        if match is None:
            raise cursor.error(expected)
        if text.startswith("{", match.end()):
            match = _closing_brace(cursor, match.end())
    cursor.move(match.end())
    cursor.skip()
    return Directive(text[start : match.end()].rstrip(), line)


def _closing_brace(cursor: Cursor, start: int) -> re.Match[str]:
    depth = 0
    for match in _BRACES.finditer(cursor.text, start):
        mark = match.group()
        if mark == "{":
            depth += 1
        elif mark == "}":
            depth -= 1
            if depth == 0:
                return match
    raise cursor.error("a closing '}'", start)


def comma_separated(text: str) -> str:
    """Return ``text``, a list of words or of strings, with one space after each comma."""
    if '"' in text:
        return ", ".join(_STRING.findall(text))
    return ", ".join(item.strip() for item in text.split(","))
