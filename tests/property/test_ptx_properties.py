"""Properties of parser, printer and flattening over random trees and random text."""

from __future__ import annotations

import string
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpud.compiler.passes.flatten import flatten_module
from gpud.compiler.ptx.constants import OperandError, evaluate
from gpud.compiler.ptx.model import Function, Module, Scope
from gpud.compiler.ptx.parser import parse
from gpud.compiler.ptx.printer import print_module
from gpud.errors import CallerError
from tests.compiler.support.ptx_samples import EVERYTHING
from tests.property.ptx_trees import modules

pytestmark = pytest.mark.ci

SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


@given(modules)
@SLOW
def test_parse_of_print_is_the_identity(module: Module) -> None:
    text = print_module(module)
    again = parse(text)
    assert again == module
    assert print_module(again) == text


@given(modules)
@SLOW
def test_flattening_leaves_no_scope_and_changes_nothing_twice(module: Module) -> None:
    before = print_module(module)
    flat = flatten_module(module)
    assert print_module(module) == before
    for item in flat.items:
        if isinstance(item, Function):
            assert not any(isinstance(statement, Scope) for statement in item.body or [])
    assert flatten_module(flat) == flat
    assert parse(print_module(flat)) == flat


@given(
    st.text(alphabet="[]{}()@!%.,;:+-*/\"'\\ \n\tabrx019_$|<>?#", max_size=60),
    st.integers(0, len(EVERYTHING)),
    st.integers(0, 40),
)
@settings(max_examples=400, deadline=None, derandomize=True)
def test_damaged_text_parses_or_is_refused_in_order(noise: str, at: int, cut: int) -> None:
    """Nothing but an error of the caller's kind, and what does parse round-trips."""
    text = EVERYTHING[:at] + noise + EVERYTHING[at + cut :]
    try:
        module = parse(text)
    except CallerError:
        return
    assert parse(print_module(module)) == module


@given(st.text(alphabet=string.printable, max_size=80))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_text_is_parsed_or_refused_in_order(text: str) -> None:
    for source in (text, ".version 8.0\n.target sm_90\n" + text):
        try:
            module = parse(source)
        except CallerError:
            continue
        assert parse(print_module(module)) == module


EXPRESSIONS = st.recursive(
    st.integers(0, 1000).map(str),
    lambda inner: st.one_of(
        st.tuples(
            inner, st.sampled_from(["+", "-", "*", "&", "|", "^", "<", "==", "!=", ">="]), inner
        ).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-({text})"),
        inner.map(lambda text: f"~({text})"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_constant_expressions_bind_as_in_c(text: str) -> None:
    """C and PTX agree on precedence; Python does too where comparisons are parenthesised."""
    parenthesised = evaluate(text)
    c_like = _value(text)
    assert parenthesised == c_like


def _value(text: str) -> int:
    """The value by C's precedence, found by splitting at the loosest operator, rightmost first."""
    levels = [["|"], ["^"], ["&"], ["==", "!="], ["<", ">="], ["+", "-"], ["*"]]
    tokens = text.replace("(", " ( ").replace(")", " ) ").replace("-", " - ").replace("~", " ~ ")
    return _wrapped(_split(tokens.split(), levels))


def _split(tokens: list[str], levels: list[list[str]]) -> int:
    for level in levels:
        depth = 0
        for i in range(len(tokens) - 1, 0, -1):
            depth += (tokens[i] == ")") - (tokens[i] == "(")
            binary = tokens[i - 1].isdigit() or tokens[i - 1] == ")"
            if depth == 0 and tokens[i] in level and binary:
                left, right = _split(tokens[:i], levels), _split(tokens[i + 1 :], levels)
                return _wrapped(_OPERATIONS[tokens[i]](left, right))
    if tokens[0] in "-~":
        inner = _split(tokens[1:], levels)
        return -inner if tokens[0] == "-" else ~inner
    return _split(tokens[1:-1], levels) if tokens[0] == "(" else int(tokens[0])


def _wrapped(value: int) -> int:
    return value if 0 <= value < 2**64 else (value + 2**63) % 2**64 - 2**63


_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<": lambda a, b: int(a < b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}


def test_expression_errors() -> None:
    for text in ("1/0", "5 % (3-3)", "0x1FFFFFFFFFFFFFFFF", "09"):
        try:
            evaluate(text)
        except OperandError:
            continue
        raise AssertionError(text)
    for text in ("", "1+", "(1", "1)", "x", "1 2", "1 ? 2", "()", "+"):
        assert evaluate(text) is None
