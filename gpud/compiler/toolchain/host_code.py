"""Takes host code out of CUDA C++, as nvcc does before it compiles for the device.

Problem: the file that a program consists of holds ``main``, launches and host functions beside its
kernels. NVRTC refuses every function and variable without an execution or memory space, before it
even looks into bodies full of names that do not exist here.

Approach: split the text into tokens, follow namespaces, classes and braces, and take each
declaration by its head, the tokens before its body or initialiser. Nothing is parsed beyond that,
and no preprocessor runs: of branches (``#if``, ``#else``) whose braces do not match, the first
counts. What is taken out becomes blanks; lines and conditional directives stay where they are.

What is host code:
    In a namespace: a function, defined or declared, a template of one, and a variable that is not
    constant, without ``__device__``, ``__global__``, ``__constant__``, ``__shared__`` or
    ``__managed__``, or a macro that stands for one of them (defined in the text or by an option,
    or unknown and named like one); a declaration that names what only the host's C++ library has,
    as ``std::vector``, and a class with such a member and no function for the device.
    In other classes: functions without a space become deleted ones, so that device code that
    calls them is refused instead of left with an object that was never constructed; static
    variables, and functions that are friends or name the host's library, go.
    A ``constexpr`` function without a space is no host code: it gets ``__device__``, as with
    nvcc's ``--expt-relaxed-constexpr``.

All that is not recognised stays, for NVRTC to refuse.

Properties:
    lines: every token that stays keeps its line;
    device code: no declaration with a space of the device is changed, nor one in its body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpud.compiler.toolchain.cpp_declarations import CLASS_KEYS, DeclarationReader, Head
from gpud.compiler.toolchain.cpp_tokens import in_one_branch, split_tokens

__all__ = ["DeviceCode", "without_host_code"]

_DEFINE = re.compile(r"#\s*define\s+(\w+)(.*)", re.DOTALL)
_KEPT_DIRECTIVE = re.compile(
    r"#\s*(if|ifdef|ifndef|elif|elifdef|elifndef|else|endif|define|undef)\b"
)
_LINE_DIRECTIVE = re.compile(r"#\s*line\s+(\d+)")
_OPTION = re.compile(r"\s*(?:-D|--define-macro=?)\s*(\w+)(?:=(.*))?", re.DOTALL)

_SPACES = frozenset({"__global__", "__device__", "__constant__", "__shared__", "__managed__"})
_NAMED_LIKE_A_SPACE = re.compile("DEVICE|GLOBAL|KERNEL|CUDA|HOST_DEV|_HD")
# Templates of types, concepts, and texture references, which CUDA has no more.
_FOR_THE_COMPILER = frozenset({"using", "concept", "texture", "surface"})


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What is left of a text.

    Attributes:
        text: As long as the original in lines.
        names: The line, counted from 1, of each function, variable and class that was taken out.
        empty: Nothing for the device is left.
    """

    text: str
    names: Mapping[str, int] = field(default_factory=dict)
    empty: bool = False


def without_host_code(text: str, options: Sequence[str] = ()) -> DeviceCode:
    """Return ``text`` without its host code.

    Args:
        text: CUDA C++.
        options: Those of the compiler; macros that they define may stand for spaces.
    """
    reader = _Reader(text, _macros_for_spaces(text, options))
    reader.read()
    return DeviceCode(reader.edited(), reader.names, not reader.device_declarations)


def _macros_for_spaces(text: str, options: Sequence[str]) -> frozenset[str]:
    """Return the macros whose text holds a space of the device, or such a macro."""
    texts: dict[str, str] = {}
    for option in options:
        if match := _OPTION.match(option):
            texts[match[1]] = match[2] or "1"
    for token in split_tokens(text):
        if token.kind == "directive" and (match := _DEFINE.match(token.text)):
            texts[match[1]] = texts.get(match[1], "") + match[2]
    words = {name: frozenset(re.findall(r"\w+", value)) for name, value in texts.items()}
    spaces = set(_SPACES)
    while more := [n for n, used in words.items() if n not in spaces and used & spaces]:
        spaces.update(more)
    unknown = re.findall(r"\b_*[A-Z][A-Z0-9_]*\b", text)
    spaces |= {n for n in unknown if n not in texts and _NAMED_LIKE_A_SPACE.search(n)}
    return frozenset(spaces)


