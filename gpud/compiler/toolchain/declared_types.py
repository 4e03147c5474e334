"""Tells what kernels' pointer parameters point to, as far as it can be read without a compiler.

Problem: an array of another type than the kernel's gives wrong results without a word, so every
session warns of it. `gpud.compiler.toolchain.pointer_types` knows all types, but compiles the
source a second time, which is worth it in the checking mode only.

Approach: a mangled name in the PTX has the types of the parameters. For ``extern "C"`` kernels, the
list of parameters in the source is read, and what is spelt with keywords in it is known.

Properties:
    no guesses: what is not understood has no types: a mangled name with other parts than those
        below; in the source a pointer to a typedef, and a list with a macro or a directive in it,
        or of a kernel with two declarations that differ (all branches of an ``#if`` are read).

Type words are those of `gpud.compiler.toolchain.pointer_types`. Source: Itanium C++ ABI, section
5.1 (mangled names).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gpud.compiler.toolchain.cpp_tokens import Token, split_tokens

__all__ = ["declared_types"]

_OPTION = re.compile(r"\s*(?:-D|--define-macro=?)\s*(\w+)")
_DEFINE = re.compile(r"#\s*define\s+(\w+)")
_QUALIFIERS = frozenset(
    {"const", "volatile", "__restrict__", "__restrict", "restrict", "__grid_constant__"}
)
_KEYWORDS = frozenset(
    {"unsigned", "signed", "short", "int", "long", "char", "float", "double", "bool", "void"}
)


def declared_types(
    entries: Iterable[str], source: str | None, options: Sequence[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return the type words of kernels' parameters, by entry; kernels not understood are left out.

    Args:
        entries: Names in the PTX.
        source: CUDA C++; None: only the mangled names are read.
        options: Those of the compiler, which may define macros.
    """
    found: dict[str, tuple[str, ...]] = {}
    plain = []
    for entry in entries:
        if entry.startswith("_Z"):
            words = _MangledName(entry).parameters()
            if words:
                found[entry] = words
        else:
            plain.append(entry)
    if plain and source is not None and "*" in source:
        found |= _in_source(plain, source, options)
    return found


# -- the source ----------------------------------------------------------------------------------


