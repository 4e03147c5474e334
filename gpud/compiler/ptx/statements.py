"""Parses function bodies, which are nearly all lines of a program.

The fast path is the loop over `_FAST` in `StatementParser.body`; the slow path is
`StatementParser._statement` and what it calls. See `gpud.compiler.ptx.parser` for the approach.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpud.compiler.ptx.constants import OperandError
from gpud.compiler.ptx.cursor import Cursor
from gpud.compiler.ptx.declarations import NAME, parameters, registers, variables
from gpud.compiler.ptx.directives import KEYWORD, STRINGS, attribute, comma_separated, directive
from gpud.compiler.ptx.lexicon import (
    IDENTIFIER,
    covers_special_register,
    is_special_register,
)
from gpud.compiler.ptx.model import (
    BranchTargets,
    CallPrototype,
    CallTargets,
    Guard,
    Instruction,
    Label,
    Location,
    Opcode,
    Operand,
    Pragma,
    Register,
    RegisterDeclaration,
    Scope,
    Statement,
    Symbol,
    opcode,
)
from gpud.compiler.ptx.operands import shared_table, split_operands

__all__ = ["LINKAGE", "SPACES", "StatementParser"]

LINKAGE = re.compile(r"\.(visible|extern|weak|common)(?!\w)")
SPACES = (".global", ".const", ".shared", ".local", ".param", ".tex")

_LISTS = (".branchtargets", ".calltargets", ".callprototype")

# One instruction without parentheses (calls), strings or comments inside, and the end of its line
# if it stands there.
_FAST = re.compile(
    r"[ \t]*+(?:@(!?[A-Za-z_$%][\w$]*+)[ \t]++)?([a-z][\w.:]*+)(?<!:)"
    r"(?:[ \t]++([^;\n\"/()@]++))?;[ \t]*+(?:(?://[^\n]*+)?\n)?",
    re.ASCII,
)
_FAST_LABEL = re.compile(r"([A-Za-z_$][\w$]*+):[ \t]*+\n", re.ASCII)
_FAST_REGISTER = re.compile(
    r"[ \t]*+\.reg[ \t]++\.((?!v[248]\b)[a-z]\w*+)[ \t]++"
    r"([%A-Za-z_$][\w$]*+)(?:<([1-9][0-9]{0,5})>|((?:,[ \t]*+[%A-Za-z_$][\w$]*+)++))?;[ \t]*+\n?",
    re.ASCII,
)
_VECTOR_PARTS = re.compile(
    r"\s*(\{[^{}]*+\}(?=\s*(?:,|$))|[^\s,{}][^,{}]*+(?=,|$)|\S)(?:\s*,(?!\s*$)|\s*$)?"
)

_LOC = re.compile(
    r"\.loc\s+([0-9]+\s+[0-9]+\s+[0-9]+(?:\s*,\s*function_name\s+[\w$%.]+(?:\s*\+\s*\w+)?"
    r"\s*,\s*inlined_at\s+[0-9]+\s+[0-9]+\s+[0-9]+)?)",
    re.ASCII,
)
_USED_BYTES = re.compile(r'"used_bytes_mask\s+(0[xX][0-9a-fA-F]{1,8}|[1-9][0-9]{0,9})U?"', re.ASCII)
_LABEL = re.compile(rf"({IDENTIFIER})\s*:(?!:)", re.ASCII)
_GUARD = re.compile(rf"@\s*(!?)\s*({IDENTIFIER})", re.ASCII)
_DEPTH = 64
_OPCODE = re.compile(r"[a-z]\w*(?:(?:\.|::)\w+)*", re.ASCII)
_MODIFIERS = re.compile(r"(?:(?:\.|::)\w+)+", re.ASCII)
_OPERANDS = re.compile(
    r'(?:[^;/"@]++|/(?![/*])|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+(?=;)',
)
_COMMENT = re.compile(r"//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/")
_NOT_NEWLINE = re.compile(r"[^\n]")


class StatementParser(Cursor):
    """A cursor that parses bodies.

    ``table`` maps operand texts to nodes under the declarations visible at the cursor.
    """

    __slots__ = ("_depth", "_guards", "_masks", "_opcodes", "_percent_labels", "table")

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.table = shared_table()
        self._depth = 0
        self._guards = _Guards()
        self._opcodes = _Opcodes()
        self._percent_labels = False
        self._masks = False

    def function_body(self) -> list[Statement]:
        """Parse the statements of a function, from ``{`` to after ``}``."""
        body = self.body()
        if self._percent_labels:
            _resolve_percent_labels(body)
            self._percent_labels = False
        if self._masks:
            _join_masks(body)
            self._masks = False
        return body

    def body(self) -> list[Statement]:
        """Parse the statements of ``{ ... }``, from ``{`` to after ``}``."""
        opening, table = self.pos, self.table
        if self._depth == _DEPTH:
            raise self.error(f"at most {_DEPTH} nested scopes")
        self._depth += 1
        self.pos += 1  # '{'
        self.skip()
        out: list[Statement] = []
        append = out.append
        text, end, pos, line = self.text, len(self.text), self.pos, self.line
        fast, label, register = _FAST.match, _FAST_LABEL.match, _FAST_REGISTER.match
        look_up, guards, opcodes = table.__getitem__, self._guards, self._opcodes
        while True:
            match = fast(text, pos)
            if match is not None:
                guard, name, rest = match.groups()
                try:
                    if rest is None:
                        operands: tuple[Operand, ...] = ()
                    elif "{" in rest:
                        operands = tuple(map(look_up, _VECTOR_PARTS.findall(rest)))
                    else:
                        operands = tuple(map(look_up, rest.split(", ")))
                    made = Instruction(opcodes[name], operands, None, line)
                except OperandError:  # the slow path knows more layouts, and finds the column
                    self.pos, self.line = pos, line
                    self.skip()
                    self._instruction(out)
                    pos, line = self.pos, self.line
                    continue
                if guard is not None:
                    made.guard = guards[guard]
                append(made)
                pos = match.end()
                if text[pos - 1] == "\n":
                    line += 1
                continue
            first = text[pos : pos + 1]
            if first == "\n":
                pos += 1
                line += 1
                continue
            match = label(text, pos)
            if match is not None:
                append(Label(match[1], line))
                pos = match.end()
                line += 1
                continue
            match = register(text, pos)
            if match is not None:
                out += self._registers(match, line)
                if self.table is not table:
                    table = self.table
                    look_up = table.__getitem__
                pos = match.end()
                if text[pos - 1] == "\n":
                    line += 1
                continue
            self.pos, self.line = pos, line
            self.skip()
            if self.pos != pos:
                pos, line = self.pos, self.line
                continue
            if pos >= end:
                raise self.error(f"'}}' for the '{{' in line {text.count(chr(10), 0, opening) + 1}")
            if first == "}":
                self.pos += 1
                self._depth -= 1
                self.skip()
                return out
            self._statement(out)
            pos, line = self.pos, self.line
            if self.table is not table:
                table = self.table
                look_up = table.__getitem__

    def _statement(self, out: list[Statement]) -> None:
        """Parse any statement, token by token; the cursor is at its first token."""
        line = self.line
        text = self.text
        first = text[self.pos]
        if first == ".":
            self._body_directive(out)
        elif first == "{":
            outer = self.table
            out.append(Scope(self.body(), line))
            self.table = outer
        else:
            match = self.maybe(_LABEL)
            if match is None:
                self._instruction(out)
            elif self.at(".") and (word := KEYWORD.match(text, self.pos)) is not None:
                self._labelled_directive(out, match[1], word.group(), line)
            else:
                self._percent_labels = self._percent_labels or match[1][0] == "%"
                out.append(Label(match[1], line))

    def _body_directive(self, out: list[Statement]) -> None:
        line, at = self.line, self.pos
        match = self.maybe(_LOC) if self.at(".loc") else None
        if match is not None:
            out.append(Location(match[1], line))
            return
        linkage = self.maybe(LINKAGE)
        word = self.maybe(KEYWORD)
        keyword = word.group() if word else ""
        if keyword == ".reg":
            declared = registers(self, line)
            out.extend(declared)
            self._declare(declared)
        elif keyword in SPACES:
            parsed = variables(self, keyword[1:], linkage[1] if linkage else None, line)
            out.extend(parsed)
            names = self.table.names
            odd: dict[str, Operand] = {
                v.name: Symbol(v.name) for v in parsed if v.name[0] == "%" or v.name in names
            }
            if odd:
                self.table = self.table.declare(odd)
        elif keyword == ".pragma":
            strings = self.take(STRINGS, "a string")
            self.expect(";")
            out.append(Pragma(comma_separated(strings), line))
            self._masks = self._masks or _USED_BYTES.fullmatch(strings) is not None
        elif keyword in _LISTS and out and isinstance(label := out[-1], Label):
            out.pop()  # the label stood on a line of its own
            self.pos, self.line = at, line
            self._labelled_directive(out, label.name, keyword, label.line)
        else:
            self.pos, self.line = at, line
            out.append(directive(self, "a statement"))

    def _registers(self, match: re.Match[str], line: int) -> list[RegisterDeclaration]:
        """Return the declarations from a `_FAST_REGISTER` match."""
        kind, name, count, others = match.groups()
        declared = [RegisterDeclaration(kind, name, int(count) if count else None, None, line)]
        for other in others.split(",")[1:] if others else ():
            declared.append(RegisterDeclaration(kind, other.strip(), None, None, line))
        self._declare(declared)
        return declared

    def _declare(self, declared: list[RegisterDeclaration]) -> None:
        """Add the registers to the operand table."""
        odd = _register_names(declared, self.table.names)
        if odd:
            self.table = self.table.declare(odd)

    def _labelled_directive(self, out: list[Statement], name: str, keyword: str, line: int) -> None:
        """Parse ``name: .branchtargets ...;`` etc., or a label before any other directive."""
        if keyword in _LISTS[:2]:
            self.take(KEYWORD, keyword)
            targets = [self.take(NAME, "a name")]
            while self.accept(","):
                targets.append(self.take(NAME, "a name"))
            self.expect(";")
            kind = BranchTargets if keyword == ".branchtargets" else CallTargets
            out.append(kind(name, tuple(targets), line))
        elif keyword == ".callprototype":
            self.take(KEYWORD, keyword)
            returns = parameters(self) if self.accept("(") else ()
            self.take(NAME, "'_'")
            params = parameters(self) if self.accept("(") else ()
            attributes: list[str] = []
            while self.at("."):
                attributes.append(attribute(self))
            self.expect(";")
            noreturn = ".noreturn" in attributes
            rest = tuple(a for a in attributes if a != ".noreturn")
            out.append(CallPrototype(name, returns, params, noreturn, rest, line))
        else:
            out.append(Label(name, line))

    def _instruction(self, out: list[Statement]) -> None:
        line, table = self.line, self.table
        guard: Guard | None = None
        match = self.maybe(_GUARD)
        if match is not None:
            guard = self._guards[match[1] + match[2]]
        start = self.pos
        name = self.take(_OPCODE, "an instruction" if guard else "a statement or '}'")
        while (more := self.maybe(_MODIFIERS)) is not None:  # "mov .u32" is allowed
            name += more.group()
        if self.at("."):
            raise self.error("a modifier")
        rest = _OPERANDS.match(self.text, self.pos)
        if rest is None:
            newline = self.text.find("\n", start)
            end = newline if newline >= 0 else len(self.text)
            comment = self.text.find("/*", start, end)
            raise self.error("';' after the instruction", end if comment < 0 else comment)
        raw = rest.group()
        if "/" in raw:
            raw = _COMMENT.sub(lambda comment: _NOT_NEWLINE.sub(" ", comment.group()), raw)
        operands: list[Operand] = []
        try:
            for index, part in split_operands(raw):
                try:
                    operands.append(table[part])
                except OperandError as error:
                    raise OperandError(error.expected, index + error.offset) from None
        except OperandError as error:
            raise self.error(error.expected, self.pos + error.offset) from None
        self.move(rest.end())
        self.expect(";")
        out.append(Instruction(opcode(name), tuple(operands), guard, line))


class _Opcodes(dict[str, Opcode]):
    """Maps opcode text to node, in one look-up for the few hundred that a program uses."""

    def __missing__(self, text: str) -> Opcode:
        if not _OPCODE.fullmatch(text):
            raise OperandError("an opcode")
        shared = self[text] = opcode(text)
        return shared


class _Guards(dict[str, Guard]):
    """Maps guard text, ``%p1`` or ``!%p1``, to node."""

    def __missing__(self, text: str) -> Guard:
        guard = self[text] = Guard(Register(text.removeprefix("!")), text[0] == "!")
        return guard


def _register_names(
    declared: list[RegisterDeclaration], names: Mapping[str, Operand]
) -> dict[str, Operand]:
    """Return registers that do not look like registers: without ``%``, or shadowing others."""
    odd: dict[str, Operand] = {}
    for one in declared:
        prefix = one.name
        if one.count is None:
            spelled = [prefix]
        elif prefix[0] == "%" and not names and not covers_special_register(prefix, one.count):
            continue
        else:
            spelled = [f"{prefix}{i}" for i in range(one.count)]
        odd.update(
            (name, Register(name))
            for name in spelled
            if name[0] != "%" or name in names or is_special_register(name)
        )
    return odd


def _join_masks(body: list[Statement]) -> None:
    """Make pragmas of used bytes part of the loads behind them, so that nothing comes between."""
    joined: list[Statement] = []
    for statement in body:
        if isinstance(statement, Scope):
            _join_masks(statement.body)
        elif isinstance(statement, Instruction) and statement.opcode.base in ("ld", "ldu"):
            last = joined[-1] if joined else None
            mask = _USED_BYTES.fullmatch(last.text) if isinstance(last, Pragma) else None
            if mask is not None:
                joined.pop()
                statement.opcode = opcode(statement.opcode.text, int(mask[1], 0))
        joined.append(statement)
    body[:] = joined


def _resolve_percent_labels(body: list[Statement]) -> None:
    """Turn operands that name a label such as ``%done`` into symbols, which may come before it."""
    labels: set[str] = set()
    _collect_percent_labels(body, labels)
    if labels:
        _rename_labels(body, labels)


def _collect_percent_labels(body: list[Statement], labels: set[str]) -> None:
    for statement in body:
        if isinstance(statement, Scope):
            _collect_percent_labels(statement.body, labels)
        elif isinstance(statement, Label) and statement.name[0] == "%":
            labels.add(statement.name)


def _rename_labels(body: list[Statement], labels: set[str]) -> None:
    for statement in body:
        if isinstance(statement, Scope):
            _rename_labels(statement.body, labels)
        elif isinstance(statement, Instruction):
            statement.operands = tuple(
                Symbol(o.name) if isinstance(o, Register) and o.name in labels else o
                for o in statement.operands
            )
