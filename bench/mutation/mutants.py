"""The mutants of a module: every small change of a node that a test should notice.

Each kind of change is one function from a node to its replacements, registered in `_CHANGES`. A
mutant replaces the bytes of its node and leaves the rest of the file as it is.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["Mutant", "mutants_of"]

_LOGGER = re.compile(r"_?(log|logger|logging|warnings)$", re.IGNORECASE)
_WORD = re.compile(r"[\w.:-]+$")

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Mutant:
    """One change of one node.

    Attributes:
        function: qualified name of the enclosing function or class, "" at the module's level.
        kind: the name of the kind of change.
        node: the node's source, as `ast.unparse` writes it.
        replacement: the source that takes its place.
        occurrence: 0 for the first mutant of the module with this function, kind, node and
            replacement, 1 for the second ...
        first_line: of the node, from 1.
        last_line: of the node.
        statement_line: first line of the enclosing statement.
        start: of the node, in bytes of the file.
        end: likewise.
        at_import: whether the node runs when its module is imported.
    """

    function: str
    kind: str
    node: str
    replacement: str
    occurrence: int
    first_line: int
    last_line: int
    statement_line: int
    start: int
    end: int
    at_import: bool

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        """What names the mutant in its module, whatever its line."""
        return self.function, self.kind, self.node, self.replacement, self.occurrence

    def applied(self, source: bytes) -> bytes:
        """``source`` with this mutant."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def mutants_of(source: bytes) -> list[Mutant]:
    """All mutants of the module ``source``, in the order of the file."""
    finder = _Finder(source)
    finder.visit(ast.parse(source))
    return finder.mutants


class _Finder(ast.NodeVisitor):
    """Walks a module and collects its mutants."""

    def __init__(self, source: bytes) -> None:
        self.mutants: list[Mutant] = []
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._names: list[str] = []
        self._bodies = 0  # of functions that enclose what is visited
        self._statement_line = 1
        self._occurrences: Counter[tuple[str, str, str, str]] = Counter()

    def visit(self, node: ast.AST) -> None:
        """Collect the mutants of ``node`` and of what it holds."""
        if isinstance(node, ast.stmt):
            self._statement_line = node.lineno
        if _skipped(node):
            return
        for kind, change in _CHANGES:
            for replacement in change(node):
                self._add(kind, node, replacement)
        function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        name = getattr(node, "name", None) if isinstance(node, _NAMED) else None
        if name is not None:
            self._names.append(name)
        for field, child in _children(node):
            self._bodies += function and field == "body"
            self.visit(child)
            self._bodies -= function and field == "body"
        if name is not None:
            self._names.pop()

    def _add(self, kind: str, node: ast.AST, replacement: ast.AST) -> None:
        target = node
        if kind == "condition":
            target = node.test  # type: ignore[attr-defined]
        if not isinstance(target, ast.expr | ast.stmt):
            return
        text = ast.unparse(replacement)
        if isinstance(target, ast.expr):
            text = f"({text})"
        key = (".".join(self._names), kind, ast.unparse(target), text)
        assert target.end_lineno is not None
        assert target.end_col_offset is not None
        self.mutants.append(
            Mutant(
                *key,
                occurrence=self._occurrences[key],
                first_line=target.lineno,
                last_line=target.end_lineno,
                statement_line=self._statement_line,
                start=self._starts[target.lineno - 1] + target.col_offset,
                end=self._starts[target.end_lineno - 1] + target.end_col_offset,
                at_import=self._bodies == 0,
            )
        )
        self._occurrences[key] += 1


def _skipped(node: ast.AST) -> bool:
    """Whether neither ``node`` nor what it holds is mutated."""
    match node:
        case ast.JoinedStr() | ast.Assert() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
            return True
        case ast.Call(func=ast.Name(id="TypeVar" | "NewType" | "cast")):
            return True
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=receiver))):
            return _LOGGER.search(ast.unparse(receiver)) is not None
    return False


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What of ``node`` is mutated, with its field.

    No annotation, no decorator, and not what a ``raise`` says.
    """
    if isinstance(node, ast.Raise):
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, ast.AST):
                yield name, item


def _comparison(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[index] = _COMPARISONS[type(operator)]()
            yield changed


def _condition(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
        node.test, ast.Constant | ast.UnaryOp | ast.Compare
    ):
        yield ast.UnaryOp(ast.Not(), node.test)


def _connective(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        operator = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(operator, node.values)


def _negation(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand


def _arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in _ARITHMETIC:
        if not _textual(node):
            changed = copy.deepcopy(node)
            changed.op = _ARITHMETIC[type(node.op)]()
            yield changed


def _textual(node: ast.AST) -> bool:
    """Whether a text or a list is among the operands: subtracting would only raise."""
    literals = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(
        isinstance(part, literals)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in ast.iter_child_nodes(node)
    )


def _constant(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield ast.Constant(not value)
        elif isinstance(value, int | float):
            yield ast.Constant(value + 1)
        elif isinstance(value, str) and _WORD.match(value):
            yield ast.Constant("XX" + value)


def _returned(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Return) and node.value is not None:
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Return(ast.Constant(None))


def _deleted(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Raise() | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()


def _swapped(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call):
        for index, (left, right) in enumerate(zip(node.args, node.args[1:], strict=False)):
            starred = isinstance(left, ast.Starred) or isinstance(right, ast.Starred)
            if not starred and ast.unparse(left) != ast.unparse(right):
                changed = copy.deepcopy(node)
                changed.args[index : index + 2] = [right, left]
                yield changed


def _function(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if (other := _FUNCTIONS.get(node.func.id)) is not None:
            yield ast.Call(ast.Name(other), node.args, node.keywords)


_CHANGES: tuple[tuple[str, Callable[[ast.AST], Iterator[ast.AST]]], ...] = (
    ("comparison", _comparison),
    ("condition", _condition),
    ("connective", _connective),
    ("negation", _negation),
    ("arithmetic", _arithmetic),
    ("constant", _constant),
    ("return", _returned),
    ("deletion", _deleted),
    ("argument swap", _swapped),
    ("function", _function),
)