def _in_source(
    names: Sequence[str], source: str, options: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    tokens = split_tokens(source)
    macros = {match[1] for option in options if (match := _OPTION.match(option))}
    for token in tokens:
        if token.kind == "directive" and (match := _DEFINE.match(token.text)):
            macros.add(match[1])
    wanted = frozenset(names) - macros
    declared: dict[str, set[tuple[str, ...]]] = {}
    for at, token in enumerate(tokens[:-1]):
        if token.text in wanted and tokens[at + 1].text == "(" and _is_kernel(tokens, at):
            words = _list(tokens, at + 1, macros)
            declared.setdefault(token.text, set()).add(words)
    return {name: next(iter(lists)) for name, lists in declared.items() if len(lists) == 1}


def _is_kernel(tokens: Sequence[Token], at: int) -> bool:
    """Return whether the declaration of which a token is the name has ``__global__`` before it."""
    for token in reversed(tokens[:at]):
        if token.text == "__global__":
            return True
        if token.text in (";", "{", "}"):
            return False
    return False


def _list(tokens: Sequence[Token], opening: int, macros: set[str]) -> tuple[str, ...]:
    """Return the type words of the list that begins at ``opening``; nothing if it is no plain one.

    Every token of a plain list is a name, ``*`` or ``::``.
    """
    words: list[str] = []
    one: list[str] = []
    for token in tokens[opening + 1 :]:
        if token.text in (",", ")"):
            words.append(_word(one))
            if token.text == ")":
                return tuple(words)
            one = []
        elif token.text in macros or not (token.kind == "name" or token.text in ("*", "::")):
            return ()
        elif token.text not in _QUALIFIERS:
            one.append(token.text)
    return ()


def _word(parts: Sequence[str]) -> str:
    kind = [part for part in parts if part in _KEYWORDS]
    rest = [part for part in parts if part not in _KEYWORDS]
    if not kind or rest[:1] != ["*"] or len(rest) > 2 or rest[1:] == ["*"]:
        return ""  # a value, or a pointer to something else
    if "float" in kind:
        return "f4"
    if "double" in kind:
        return "" if "long" in kind else "f8"
    if "void" in kind or "char" in kind or "bool" in kind:
        return ""
    return "i2" if "short" in kind else "i8" if "long" in kind else "i4"


# -- mangled names -------------------------------------------------------------------------------

_CODES = dict.fromkeys("vbahcwnoegz", "") | {
    "f": "f4", "d": "f8", "s": "i2", "t": "i2", "i": "i4", "j": "i4", "l": "i8", "m": "i8",
    "x": "i8", "y": "i8",
}  # fmt: skip
"""What a builtin type is, by its letter; types of one byte and those of no number are ``""``."""
_LENGTH = re.compile(r"\d{1,9}")
_POINTERS = re.compile(r"(?:P|[rVK]+)*")
_SUBSTITUTION = re.compile(r"S([0-9A-Z]{0,9})_")
_TEMPLATE_PARAMETER = re.compile(r"T([0-9A-Z]{0,9})_")
_LITERAL = re.compile(r"L[a-z]n?\d+E")


class _NotUnderstood(Exception):
    """A part of another form."""


class _MangledName:
    """Reads a mangled name from its begin to its end.

    A type is what it is as a value, and what it points to: ``("", "f4")`` is a ``float*``.
    """

    def __init__(self, name: str) -> None:
        self._text = name
        self._at = len("_Z")
        self._seen: list[tuple[str, str]] = []  # what substitutions stand for
        self._arguments: list[tuple[str, str]] = []

    def parameters(self) -> tuple[str, ...]:
        """Return the type words of the parameters; nothing if the name is not understood."""
        try:
            if self._name():  # a template: the type of its result comes first
                self._type()
            words = []
            while self._at < len(self._text):
                words.append(self._type()[1])
        except (_NotUnderstood, IndexError):
            return ()
        return tuple(words)

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            raise _NotUnderstood
        self._at = match.end()
        return match

    def _name(self) -> bool:
        """Read the function's name; return whether it is a template's."""
        if not self._takes("N"):
            self._identifier()
            return self._template_arguments()
        while True:
            self._identifier()
            if self._takes("E"):
                return False
            self._see(("", ""))
            if self._text[self._at] == "I":
                self._read_arguments()
                if not self._takes("E"):  # of a class
                    raise _NotUnderstood
                return True

    def _identifier(self) -> None:
        self._takes("L")
        length = int(self._match(_LENGTH)[0])
        self._at += length
        if self._at > len(self._text):
            raise _NotUnderstood

    def _template_arguments(self) -> bool:
        if self._text[self._at : self._at + 1] != "I":
            return False
        self._see(("", ""))
        self._read_arguments()
        return True

    def _read_arguments(self) -> None:
        self._at += 1
        while not self._takes("E"):
            if self._text[self._at] == "L":
                self._match(_LITERAL)
                self._arguments.append(("", ""))
            else:
                self._arguments.append(self._type())

    def _see(self, kind: tuple[str, str]) -> tuple[str, str]:
        self._seen.append(kind)
        return kind

    def _type(self) -> tuple[str, str]:
        around = re.findall("P|[rVK]+", self._match(_POINTERS)[0])
        kind = self._bare_type()
        for one in reversed(around):
            kind = self._see(("", kind[0]) if one == "P" else kind)
        return kind

    def _bare_type(self) -> tuple[str, str]:
        letter = self._text[self._at]
        if letter == "S":
            return self._seen[_number(self._match(_SUBSTITUTION)[1])]
        if letter == "T":
            return self._see(self._arguments[_number(self._match(_TEMPLATE_PARAMETER)[1])])
        if letter.isdigit():  # a class
            self._identifier()
            if self._text[self._at : self._at + 1] == "I":  # of a template
                raise _NotUnderstood
            return self._see(("", ""))
        if letter not in _CODES:
            raise _NotUnderstood
        self._at += 1
        return _CODES[letter], ""


def _number(written: str) -> int:
    return int(written, 36) + 1 if written else 0
