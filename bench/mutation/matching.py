"""Finds a mutant of one tree in another, where its code may have other names and places.

A mutant is there if some function is much like the one it was in and has a node that is much like
the one it changes. Likeness of functions is the share of words that both have, after docstrings
are gone; of nodes, difflib's ratio. A rename changes a few words of either, and no more.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bench.mutation.mutants import Mutant, mutants_of
from bench.mutation.sample import Located, modules

__all__ = ["Matcher"]

_WORDS = re.compile(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]")
_LIKE_FUNCTION = 0.6
_LIKE_NODE = 0.6
_CANDIDATES = 4

Place = tuple[str, str]
"""A module and a function in it; the function is "" for what is in none."""


class Matcher:
    """Finds the mutants of the tree ``old`` in the tree ``new``."""

    def __init__(self, old: Path, new: Path) -> None:
        self._old, self._new = _Tree(old), _Tree(new)

    def find(self, located: Located) -> Located | None:
        """The mutant of the new tree that is ``located`` of the old; None if its code is gone."""
        mutant = located.mutant
        for same in self._new.mutants.get((located.module, mutant.function), []):
            if same.identity == mutant.identity:
                return Located(located.module, same)
        place = located.module, mutant.function
        words = self._old.words[place]
        likeness = {new: _likeness(words, theirs) for new, theirs in self._new.words.items()}
        places = [new for new in likeness if likeness[new] >= _LIKE_FUNCTION]
        places.sort(key=lambda new: (-likeness[new], new))
        for new in places[:_CANDIDATES]:
            if (match := self._in_function(place, mutant, new)) is not None:
                return Located(new[0], match)
        return None

    def _in_function(self, old: Place, mutant: Mutant, new: Place) -> Mutant | None:
        """The mutant of the function ``new`` that is most like ``mutant``, if one is like it.

        Of several that are equally like it, the one with as many like it before it.
        """
        siblings = [m for m in self._old.mutants[old] if _change(m) == _change(mutant)]
        scored = [
            (_ratio(_change(m), _change(mutant)), m)
            for m in self._new.mutants.get(new, [])
            if m.kind == mutant.kind
        ]
        best = max((score for score, _ in scored), default=0.0)
        if best < _LIKE_NODE:
            return None
        equal = [m for score, m in scored if score == best]
        return equal[min(siblings.index(mutant), len(equal) - 1)]


class _Tree:
    """The functions of a tree's product.

    Attributes:
        words: how often each function has which word.
        mutants: of each function, in the order of the file.
    """

    def __init__(self, tree: Path) -> None:
        self.words: dict[Place, Counter[str]] = {}
        self.mutants: dict[Place, list[Mutant]] = {}
        for module in modules(tree):
            source = (tree / module).read_bytes()
            for name, node in _functions(ast.parse(source)):
                self.words[module, name] = Counter(_WORDS.findall(ast.unparse(node)))
            for mutant in mutants_of(source):
                self.mutants.setdefault((module, mutant.function), []).append(mutant)


def _functions(tree: ast.Module) -> Iterable[tuple[str, ast.AST]]:
    """The functions and classes of a module with qualified names, and "" for the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    yield "", tree
    pending: list[tuple[str, ast.AST]] = [("", tree)]
    while pending:
        prefix, parent = pending.pop()
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{prefix}.{node.name}" if prefix else node.name
                yield name, node
                pending.append((name, node))
            else:
                pending.append((prefix, node))


def _change(mutant: Mutant) -> str:
    return f"{mutant.node} -> {mutant.replacement}"


def _likeness(one: Counter[str], other: Counter[str]) -> float:
    both = one.total() + other.total()
    return 2 * (one & other).total() / both if both else 1.0


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()
