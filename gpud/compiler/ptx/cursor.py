"""The parser's position in a PTX text: token matching, line counting and syntax errors."""

from __future__ import annotations

import re

from gpud.compiler.ptx.lexicon import BLANK
from gpud.errors import PTXSyntaxError

__all__ = ["Cursor"]

_FOUND = re.compile(r"[\w$%.]++|\S", re.ASCII)


class Cursor:
    """A position in ``text``. Between calls it is at a token, never at white space.

    ``pos`` is an index into ``text``, ``line`` the 1-based line of that index.
    """

    __slots__ = ("line", "pos", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.pos = 0
        self.line = 1

    def skip(self) -> None:
        """Skip white space and comments."""
        pos = self.pos
        first = self.text[pos : pos + 1]
        if first > " " and first != "/":
            return
        match = BLANK.match(self.text, pos)
        if match is not None and (end := match.end()) != pos:
            self.line += self.text.count("\n", pos, end)
            self.pos = end

    def move(self, end: int) -> None:
        """Move to ``end``, and counts the lines in between."""
        self.line += self.text.count("\n", self.pos, end)
        self.pos = end

    def at(self, token: str) -> bool:
        """Return whether the text continues with ``token``."""
        return self.text.startswith(token, self.pos)

    def accept(self, token: str) -> bool:
        """Consume a punctuation mark if the text continues with it."""
        if not self.text.startswith(token, self.pos):
            return False
        self.pos += len(token)
        self.skip()
        return True

    def expect(self, token: str) -> None:
        """Consume a punctuation mark, or raises."""
        if not self.accept(token):
            raise self.error(f"'{token}'")

    def maybe(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Consume what ``pattern`` matches at this position, if it matches."""
        pos = self.pos
        match = pattern.match(self.text, pos)
        if match is not None:
            self.line += self.text.count("\n", pos, match.end())
            self.pos = match.end()
            self.skip()
        return match

    def take(self, pattern: re.Pattern[str], expected: str) -> str:
        """Consume and return what ``pattern`` matches, or raises an error with ``expected``."""
        match = self.maybe(pattern)
        if match is None:
            raise self.error(expected)
        return match.group()

    def error(self, expected: str, pos: int | None = None) -> PTXSyntaxError:
        """Return the syntax error for this position, or for ``pos``; does not move."""
        at = self.pos if pos is None else pos
        start = self.text.rfind("\n", 0, at) + 1
        line = self.text.count("\n", 0, at) + 1
        if at >= len(self.text):
            next_text = "the end of the text"
        elif self.text.startswith("/*", at):
            expected, next_text = "'*/' at the end of the comment", "the end of the text"
        elif self.text[at] == "\n":
            next_text = "the end of the line"
        else:
            match = _FOUND.match(self.text, at)
            next_text = repr(match.group()[:40]) if match else repr(self.text[at])
        return PTXSyntaxError(
            f"expected {expected}, found {next_text}",
            line=line,
            column=at - start + 1,
            text=self.text[start:].split("\n", 1)[0].strip() or None,
        )
