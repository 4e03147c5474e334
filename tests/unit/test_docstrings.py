"""Every public definition says what it is: module, class, function, method."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for package in (ROOT / "gpud", ROOT / "client" / "gpud_client")
    for path in sorted(package.rglob("*.py"))
]

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def undocumented(source: str) -> Iterator[str]:
    """Names the public definitions of a module that have no docstring."""
    module = ast.parse(source)
    if module.body and ast.get_docstring(module) is None:
        yield "the module"
    yield from _below(module, "")


def _below(parent: Documented, prefix: str) -> Iterator[str]:
    for node in parent.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        overload = any(isinstance(mark, ast.Name) and mark.id in {"overload", "override"}
                       for mark in node.decorator_list)  # fmt: skip
        if node.name.startswith("_") or overload:
            continue
        if ast.get_docstring(node) is None:
            yield prefix + node.name
        if isinstance(node, ast.ClassDef):
            yield from _below(node, f"{prefix}{node.name}.")


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    names = [leaf for target in targets for leaf in ast.walk(target)]
    return [leaf.id for leaf in names if isinstance(leaf, ast.Name)]


def _exported(module: ast.Module) -> set[str]:
    for node in module.body:
        if isinstance(node, ast.Assign) and _assigned(node) == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_public_name_is_documented(path: Path) -> None:
    assert list(undocumented(path.read_text())) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_module_exports_exists(path: Path) -> None:
    module = ast.parse(path.read_text())
    # A package that loads its parts when they are asked for has its names under TYPE_CHECKING.
    body = [
        one for node in module.body for one in (node.body if isinstance(node, ast.If) else [node])
    ]
    bound = {name for node in body for name in _assigned(node)}
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {alias.asname or alias.name for alias in node.names}
    assert _exported(module) - bound == set()


def test_the_checker_sees_what_is_missing() -> None:
    source = "def f(): ...\ndef _g(): ...\nclass C:\n    def h(self): ...\n    def _i(self): ..."
    assert list(undocumented(source)) == ["the module", "f", "C", "C.h"]
