"""Properties of the control words' layout and dividers (gpud.compiler.abi.control_words)."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.fast_division import coordinates, divide, divider

DIVISORS = st.one_of(
    st.integers(1, 2**31 - 1),
    st.integers(0, 30).flatmap(lambda s: st.integers(max(1, 2**s - 2), min(2**31 - 1, 2**s + 2))),
)


@given(n=st.integers(0, 2**31 - 1), d=DIVISORS)
@example(n=2**31 - 1, d=1)
@example(n=2**31 - 1, d=2**31 - 1)
@example(n=2**31 - 2, d=2**31 - 1)
def test_divide_is_exact(n: int, d: int) -> None:
    multiplier, shift = divider(d)
    assert multiplier < 2**32
    assert shift < 32
    # Quotients go wrong next to multiples of the divisor if anywhere.
    at = n // d * d
    for numerator in (n, at, max(at - 1, 0), min(at + d - 1, 2**31 - 1)):
        assert divide(numerator, (multiplier, shift)) == numerator // d


@given(d=DIVISORS)
def test_divider_meets_the_theorem(d: int) -> None:
    """Granlund and Montgomery's condition, which implies exactness for every n < 2**31."""
    multiplier, shift = divider(d)
    error = multiplier * d - 2 ** (31 + shift)
    assert 0 < error <= 2**shift


def test_small_divisors_exhaustively() -> None:
    for d in range(1, 130):
        by = divider(d)
        for n in range(1100):
            assert divide(n, by) == n // d


@given(st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40)))
def test_coordinates_number_the_grid(grid: tuple[int, int, int]) -> None:
    x, y, z = grid
    last = x * y * z - 1
    assert coordinates(0, grid) == (0, 0, 0)
    assert coordinates(last, grid) == (x - 1, y - 1, z - 1)
    for block in {0, last // 2, last // 3, last}:
        cx, cy, cz = coordinates(block, grid)
        assert cx + x * (cy + y * cz) == block
        assert cx < x
        assert cy < y


def offsets(dtype: np.dtype[Any]) -> dict[str, int]:
    """The byte offset of each field that is not reserved."""
    fields: Any = dtype.fields
    return {name: field[1] for name, field in fields.items() if "reserved" not in name}


def test_layout_of_the_launch_record() -> None:
    dtype = np.dtype(words.LAUNCH_RECORD)
    assert dtype.itemsize == words.launch_bytes(1) == words.launch_bytes(32) == 32
    assert offsets(dtype) == {"job": 0, "status": 8, "base": 16, "stays": 24, "named": 28}
    assert (words.STAYS % 8, words.NAMED) == (0, words.STAYS + 4), "blocks load both at once"
    job = 0x1234567890
    record = np.frombuffer(words.launch_record(job, job - 64, 7, base=9, named=job + 96), dtype)[0]
    found = {name: int(record[name]) for name in offsets(dtype)}
    everybody = 0xFFFFFFFF
    assert found == {"job": job, "status": job - 64, "base": 9, "stays": everybody, "named": 96}
    assert words.named_at(job, 0) == 0
    for named in (job, job - 8, job + 2**32):
        with pytest.raises(ValueError, match="not behind"):
            words.launch_record(job, 0, 7, named=named)


@given(st.integers(0, 5000))
def test_each_block_has_its_bit_and_its_place(blocks: int) -> None:
    record = words.launch_record(1, 2, blocks, named=3)
    assert len(record) == words.launch_bytes(blocks)
    pairs = np.frombuffer(record[words.ORDERS :], np.uint32).reshape(-1, 2)
    assert 32 * len(pairs) >= blocks > 32 * (len(pairs) - 1)
    assert set(pairs[:, 1].tolist()) <= {2}
    status = words.status_record(blocks)
    assert len(status) == words.status_bytes(blocks) >= words.left_at(blocks) + blocks
    live, *rest = np.frombuffer(status, np.uint32).tolist()
    assert (live, set(rest)) == (blocks, {0})
    assert offsets(np.dtype(words.STATUS_RECORD)) == {
        "live": 0,
        "begun": 4,
        "sm": 8,
        "left": 10,
    }
    assert words.left_at(1) == 10


def test_each_sm_has_its_bit() -> None:
    assert words.named_sms([]) == bytes(words.NAMED_BYTES)
    bits = np.unpackbits(
        np.frombuffer(words.named_sms([0, 9, words.MOST_SMS - 1]), np.uint8), bitorder="little"
    )
    assert np.flatnonzero(bits).tolist() == [0, 9, words.MOST_SMS - 1]
    for number in (-1, words.MOST_SMS):
        with pytest.raises(ValueError, match="can be named"):
            words.named_sms([number])


def test_layout_of_the_job_record() -> None:
    dtype = np.dtype(words.JOB_RECORD)
    assert dtype.itemsize == words.JOB_BYTES == 128
    assert offsets(dtype) == {
        "next": 0, "total": 4, "grid_x": 8, "grid_y": 12, "grid_z": 16, "flags": 20, "done": 56,
        "kill": 60, "x_multiplier": 32, "x_shift": 36, "y_multiplier": 40, "y_shift": 44,
        "chunk": 48, "ahead": 52, "grid_sync": 24,
        "fault_state": 64, "fault_kind": 68, "fault_site": 72, "fault_claim": 76,
        "fault_thread": 80, "fault_line": 92, "fault_address": 96, "fault_file": 104,
        "fault_function": 112, "output": 120,
    }  # fmt: skip
    record = np.frombuffer(words.job_record((6, 5, 4)), dtype)[0]
    assert record.tolist()[:6] == (0, 120, 6, 5, 4, 0)
    assert record["done"] == record["kill"] == 0
    assert (record["x_multiplier"], record["x_shift"]) == divider(6)
    assert (record["y_multiplier"], record["y_shift"]) == divider(5)
    line = np.frombuffer(words.job_record((6, 1, 1)), dtype)[0]
    assert line["flags"] == words.ONE_DIMENSIONAL


@pytest.mark.parametrize(
    "grid", [(0, 1, 1), (1, 0, 1), (1, 1, -1), (2**31, 1, 1), (65536, 32768, 1)]
)
def test_impossible_grids_are_refused(grid: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="task blocks"):
        words.job_record(grid)


@pytest.mark.parametrize("divisor", [0, -1, 2**31])
def test_impossible_divisors_are_refused(divisor: int) -> None:
    with pytest.raises(ValueError, match="divisor"):
        divider(divisor)
