"""Arenas, mapped at an address; and the memory limit of the process."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.device.cpu.arena import CPUArena
from gpud.device.cpu.memory_limit import memory_limit_bytes
from gpud.errors import InvalidArgument, OutOfMemory

SIZE = 1 << 16
BASE = 0x1100_0000_0000


@pytest.fixture
def file() -> Iterator[int]:
    descriptor = os.memfd_create("arena")
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


def mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(line.startswith(f"{address:x}-") for line in lines)


@pytest.mark.parametrize("base", [0, BASE])
def test_it_is_shared_with_the_file(file: int, base: int) -> None:
    arena = CPUArena(file, SIZE, base)
    assert base in (0, arena.address)
    word = ctypes.c_uint32.from_address(arena.address + SIZE - 4)
    with mmap.mmap(file, SIZE) as view:
        word.value = 7
        assert view[SIZE - 4 :] == b"\7\0\0\0"
        view[SIZE - 4 :] = b"\0\0\0\1"
        assert word.value == 1 << 24
    address = arena.address
    assert mapped(address)
    arena.close()
    arena.close()
    assert not mapped(address)


def test_an_address_in_use_is_refused_and_stays_as_it_is(file: int) -> None:
    first = CPUArena(file, SIZE, BASE)
    ctypes.c_uint32.from_address(BASE).value = 5
    other = os.memfd_create("other")
    os.ftruncate(other, SIZE)
    for base in (BASE, BASE + SIZE // 2):
        with pytest.raises(InvalidArgument, match="something else is mapped there"):
            CPUArena(other, SIZE, base)
    os.close(other)
    assert ctypes.c_uint32.from_address(BASE).value == 5
    first.close()
    CPUArena(file, SIZE, BASE).close()


def test_a_file_that_is_too_small_is_refused(file: int) -> None:
    with pytest.raises(InvalidArgument, match=f"has {SIZE} bytes, its mapping {2 * SIZE}"):
        CPUArena(file, 2 * SIZE)


@pytest.mark.parametrize(("size", "base"), [(0, 0), (-4096, 0), (100, 0), (4096, 5)])
def test_half_pages_are_refused(file: int, size: int, base: int) -> None:
    with pytest.raises(InvalidArgument, match="whole pages"):
        CPUArena(file, size, base)


def test_an_invalid_descriptor_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="of no use"):
        CPUArena(-1, SIZE)


def test_more_than_the_address_space_is_refused() -> None:
    descriptor = os.memfd_create("huge")
    os.ftruncate(descriptor, 1 << 62)
    with pytest.raises(OutOfMemory):
        CPUArena(descriptor, 1 << 62)
    os.close(descriptor)


# -- the machine's memory ------------------------------------------------------------------------


def group(root: Path, lines: str, limits: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, limit in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(limit)


@pytest.mark.parametrize(
    ("lines", "limits", "least"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "9000\n", "a/memory.max": "8000\n"}, 8000),
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "memory.max": "5000\n"}, 5000),
        ("0::/not/here\n", {"memory.max": "7000"}, 7000),
        ("3:cpu,memory:/g\n1:cpu:/g\n", {"memory/g/memory.limit_in_bytes": "6000"}, 6000),
        ("4:memory:/h\n0::/h\n", {"memory/memory.limit_in_bytes": str(1 << 63)}, None),
        ("", {}, None),
        ("rubbish\n", {}, None),
    ],
)
def test_the_least_limit_holds(
    tmp_path: Path, lines: str, limits: dict[str, str], least: int | None
) -> None:
    group(tmp_path, lines, limits)
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_limit_bytes(tmp_path) == (least or physical)


def test_a_machine_without_control_groups(tmp_path: Path) -> None:
    assert memory_limit_bytes(tmp_path) == memory_limit_bytes(tmp_path / "nothing")
