"""The device heap of checked programs: allocating, freeing, and impossible requests."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpud.device.cpu.program.heap import GRANULE, HEAP_BYTES, Heap, install

_TAKE = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
_GIVE = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint64)


class Used:
    """A heap and the functions that generated code calls."""

    def __init__(self, size: int) -> None:
        self.heap = Heap(size)
        code = install()
        records = self.heap.address + self.heap.size
        take = code.function("gpud_heap_malloc", _TAKE)
        give = code.function("gpud_heap_free", _GIVE)
        self.take: Callable[[int], int] = lambda size: take(records, size)
        self.give: Callable[[int], None] = lambda address: give(records, address)


@pytest.fixture
def used() -> Used:
    return Used(1 << 16)


def test_every_block_lies_inside_and_overlaps_no_other(used: Used) -> None:
    rng = random.Random(5)
    taken: dict[int, int] = {}
    for _ in range(3000):
        if taken and rng.random() < 0.45:
            address = rng.choice(sorted(taken))
            del taken[address]
            used.give(address)
        size = rng.choice((1, 15, 16, 17, 40, 127, 128, 129, 1000, 1024, 5000))
        address = used.take(size)
        if address:
            assert address % GRANULE == 0
            assert address not in taken
            taken[address] = size
    last = used.heap.address
    for address, size in sorted(taken.items()):
        assert address >= last
        last = address + size
    assert last <= used.heap.address + used.heap.size
    assert len(taken) > 20


@pytest.mark.parametrize("size", [0, (1 << 16) + 1, 1 << 40, (1 << 64) - 1, 1 << 63])
def test_an_impossible_size_gets_a_null_pointer(used: Used, size: int) -> None:
    assert used.take(size) == 0
    assert used.take(16) == used.heap.address


@pytest.mark.parametrize("size", [1, 16, 112, 113, 128, 250, 4097, 1 << 16])
def test_a_full_heap_reuses_freed_blocks(used: Used, size: int) -> None:
    taken = []
    while address := used.take(size):
        taken.append(address)
    assert len(taken) >= used.heap.size // (size + max(GRANULE, size // 4))
    for address in taken:
        used.give(address)
    again = [used.take(size) for _ in taken]
    assert sorted(again) == sorted(taken)
    assert used.take(size) == 0


def test_sizes_of_one_class_share_freed_blocks(used: Used) -> None:
    first = used.take(120)
    used.give(first)
    assert used.take(128) == first


def test_freeing_any_other_address_changes_nothing(used: Used) -> None:
    first, second = used.take(64), used.take(64)
    for address in (0, 1, first + 1, first + 16, second + 64, used.heap.address - 16, 1 << 63,
                    used.heap.address + used.heap.size, (1 << 64) - 16):  # fmt: skip
        used.give(address)
    third = used.take(64)
    assert third not in (first, second, 0)
    for _ in range(3):
        used.give(first)
    assert used.take(64) == first
    assert used.take(64) not in (first, second, third, 0)


def test_a_heap_is_as_large_as_cudas() -> None:
    used = Used(HEAP_BYTES)
    assert used.take(HEAP_BYTES) == used.heap.address
    assert used.take(1) == 0


def test_threads_never_have_the_same_block(used: Used) -> None:
    def work(seed: int) -> None:
        # ctypes releases the GIL: the native parts run at the same time.
        rng = random.Random(seed)
        mine: list[int] = []
        for _ in range(4000):
            if mine and rng.random() < 0.5:
                address = mine.pop()
                value = ctypes.c_uint64.from_address(address)
                assert value.value == seed
                value.value = 0
                used.give(address)
            elif address := used.take(rng.choice((16, 40))):
                value = ctypes.c_uint64.from_address(address)
                assert value.value == 0
                value.value = seed
                mine.append(address)

    with ThreadPoolExecutor(4) as pool:
        for one in [pool.submit(work, seed) for seed in (1, 2, 3, 4)]:
            one.result()
