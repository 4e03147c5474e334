"""Parsing of shares and job names, exactly."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.units import (
    Share,
    byte_size,
    job_id,
    job_name,
    job_pair,
    parse_job,
    share,
)


@pytest.mark.parametrize(
    ("written", "exact"),
    [
        (2, Fraction(2)),
        (0.1, Fraction(1, 10)),
        (1e-3, Fraction(1, 1000)),
        (Fraction(7, 3), Fraction(7, 3)),
        ("2", Fraction(2)),
        (" 1.5 ", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("3/4", Fraction(3, 4)),
        ("25%", Fraction(33)),
        ("12.5 %", Fraction(33, 2)),
        ("1/3%", Fraction(132, 300)),
        ("100%", Fraction(132)),
        (np.int64(2), Fraction(2)),
        (np.float64(0.1), Fraction(1, 10)),
        (np.float32(0.1), Fraction(1, 10)),
        ("200%", Fraction(264)),
    ],
)
def test_what_is_written_is_exact(written: Share, exact: Fraction) -> None:
    amount = share(written, capacity=132)
    assert amount == exact
    assert type(amount) is Fraction


@pytest.mark.parametrize(
    "written",
    [
        0, -1, 0.0, -0.5, "0", "0%", "-25%", "+1", "", "%", "many", "25 percent", "1/0", "1//2",
        "1e3", "0x10", "٣", float("nan"), float("inf"), Fraction(-1, 2),
    ],
)  # fmt: skip
def test_what_is_no_share_is_shown(written: Share) -> None:
    with pytest.raises(ValueError, match="share") as caught:
        share(written, capacity=4)
    assert repr(written) in str(caught.value)


@pytest.mark.parametrize("written", [True, None, 1j, b"25%", [1]])
def test_what_is_no_number_is_a_type_error(written: object) -> None:
    with pytest.raises(TypeError, match=type(written).__name__):
        share(written, capacity=4)  # type: ignore[arg-type]


@given(st.fractions(min_value=Fraction(1, 1000), max_value=1000), st.integers(1, 500))
def test_text_and_number_agree(amount: Fraction, capacity: int) -> None:
    assert share(str(amount), capacity=capacity) == amount
    assert share(f"{amount}%", capacity=capacity) == amount * capacity / 100


@given(session=st.integers(0, 2**32 - 1), number=st.integers(0, 2**32 - 1))
def test_a_job_is_a_number_a_pair_and_a_name(session: int, number: int) -> None:
    job = job_id(session, number)
    assert job_pair(job) == (session, number)
    assert job_name(job) == f"{session}.{number}"
    assert parse_job(job_name(job)) == parse_job(f" {job_name(job)}\n") == job


@pytest.mark.parametrize(
    "text", ["", "3", "3.", ".17", "3.17.1", "3,17", "-3.17", "3.4294967296", "4294967296.1", "٣.٤"]
)
def test_what_is_no_job_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as '3\.17'"):
        parse_job(text)


@pytest.mark.parametrize(("session", "number"), [(-1, 1), (1, -1), (1, 2**32)])
def test_no_job_has_numbers_out_of_range(session: int, number: int) -> None:
    with pytest.raises(ValueError, match="there is no job"):
        job_id(session, number)


@pytest.mark.parametrize(
    ("written", "size"),
    [
        (0, 0), (7, 7), ("0", 0), ("4096", 4096), ("2GiB", 2 << 30), (" 1.5 GB ", 1_500_000_000),
        ("100 MiB", 100 << 20), ("1 kB", 1000), ("3 B", 3), ("0.5KiB", 512),
    ],
)  # fmt: skip
def test_sizes_are_bytes_or_text(written: int | str, size: int) -> None:
    assert byte_size(written) == size


@pytest.mark.parametrize("written", [-1, "-1", "", "GiB", "1.5", "2 gib", "1e9", "10%", "0.3 KiB"])
def test_what_is_not_a_size_is_refused(written: int | str) -> None:
    with pytest.raises(ValueError, match="a size is a number of bytes"):
        byte_size(written)


@pytest.mark.parametrize("written", [True, 1.0, None, b"1"])
def test_a_size_of_another_type_is_refused(written: Any) -> None:
    with pytest.raises(TypeError, match="a size is a number of bytes or text"):
        byte_size(written)
