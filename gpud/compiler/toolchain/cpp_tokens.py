"""Splits CUDA C++ into tokens, for what is told of a source without parsing it."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["Token", "in_one_branch", "split_tokens"]

# Kinds: the groups; `mark` is part of a raw string and `mark_of` a sign.
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//(?:\\\n|[^\n])*|/\*.*?(?:\*/|\Z))
    |(?P<directive>\#(?:/\*.*?\*/|\\\n|[^\n])*)
    |(?P<string>(?:u8|[uUL])?R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"
        |(?:u8|[uUL])?"(?:\\.|[^"\\\n])*"|(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
    |(?P<name>[A-Za-z_$][\w$]*)|(?P<number>\.?\d(?:[eEpP][+-]|'\w|[\w.])*)
    |(?P<mark_of>::|->|.)""",
    re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(r"#\s*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif)\b")


class Token(NamedTuple):
    """A token or a directive, with its kind and where it begins and ends."""

    kind: str
    text: str
    start: int
    end: int


def split_tokens(text: str) -> list[Token]:
    """Split into tokens, directives among them, without space and comments."""
    tokens = []
    fresh = True  # only space since the line began: where a directive may stand
    position = 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup or "mark_of"
        if kind == "mark":
            kind = "string"
        if kind == "directive" and not fresh:
            match = re.compile("#").match(text, position)
            assert match is not None
            kind = "mark_of"
        position = match.end()
        if kind == "skip":
            fresh = fresh or "\n" in match[0]
            continue
        fresh = False
        tokens.append(Token(kind, match[0], match.start(), match.end()))
    return tokens


def in_one_branch(tokens: list[Token]) -> list[Token]:
    """Return ``tokens`` without directives, and of unbalanced conditionals the first branch."""
    root: list[Token] = []
    stack: list[list[list[Token]]] = [[root]]
    for token in tokens:
        condition = _CONDITION.match(token.text) if token.kind == "directive" else None
        if condition is None:
            if token.kind != "directive":
                stack[-1][-1].append(token)
        elif condition[1].startswith("if"):
            stack.append([[]])
        elif condition[1].startswith("el") and len(stack) > 1:
            stack[-1].append([])
        elif len(stack) > 1:
            branches = stack.pop()
            whole = all(sum(_depth(t) for t in branch) == 0 for branch in branches)
            chosen = branches if whole else branches[:1]
            stack[-1][-1].extend(token for branch in chosen for token in branch)
    for left_open in stack[1:]:
        root.extend(token for branch in left_open for token in branch)
    return root


def _depth(token: Token) -> int:
    return (token.text == "{") - (token.text == "}") if token.kind == "mark_of" else 0
