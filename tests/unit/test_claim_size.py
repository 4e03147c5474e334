"""How many task blocks a block claims at once: the properties of `gpud.device.claim_size`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.abi.control_words import MOST_CLAIMED, ONE_AT_A_TIME, Claims
from gpud.device.claim_size import choose_claims


@pytest.mark.parametrize(
    ("block_ns", "expected"),
    [(10_000, 0), (3_000, 0), (2_700, 1), (1_000, 2), (500, 5), (100, 25), (20, 64)],
)
def test_long(block_ns: int, expected: int) -> None:
    wanted = Claims(expected, expected) if expected else ONE_AT_A_TIME
    assert choose_claims(block_ns, 1 << 30, 1000) == wanted


@given(block_ns=st.floats(1, 1e9), left=st.integers(1, 2**31 - 1), resident=st.integers(1, 100_000))
def test_in_time_and_balanced(block_ns: float, left: int, resident: int) -> None:
    claims = choose_claims(block_ns, left, resident)
    if claims == ONE_AT_A_TIME:
        return
    held = max(claims.chunk - 1, claims.ahead)
    assert held * block_ns <= 2_500 + 0.1 * block_ns
    assert left >= 16 * resident * claims.chunk
    assert max(claims) <= MOST_CLAIMED


@pytest.mark.parametrize(("block_ns", "resident"), [(None, 1), (0, 1), (500, 0)])
def test_what_is_not_known_is_claimed_one_at_a_time(block_ns: float | None, resident: int) -> None:
    assert choose_claims(block_ns, 1 << 30, resident) == ONE_AT_A_TIME
