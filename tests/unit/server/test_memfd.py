from __future__ import annotations

import mmap
import os

import pytest

from gpud.server.ipc import memfd


def test_sealed_zero_and_sparse() -> None:
    descriptor = memfd.create("test", 1 << 40)
    try:
        for size in (0, 1 << 20, 1 << 41):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert os.fstat(descriptor).st_blocks == 0
        assert os.pread(descriptor, 16, 1 << 39) == bytes(16)
    finally:
        os.close(descriptor)


def test_punched_pages_are_given_back_and_read_as_zero() -> None:
    descriptor = memfd.create("test", 1 << 20)
    try:
        with mmap.mmap(descriptor, 1 << 20) as memory:
            memory[:] = b"x" * (1 << 20)
            before = os.fstat(descriptor).st_blocks
            memfd.punch(descriptor, 4096, 1 << 19)
            assert os.fstat(descriptor).st_blocks == before - (1 << 19) // 512
            assert memory[4096 : 4096 + (1 << 19)] == bytes(1 << 19)
            assert memory[:4096] == b"x" * 4096
            assert memory[4096 + (1 << 19)] == ord("x")
    finally:
        os.close(descriptor)


def test_a_refused_punch_says_why() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        memfd.punch(-1, 0, 4096)
