"""Every driver function and constant that benchmarks and GPU tests use exists in the real bindings.

`tests/unit/cuda/test_driver_calls.py` checks the same for gpud's own device.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cuda.bindings import driver as real

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path for folder in ("bench/gpu", "tests/gpu") for path in (ROOT / folder).rglob("*.py")
)
FUNCTION = re.compile(r"cu[A-Z]\w+")
TYPE = re.compile(r"CU[a-z]\w+")


def arity(name: str) -> int:
    """Arguments of a bound function, as its signature states them."""
    stated = (getattr(real, name).__doc__ or "").splitlines()[0]
    inside = stated[stated.index("(") + 1 : stated.rindex(")")]
    inside = re.sub(r"\[[^()]*?\](?=,|$)", "", inside)
    return len([part for part in inside.split(",") if part.strip()])


def calls(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(function, arguments) of every call of the driver without starred arguments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and FUNCTION.fullmatch(node.func.attr)
            and not any(isinstance(one, ast.Starred) for one in node.args)
        ):
            yield node.func.attr, len(node.args)


def constants(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(enumeration, member) of every constant."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Attribute)
            and TYPE.fullmatch(node.value.attr)
            and node.attr.startswith("CU")
        ):
            yield node.value.attr, node.attr


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.parent.name}-{path.stem}")
def test_named_functions_exist_with_that_many_arguments(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for name, count in calls(tree):
        assert hasattr(real, name), name
        assert count == arity(name), (name, real.__dict__[name].__doc__)
    for kind, member in constants(tree):
        assert hasattr(getattr(real, kind), member), (kind, member)


def test_there_are_calls_to_look_at() -> None:
    found = {name for path in FILES for name, _ in calls(ast.parse(path.read_text()))}
    assert {"cuGreenCtxCreate", "cuMemHostRegister", "cuLaunchKernel", "cuGraphLaunch"} <= found
