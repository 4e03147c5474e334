"""The cache of chains prepared from the launches of `StartJob`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpud.device.host.chain_cache import ChainCache
from gpud.device.host.messages import HOST_PROTOCOL, Launch
from gpud.device.interface import LaunchSpec
from gpud.errors import InvalidArgument, LaunchConfigError, ProtocolError, UnknownName
from tests.unit.host.front_peer import row


class FakeDevice:
    """Prepares anything, or raises the error that a test has set."""

    def __init__(self) -> None:
        self.made: list[list[LaunchSpec]] = []
        self.error: Exception | None = None

    def prepare(self, launches: list[LaunchSpec], occupancy: int) -> tuple[int, int]:
        if self.error is not None:
            raise self.error
        self.made.append(launches)
        return len(self.made), occupancy


def kernel(module: int, entry: str) -> str:
    if module > 9:
        raise UnknownName(f"no module {module}")
    return f"{module}.{entry}"


def made(limit_bytes: int = 1 << 20) -> tuple[ChainCache, FakeDevice]:
    device = FakeDevice()
    return ChainCache(cast(Any, device), kernel, limit_bytes=limit_bytes), device


def packed(*rows: Launch) -> bytes:
    return HOST_PROTOCOL.encode_records(rows)


def test_a_launch_is_resolved() -> None:
    chains, device = made()
    chains.prepared(packed(row(3, "k", 7, 64, b"abcd", occupancy=5, shared=9)), 4)
    expected = LaunchSpec("3.k", "persistent", (7, 1, 1), (64, 1, 1), b"abcd", 9, 5)
    assert device.made == [[expected]]


def test_equal_bytes_are_prepared_once_for_each_m() -> None:
    chains, _ = made()
    data = packed(row(3, "k"), row(4, "l"))
    assert chains.prepared(data, 1) == (1, 1)
    assert chains.prepared(bytes(bytearray(data)), 1) == (1, 1)
    assert chains.prepared(data, 2) == (2, 2)
    assert chains.prepared(packed(row(3, "k")), 1) == (3, 1)


def test_chains_are_forgotten_with_their_modules() -> None:
    chains, device = made()
    both, other = packed(row(3, "k"), row(4, "l")), packed(row(5, "k"))
    chains.prepared(both, 1)
    chains.prepared(other, 1)
    chains.forget({4, 77})
    chains.prepared(both, 1)
    chains.prepared(other, 1)
    assert len(device.made) == 3


def test_the_oldest_chains_are_dropped_beyond_the_limit() -> None:
    data = [packed(row(3, "k", parameters=bytes([i]) * 1000)) for i in range(5)]
    chains, device = made(limit_bytes=3 * len(data[0]))
    for one in data:
        chains.prepared(one, 1)
    chains.prepared(data[4], 1)
    chains.prepared(data[2], 1)
    assert len(device.made) == 5
    chains.prepared(data[1], 1)
    assert len(device.made) == 6


def test_a_chain_larger_than_the_limit_is_not_kept() -> None:
    chains, device = made(limit_bytes=10)
    for _ in range(2):
        chains.prepared(packed(row(3, "k")), 1)
    assert len(device.made) == 2


def test_failures_are_errors_of_the_request() -> None:
    chains, device = made()
    with pytest.raises(ProtocolError):
        chains.prepared(b"\x90", 1)
    with pytest.raises(UnknownName):
        chains.prepared(packed(row(10, "k")), 1)
    device.error = ValueError("16 bytes of parameters, not 3")
    with pytest.raises(InvalidArgument, match="not 3"):
        chains.prepared(packed(row(3, "k")), 1)
    device.error = LaunchConfigError("grid", 0, "too small")
    with pytest.raises(LaunchConfigError):
        chains.prepared(packed(row(3, "k")), 1)
    device.error = None
    assert chains.prepared(packed(row(3, "k")), 1) == (1, 1)
