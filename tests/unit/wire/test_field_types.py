"""What each field type accepts and refuses, with the messages of its refusals."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.errors import ProtocolError
from gpud.wire import field_types as ft
from gpud.wire.field_types import FieldType

DIM3 = ft.listed(ft.uint(32, least=1), 3, 3)
JOB = ft.pair(ft.uint(32), ft.uint(32))
NESTED = ft.listed(ft.optional(ft.listed(JOB, 0, 2)), 1, 3)
FIELD_TYPES = [
    ft.uint(8), DIM3, JOB, NESTED, ft.text(3), ft.blob(3), ft.flag(), ft.amount(),
    ft.choice("a", "bc"), ft.optional(ft.text(2)), ft.plain(), ft.uint(63),
]  # fmt: skip

ACCEPTED: list[tuple[FieldType, Any, Any]] = [
    (ft.uint(8), 0, 0),
    (ft.uint(8), 255, 255),
    (ft.uint(64), 2**64 - 1, 2**64 - 1),
    (ft.uint(16, least=1, most=1000), 1000, 1000),
    (ft.text(3), "äöü", "äöü"),
    (ft.blob(3), b"abc", b"abc"),
    (ft.flag(), False, False),
    (ft.choice("a", "bc"), "bc", "bc"),
    (ft.optional(ft.flag()), None, None),
    (DIM3, [1, 2, 3], (1, 2, 3)),
    (DIM3, (1, 2, 3), (1, 2, 3)),
    (ft.listed(ft.text(1), 0, 2), [], ()),
    (JOB, [3, 17], (3, 17)),
    (ft.amount(), [4, 2], (4, 2)),
    (NESTED, [None, [[1, 2]], []], (None, ((1, 2),), ())),
    (ft.plain(), {"a": [1.5, None]}, {"a": [1.5, None]}),
]

REFUSED: list[tuple[FieldType, Any, str]] = [
    (ft.uint(8), 256, "integer, 0 to 255 is expected, not 256"),
    (ft.uint(8), -1, "not -1"),
    (ft.uint(8), True, "not true"),
    (ft.uint(8), 1.0, "not 1.0"),
    (ft.uint(8), math.nan, "not nan"),
    (ft.uint(8), math.inf, "not inf"),
    (ft.uint(8), None, "not nil"),
    (ft.uint(8), "1", "not the text '1'"),
    (ft.uint(32), 2**32, r"0 to 2\^32 - 1 is expected"),
    (ft.uint(32, least=1), 0, "1 to"),
    (ft.uint(16, least=1, most=1000), 1001, "1 to 1000"),
    (ft.text(3), "abcd", "at most 3 characters is expected, not the text 'abcd'"),
    (ft.text(3), "x" * 1000, "not a text of 1000 characters"),
    (ft.text(3), b"abc", "not 3 bytes"),
    (ft.blob(3), b"abcd", "at most 3 bytes"),
    (ft.blob(3), "abc", "not the text 'abc'"),
    (ft.blob(3), bytearray(b"abc"), "not a bytearray"),
    (ft.flag(), 1, "true or false is expected, not 1"),
    (ft.flag(), 0, "not 0"),
    (ft.flag(), None, "not nil"),
    (ft.choice("a", "bc"), "b", 'one of "a", "bc" is expected'),
    (ft.choice("a", "bc"), ["a"], "not an array of 1"),
    (ft.optional(ft.flag()), 2, "true or false"),
    (DIM3, [1, 2], "array of 3 of"),
    (DIM3, [1, 2, 3, 4], "not an array of 4"),
    (DIM3, [1, 2, 0], "not 0"),
    (DIM3, {1: 2}, "not a map of 1"),
    (DIM3, 5, "not 5"),
    (DIM3, "abc", "not the text"),
    (JOB, [1], "array of two"),
    (JOB, [1, 2, 3], "array of two"),
    (JOB, [1, "2"], "not the text '2'"),
    (ft.amount(), [1, 0], "not 0"),
    (ft.amount(), [0, 1], "not 0"),
    (ft.amount(), [1, 2**63], "not 9223372036854775808"),
    (ft.amount(), 0.5, "numerator and denominator"),
    (ft.amount(), [1], "numerator and denominator"),
    (NESTED, [[[1, 2], [3, -4]]], "not -4"),
    (NESTED, [[[1, 2], [3, 4], [5, 6]]], "not an array of 3"),
]  # fmt: skip


def fast(field_type: FieldType, value: Any) -> Any:
    """The value as the compiled form of the check gives it."""
    names: dict[str, Any] = {}
    source = field_type.expression("value", names)
    return eval(source, {**names, "value": value})


@pytest.mark.parametrize("check", [FieldType.check, fast], ids=["checked", "compiled"])
@pytest.mark.parametrize(("field_type", "value", "expected"), ACCEPTED)
def test_accepts(field_type: FieldType, value: Any, expected: Any, check: Any) -> None:
    found = field_type.check(value) if check is FieldType.check else check(field_type, value)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(("field_type", "value", "message"), REFUSED)
def test_refuses(field_type: FieldType, value: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        field_type.check(value)
    with pytest.raises(ProtocolError, match=message):
        fast(field_type, value)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def outcome(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ProtocolError as error:
        return str(error)


@given(field_type=st.sampled_from(FIELD_TYPES), value=VALUES)
def test_total(field_type: FieldType, value: Any) -> None:
    """Any value gives a value or a ProtocolError, the same in both forms of the check."""
    checked, compiled = outcome(field_type.check, value), outcome(fast, field_type, value)
    assert checked == compiled or (checked != checked and compiled != compiled)
    assert type(checked) is type(compiled)


@given(data=st.data(), field_type=st.sampled_from(FIELD_TYPES))
def test_the_bounds_hold(data: st.DataObject, field_type: FieldType) -> None:
    value = data.draw(VALUES)
    try:
        field_type.check(value)
        size = len(msgpack.packb(value))
    except (ProtocolError, ValueError, OverflowError):
        return
    most = field_type.most_bytes()
    assert most is None or size <= most


def test_the_largest_values_are_within_the_bounds() -> None:
    for field_type, value in [
        (ft.uint(64), 2**64 - 1), (ft.text(9), "\U0001f600" * 9), (ft.blob(9), b"x" * 9),
        (ft.listed(ft.uint(64), 0, 9), [2**64 - 1] * 9), (ft.amount(), [2**63 - 1] * 2),
        (ft.choice("a", "bcd"), "bcd"), (ft.optional(ft.flag()), None),
    ]:  # fmt: skip
        field_type.check(value)
        assert len(msgpack.packb(value)) <= (field_type.most_bytes() or 0)


def test_field_types_are_values() -> None:
    assert ft.listed(ft.uint(8), 0, 3) == ft.listed(ft.uint(8), 0, 3)
    assert ft.uint(8) != ft.uint(9)
    assert len({JOB, ft.pair(ft.uint(32), ft.uint(32))}) == 1


def test_whatever_came_is_shown_briefly() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (deep, "x" * 10**6, b"x" * 10**6, {str(n): n for n in range(1000)}):
        assert len(ft.shown(value)) < 60
    while deep:  # dismantled level by level: deallocating it at once recurses
        deep = deep[0]