class _Reader(DeclarationReader):
    """Goes through the declarations of a text and notes what to change."""

    def __init__(self, text: str, spaces: frozenset[str]) -> None:
        self._text = text
        self._all = split_tokens(text)
        super().__init__(in_one_branch(self._all), spaces)
        self._edits: list[tuple[int, int, str]] = []
        self.names: dict[str, int] = {}
        self.device_declarations = 0

    def read(self) -> None:
        """Go through the whole text."""
        at = 0
        while self._tokens[at].kind != "end":
            at = self._scope(at) + 1  # a stray brace is the compiler's to report

    def edited(self) -> str:
        """Return the text with the changes made, the first of those that overlap."""
        parts, position = [], 0
        kept = [t for t in self._all if t.kind == "directive" and _KEPT_DIRECTIVE.match(t.text)]
        for start, end, instead in sorted(self._edits, key=lambda edit: (edit[0], -edit[1])):
            if start < position:
                continue
            parts.append(self._text[position:start])
            parts.append(instead)
            inner = start
            for directive in kept:
                if start <= directive.start < end:
                    parts.append(_blank(self._text[inner : directive.start]))
                    parts.append(directive.text)
                    inner = directive.end
            parts.append(_blank(self._text[inner:end]))
            position = end
        parts.append(self._text[position:])
        return "".join(parts)

    # -- declarations ----------------------------------------------------------------------------

    def _scope(self, at: int, class_name: str | None = None) -> int:
        """Go through declarations until the brace that ends the scope; return where it is."""
        while self._tokens[at].kind != "end" and self._tokens[at].text != "}":
            at = self._declaration(at, class_name)
        return at

    def _declaration(self, at: int, class_name: str | None) -> int:
        """Go through one declaration; return where the next begins."""
        word = self._tokens[at].text
        if word == ";":
            return at + 1
        if class_name is not None and word in ("public", "private", "protected"):
            return at + 2
        if word in ("namespace", "inline") and "namespace" in (word, self._tokens[at + 1].text):
            end = self._until(at, "{;")
            return self._scope(end + 1) + 1 if self._tokens[end].text == "{" else end + 1
        if word == "extern" and self._tokens[at + 1].kind == "string":
            if self._tokens[at + 2].text == "{":
                return self._scope(at + 3) + 1
        if word == "typedef" and self._tokens[at + 1].text in CLASS_KEYS:
            if self._tokens[self._until(at, "{;(")].text == "{":
                return self._class(self._head(at + 1)._replace(first=at))
        if word in ("using", "typedef", "static_assert", "asm", "friend"):
            end = self._until(at, ";")
            is_function = word == "friend" and any(t.text == "(" for t in self._tokens[at:end])
            if not is_function:
                if word in ("using", "typedef") and self._names_host_library(at, end):
                    self._take_out(at, end)
                return end + 1
        if self._is_macro_call(at):
            return self._behind(at + 1)
        return self._classified(self._head(at), class_name)

    def _classified(self, head: Head, class_name: str | None) -> int:
        opening = self._tokens[head.last].text
        is_class = head.parameters is None and any(n in CLASS_KEYS for n in head.names[:8])
        if opening == "{" and is_class:
            return self._class(head)
        end = self._end(head)
        if any(name in self._spaces for name in head.names):
            self.device_declarations += 1
        elif any(name in _FOR_THE_COMPILER for name in head.names):
            pass
        elif head.parameters is None:
            if not (is_class and self._is_forward(head)):
                self._variable(head, end, class_name)
        else:
            self._function(head, end, class_name)
        return end

    def _variable(self, head: Head, end: int, class_name: str | None) -> None:
        foreign = self._names_host_library(head.first, head.last)
        if class_name is not None:
            if "static" in head.names and not self._is_constant(head):
                self._take_out(head.first, end - 1)
        elif foreign or not self._is_constant(head):
            self._take_out(head.first, end - 1, self._declared(head))

    def _function(self, head: Head, end: int, class_name: str | None) -> None:
        assert head.parameters is not None
        foreign = self._names_host_library(head.first, head.last)
        if class_name is None and head.names[:1] == ("template",) and head.begin == head.first:
            self._take_out(head.first, end - 1)  # an explicit instantiation
        elif "constexpr" in head.names and "__host__" not in head.names and not foreign:
            constexpr = next(
                token for token in self._tokens[head.begin : head.last] if token.text == "constexpr"
            )
            self._edits.append((constexpr.end, constexpr.end, " __device__"))
        elif class_name is None or "friend" in head.names or foreign:
            self._take_out(head.first, end - 1, self._declared(head))
        elif len(head.names) == 1 and self._declared(head) != (class_name,):
            pass  # a macro among the members
        elif self._tokens[head.last].text != "=":  # = default, = delete and = 0 stay
            last, stop = self._tokens[head.last], self._tokens[end - 1]
            for token in self._tokens[head.first : head.last]:
                if token.text == "__host__":
                    self._edits.append((token.start, token.end, ""))
            self._edits.append((last.start, stop.end, "= delete;"))

    def _class(self, head: Head) -> int:
        """Go through a class; it goes as a whole if only the host can have it."""
        body, edits, names = head.last + 1, len(self._edits), dict(self.names)
        devices = self.device_declarations
        if "enum" in head.names:
            close = self._behind(head.last) - 1
        else:
            close = self._scope(body, self._tokens[self._class_name(head)].text)
        end = self._until(close, ";")
        if devices == self.device_declarations and self._has_host_member(body, close):
            del self._edits[edits:]
            self.names = names
            self._take_out(head.first, end, (self._tokens[self._class_name(head)].text,))
        return end + 1

    def _has_host_member(self, at: int, close: int) -> bool:
        """Whether a data member is of the host's library; functions' bodies do not count."""
        while at < close:
            if self._tokens[at].text == "{":
                at = self._behind(at)
                continue
            if self._names_host_library(at, at + 1):
                end = self._until(at, "{;(=")
                if self._tokens[end].text in ";=" and end < close:
                    return True
            at += 1
        return False

    # -- changes ---------------------------------------------------------------------------------

    def _take_out(self, first: int, last: int, names: Sequence[str] = ()) -> None:
        start, end = self._tokens[first].start, self._tokens[last].end
        self._edits.append((start, end, ""))
        for name in names:
            self.names.setdefault(name, self._line(start))

    def _line(self, position: int) -> int:
        """Return the number of a line, as the compiler counts: from the last ``#line`` on."""
        begin, number = 0, 1
        for token in self._all:
            if token.start >= position:
                break
            if token.kind == "directive" and (match := _LINE_DIRECTIVE.match(token.text)):
                begin, number = token.end, int(match[1]) - 1
        return self._text.count("\n", begin, position) + number


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)
