"""Declarations of C++ by their tokens: what the head of one says, and where it ends."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpud.compiler.toolchain.cpp_tokens import Token

__all__ = ["CLASS_KEYS", "DeclarationReader", "Head"]

CLASS_KEYS = frozenset({"class", "struct", "union", "enum"})
_WITH_GROUP = frozenset(
    {
        "__attribute__", "__align__", "alignas", "__launch_bounds__", "__cluster_dims__",
        "__maxnreg__", "__block_size__", "decltype", "noexcept", "explicit", "__declspec",
        "requires", "throw",
    }
)  # fmt: skip
_IN_DEVICE_STD = frozenset(
    {"move", "forward", "size_t", "ptrdiff_t", "nullptr_t", "initializer_list", "numeric_limits"}
)
_OPENING = {"(": ")", "{": "}", "[": "]"}


class Head(NamedTuple):
    """A declaration up to its body, initialiser or end.

    Attributes:
        first, last: Its tokens; ``last`` is the one that ended the head.
        begin: The first token behind ``template <...>``.
        parameters: The token that opens its parameters; None: it has none.
        names: The identifiers outside of groups.
    """

    first: int
    begin: int
    last: int
    parameters: int | None
    names: tuple[str, ...]


class DeclarationReader:
    """Reads declarations, and their parts, of a text's tokens; places in it are their indices.

    Args:
        tokens: of the text.
        spaces: words that stand for an execution or memory space.
    """

    def __init__(self, tokens: Iterable[Token], spaces: frozenset[str]) -> None:
        self._spaces = spaces
        self._tokens = list(tokens)
        behind = self._tokens[-1].end if self._tokens else 0
        # Several at the end: some looks go a few tokens ahead.
        self._tokens += [Token("end", "", behind, behind)] * 8

    def _head(self, first: int) -> Head:
        at = first
        while self._tokens[at].text == "template" and self._tokens[at + 1].text == "<":
            at = self._behind_angles(at + 1)
        begin = at
        parameters = None
        names: list[str] = []
        while True:
            token = self._tokens[at]
            if token.kind == "end" or token.text in (";", "{", "}"):
                break
            if token.kind == "name":
                names.append(token.text)
                grouped = token.text in _WITH_GROUP and self._tokens[at + 1].text == "("
                is_operator = token.text == "operator"
                if is_operator:
                    at += 1  # its sign, which may be "=" or "("
                    while self._tokens[at + 1].text in (
                        "=",
                        ")",
                        "]",
                        "<",
                        ">",
                        "|",
                        "&",
                        "+",
                        "-",
                    ):
                        at += 1
                at = self._behind(at + 1) if grouped else at + 1
                continue
            if token.text == "=" or (token.text == ":" and parameters is not None):
                break
            if token.text == "(" and parameters is None and not self._is_pointer(at):
                parameters = at
            at = self._behind(at) if token.text in _OPENING else at + 1
        return Head(first, begin, at, parameters, tuple(names))

    def _end(self, head: Head) -> int:
        """Return where the declaration behind the head ends: the token behind it."""
        at = head.last
        if self._tokens[at].text == ":":
            at = self._behind_initialisers(at + 1)
        if self._tokens[at].text == "{" and head.parameters is not None:
            at = self._behind(at)
            while self._tokens[at].text == "catch":
                at = self._behind(self._until(at, "{"))
            return at
        return self._until(at, ";") + 1

    def _behind_initialisers(self, at: int) -> int:
        """Return the body's brace behind a constructor's ``: a(1), b{2}``."""
        while True:
            while self._tokens[at].text not in ("(", "{", ";", "<") and self._more(at):
                at += 1
            if self._tokens[at].text == "<":
                at = self._behind_angles(at)
                continue
            if self._tokens[at].text not in ("(", "{"):
                return at
            at = self._behind(at)
            while self._tokens[at].text == ".":
                at += 1
            if self._tokens[at].text != ",":
                return at
            at += 1

    def _is_macro_call(self, at: int) -> bool:
        """Whether ``NAME(...)`` stands alone before something that begins a declaration."""
        if self._tokens[at].kind != "name" or self._tokens[at + 1].text != "(":
            return False
        if self._tokens[at].text in _WITH_GROUP or self._tokens[at].text in self._spaces:
            return False
        behind = self._tokens[self._behind(at + 1)]
        return behind.kind == "name" and behind.text not in ("const", "noexcept", "override")

    def _class_name(self, head: Head) -> int:
        """Return the token that names a class: the last name before its bases or body."""
        at = named = head.begin
        while at < head.last and self._tokens[at].text not in (":", "<"):
            token = self._tokens[at]
            if token.text in _WITH_GROUP and self._tokens[at + 1].text == "(":
                at = self._behind(at + 1)
                continue
            if token.kind == "name" and token.text != "final":
                named = at
            at += 1
        return named

    def _is_forward(self, head: Head) -> bool:
        """Whether the head is ``struct S`` and no more, so that it declares no variable."""
        if "enum" in head.names:
            return True
        keys = [i for i in range(head.begin, head.last) if self._tokens[i].text in CLASS_KEYS]
        return bool(keys) and self._class_name(head) == keys[0] + 1

    def _is_pointer(self, at: int) -> bool:
        """Whether a parenthesis opens the name of a pointer to a function, ``(*f)``."""
        while self._tokens[at + 1].kind == "name" and self._tokens[at + 2].text == "::":
            at += 2
        return self._tokens[at + 1].text in ("*", "&")

    def _is_constant(self, head: Head) -> bool:
        if "constexpr" in head.names:
            return True
        words = [t.text for t in self._tokens[head.begin : head.last]]
        if "const" not in words:
            return False
        return "*" not in words[max(i for i, w in enumerate(words) if w == "const") :]

    def _declared(self, head: Head) -> tuple[str, ...]:
        """Return the name that the head declares, as well as it can be told."""
        stop = head.last if head.parameters is None else head.parameters
        words = [t.text for t in self._tokens[head.begin : stop] if t.kind == "name"]
        return tuple(words[-1:])

    def _names_host_library(self, at: int, end: int) -> bool:
        """Whether tokens name what only the host has: ``std::vector``, ``FILE``."""
        for i in range(at, end):
            word = self._tokens[i].text
            if word in ("FILE", "thrust"):
                return True
            if word == "std" and self._tokens[i + 1].text == "::":
                if self._tokens[i - 1].text == "::" and self._tokens[i - 2].text == "cuda":
                    continue
                name = self._tokens[i + 2].text
                if name not in _IN_DEVICE_STD and not re.fullmatch(r"u?int\w*_t", name):
                    return True
        return False

    # -- tokens ----------------------------------------------------------------------------------

    def _more(self, at: int) -> bool:
        return self._tokens[at].kind != "end"

    def _behind(self, at: int) -> int:
        """Return what follows the bracket that matches the one at ``at``."""
        depth = 0
        while self._more(at):
            token = self._tokens[at]
            if token.kind == "mark_of":
                depth += (token.text in _OPENING) - (token.text in _OPENING.values())
            at += 1
            if depth <= 0:
                break
        return at

    def _behind_angles(self, at: int) -> int:
        depth = 0
        while self._more(at):
            text = self._tokens[at].text
            if text in _OPENING:
                at = self._behind(at)
                continue
            depth += (text == "<") - (text == ">")
            at += 1
            if depth <= 0:
                break
        return at

    def _until(self, at: int, texts: str) -> int:
        """Return the next token of one of these characters outside of brackets."""
        while self._more(at) and self._tokens[at].text not in tuple(texts):
            at = self._behind(at) if self._tokens[at].text in _OPENING else at + 1
        return at
