"""What a client tells the checking mode about its arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gpud.checked_memory import (
    BOARD_BYTES,
    CURRENT,
    MAGIC,
    MOST_ARRAYS,
    ROW,
    ROW_BYTES,
    ROWS_AT,
    STARTS_AT,
    TABLE_BYTES,
    allocation_bytes,
    padded,
)
from gpud.errors import InvalidArgument, LimitExceeded
from gpud_client.checking import Board, Checking
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device

BASE = 1 << 30


class Memory:
    """An arena of plain memory."""

    base = BASE

    def __init__(self) -> None:
        self.raw = np.zeros(BOARD_BYTES + (1 << 20), np.uint8)

    def view(self, address: int, size: int, _: object) -> Any:
        return self.raw[address - self.base : address - self.base + size]


@pytest.fixture
def memory() -> Any:
    return Memory()


def rows(memory: Any) -> list[tuple[int, int, int, str]]:
    """Start, end, whether it is freed, and label of each row of the table that holds."""
    table, count = memory.view(BASE + CURRENT, 8, None).view(np.uint32)
    starts = memory.raw[STARTS_AT + int(table) * TABLE_BYTES :][: 8 * int(count)].view(np.uint64)
    found = []
    for index, start in enumerate(starts.tolist()):
        row = memory.raw[ROWS_AT + (int(table) * MOST_ARRAYS + index) * ROW_BYTES :][:ROW_BYTES]
        freed = int(row[ROW["freed"][0] :][:4].view(np.uint32)[0])
        label = bytes(row[ROW["label"][0] :]).rstrip(b"\0").decode()
        found.append((start, int(row[:8].view(np.uint64)[0]), freed, label))
    return found


def test_a_board_lists_arrays_by_address(memory: Any) -> None:
    board = Board(memory)
    assert memory.view(BASE, 8, None).view(np.uint64)[0] == MAGIC
    assert rows(memory) == []
    board.add(5000, 40, 4, "second")
    board.add(1000, 80, 8, "first")
    assert rows(memory) == [(1000, 1080, 0, "first"), (5000, 5040, 0, "second")]
    board.rows[0].freed = True
    board.publish()
    assert rows(memory)[0] == (1000, 1080, 1, "first")


def test_a_change_is_made_in_the_table_that_is_not_read(memory: Any) -> None:
    board = Board(memory)
    tables = []
    for number in range(4):
        board.add(1000 * (number + 1), 8, 8, "array")
        tables.append(int(memory.view(BASE + CURRENT, 8, None).view(np.uint32)[0]))
    assert tables == [tables[0], 1 - tables[0]] * 2


def test_a_long_label_is_cut_and_a_full_table_said(memory: Any) -> None:
    board = Board(memory)
    board.add(1000, 8, 8, "x" * 500)
    assert rows(memory)[0][3].endswith("x...")
    board.rows *= MOST_ARRAYS
    with pytest.raises(LimitExceeded, match="4096 arrays at most"):
        board.add(2000, 8, 8, "one too many")


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
def test_writing_marks_the_array_and_nothing_else(memory: Any, size: int) -> None:
    board = Board(memory)
    start = BASE + BOARD_BYTES
    board.write(start, size)
    shadow = memory.view(start, allocation_bytes(size), None)
    assert shadow[padded(size) : padded(size) + size].all()
    assert int(shadow.sum()) == size


def test_a_daemon_without_a_cpu_device_is_refused() -> None:
    row = {"name": "a GPU", "kind": "cuda", "sms": 8, "memory": 1 << 30, "capability": 90,
           "arrays": "copied"}  # fmt: skip
    gpu = Device._from_wire(0, row)
    with pytest.raises(InvalidArgument, match="compute-sanitizer"):
        next(Checking(ProtocolState()).open([gpu]))
