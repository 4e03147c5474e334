"""The parser: PTX text to syntax tree.

Problem. The compiler reads programs of a thousand lines for one launch, in Python, and must report
syntax errors precisely.

Approach. One regular expression matches a whole line of the most frequent layout, ``@p op a, b,
c;`` (the fast path: about 2 us per line); everything else is parsed token by token (the slow path).
Both move the same cursor, so statements may share lines or span them, and there is no separate
tokenizer.

Terms. *Slow path*: `StatementParser._statement` and what it calls. *Table*: `OperandTable`, which
maps operand text to node under the visible declarations.

Properties. ``parse(print_module(m)) == m``; every statement's ``line`` is the line where it
starts; well-formed but unknown instructions, directives and operands are kept as text; parsing
takes time linear in the text; errors name line, column, what was expected and what was found.

Source: PTX ISA 9.0, chapter 4 (syntax), section 7.1 (functions), chapter 11 (directives).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpud.compiler.ptx.declarations import NAME, fast_variable, parameters, variables
from gpud.compiler.ptx.directives import KEYWORD, attribute, directive
from gpud.compiler.ptx.lexicon import NEWEST_VERSION
from gpud.compiler.ptx.model import (
    Directive,
    Function,
    Module,
    Operand,
    Parameter,
    Register,
    Statement,
    Symbol,
    Variable,
)
from gpud.compiler.ptx.statements import LINKAGE, SPACES, StatementParser
from gpud.errors import CompileError, EmptySource, PTXVersionError

__all__ = ["parse"]

_VERSION = re.compile(r"\.version\s+([0-9]+)\.([0-9]+)(?![\w.])")
_TARGET = re.compile(r"\.target(?=\s)")
_WORD = re.compile(r"\w+", re.ASCII)
_ADDRESS_SIZE = re.compile(r"\.address_size\s+(32|64)(?!\w)")
_FUNCTIONS = {".entry": "entry", ".func": "func"}


def parse(text: str) -> Module:
    """Parse a PTX program.

    Raises:
        EmptySource: ``text`` is blank.
        PTXSyntaxError: it is not PTX; with line, column, what was expected and what was found.
        PTXVersionError: its major version is newer than that of `NEWEST_VERSION`.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    parser = _Parser(text.rstrip("\0") if text.endswith("\0") else text)
    try:
        return parser.module()
    except ValueError as error:
        if "digits" not in str(error) or isinstance(error, CompileError):
            raise
        # Python does not convert decimals with thousands of digits.
        raise parser.error("a number of fewer digits") from error


class _Parser(StatementParser):
    """The recursive-descent parser of modules and functions."""

    __slots__ = ()

    # -- module level ------------------------------------------------------------------------

    def module(self) -> Module:
        self.skip()
        if self.pos >= len(self.text):
            raise EmptySource
        match = self.maybe(_VERSION)
        if match is None:
            raise self.error(".version (PTX starts with it)")
        version = (int(match[1]), int(match[2]))
        if version[0] > NEWEST_VERSION[0]:
            raise PTXVersionError(f"{match[1]}.{match[2]}", f"{NEWEST_VERSION[0]}.x")
        if self.maybe(_TARGET) is None:
            raise self.error(".target")
        target = [self.take(_WORD, "a target such as sm_90")]
        while self.accept(","):
            target.append(self.take(_WORD, "a target option"))
        module = Module(version, tuple(target))
        size = self.maybe(_ADDRESS_SIZE)
        if size is not None:
            module.address_size = int(size[1])
        items = module.items
        end = len(self.text)
        while self.pos < end:
            variable = fast_variable(self)
            if variable is not None:
                self.skip()
                self._declare_variables([variable])
                items.append(variable)
            else:
                items.extend(self._item())
        return module

    def _item(self) -> list[Function] | list[Variable] | list[Directive]:
        """Parse one item at module level."""
        line = self.line
        at = self.pos
        prefix = self.maybe(LINKAGE)
        linkage = prefix[1] if prefix else None
        word = self.maybe(KEYWORD)
        keyword = word.group() if word else ""
        if keyword in _FUNCTIONS:
            return [self._function(_FUNCTIONS[keyword], linkage, line)]
        if keyword in SPACES:
            declared = variables(self, keyword[1:], linkage, line)
            self._declare_variables(declared)
            return declared
        if linkage is not None:
            raise self.error(".entry, .func or a state space", word.start() if word else None)
        self.pos, self.line = at, line
        return [directive(self, "a function, a variable or a directive")]

    def _declare_variables(self, declared: list[Variable]) -> None:
        odd: dict[str, Operand] = {v.name: Symbol(v.name) for v in declared if v.name[0] == "%"}
        if odd:
            self.table = self.table.declare(odd)

    # -- functions ---------------------------------------------------------------------------

    def _function(self, kind: str, linkage: str | None, line: int) -> Function:
        attributes: list[str] = []
        while self.at(".attribute"):
            attributes.append(attribute(self))
        returns: tuple[Parameter, ...] = ()
        if kind == "func" and self.accept("("):
            returns = parameters(self)
        name = self.take(NAME, "a function name")
        params = parameters(self) if self.accept("(") else ()
        while self.at("."):
            attributes.append(attribute(self))
        body: list[Statement] | None = None
        if not self.accept(";"):
            if not self.at("{"):
                raise self.error("'{', ';' or a directive such as .maxntid")
            outer = self.table
            self.table = outer.declare(_parameter_names((*returns, *params), outer.names))
            body = self.function_body()
            self.table = outer
        return Function(kind, name, params, returns, tuple(attributes), body, linkage, line)


def _parameter_names(
    declared: tuple[Parameter, ...], names: Mapping[str, Operand]
) -> dict[str, Operand]:
    """Return the unusual names of parameters: in registers without ``%``, and others with it."""
    odd: dict[str, Operand] = {}
    for one in declared:
        if one.name == "_":
            continue
        if one.space == "reg" and (one.name[0] != "%" or one.name in names):
            odd[one.name] = Register(one.name)
        elif one.space != "reg" and one.name[0] == "%":
            odd[one.name] = Symbol(one.name)
    return odd
