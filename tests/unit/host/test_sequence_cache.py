"""The cache of sequences prepared from the launches of `StartRun`."""

from __future__ import annotations

from typing import Any, cast

import pytest

from gpud.device.host.messages import HOST_PROTOCOL, HostLaunch
from gpud.device.host.sequence_cache import SequenceCache
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


def made(limit_bytes: int = 1 << 20) -> tuple[SequenceCache, FakeDevice]:
    device = FakeDevice()
    return SequenceCache(cast(Any, device), kernel, limit_bytes=limit_bytes), device


def packed(*rows: HostLaunch) -> bytes:
    return HOST_PROTOCOL.encode_records(rows)


def test_a_launch_is_resolved() -> None:
    sequences, device = made()
    sequences.prepared(packed(row(3, "k", 7, 64, b"abcd", occupancy=5, shared=9)), 4)
    expected = LaunchSpec("3.k", "persistent", (7, 1, 1), (64, 1, 1), b"abcd", 9, 5)
    assert device.made == [[expected]]


def test_equal_bytes_are_prepared_once_for_each_m() -> None:
    sequences, _ = made()
    data = packed(row(3, "k"), row(4, "l"))
    assert sequences.prepared(data, 1) == (1, 1)
    assert sequences.prepared(bytes(bytearray(data)), 1) == (1, 1)
    assert sequences.prepared(data, 2) == (2, 2)
    assert sequences.prepared(packed(row(3, "k")), 1) == (3, 1)


def test_sequences_are_forgotten_with_their_modules() -> None:
    sequences, device = made()
    both, other = packed(row(3, "k"), row(4, "l")), packed(row(5, "k"))
    sequences.prepared(both, 1)
    sequences.prepared(other, 1)
    sequences.forget({4, 77})
    sequences.prepared(both, 1)
    sequences.prepared(other, 1)
    assert [len(launches) for launches in device.made] == [2, 1, 2]


def test_the_oldest_sequences_are_dropped_beyond_the_limit() -> None:
    data = [packed(row(3, "k", parameters=bytes([i]) * 1000)) for i in range(5)]
    sequences, device = made(limit_bytes=3 * len(data[0]))
    for one in data:
        sequences.prepared(one, 1)
    sequences.prepared(data[4], 1)
    sequences.prepared(data[2], 1)
    assert len(device.made) == 5
    sequences.prepared(data[1], 1)
    assert len(device.made) == 6


def test_a_sequence_larger_than_the_limit_is_not_kept() -> None:
    sequences, device = made(limit_bytes=10)
    for _ in range(2):
        sequences.prepared(packed(row(3, "k")), 1)
    assert len(device.made) == 2


def test_failures_are_errors_of_the_request() -> None:
    sequences, device = made()
    with pytest.raises(ProtocolError):
        sequences.prepared(b"\x90", 1)
    with pytest.raises(UnknownName):
        sequences.prepared(packed(row(10, "k")), 1)
    device.error = ValueError("16 bytes of parameters, not 3")
    with pytest.raises(InvalidArgument, match="not 3"):
        sequences.prepared(packed(row(3, "k")), 1)
    device.error = LaunchConfigError("grid", 0, "too small")
    with pytest.raises(LaunchConfigError):
        sequences.prepared(packed(row(3, "k")), 1)
    device.error = None
    assert sequences.prepared(packed(row(3, "k")), 1) == (1, 1)


class Renewable:
    """A sequence of which others with other parameters can be made."""

    def __init__(self, parameters: bytes) -> None:
        self.parameters = parameters

    def with_parameters(self, parameters: bytes) -> Renewable:
        return Renewable(parameters)


def test_a_launch_with_other_parameters_is_not_prepared_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sequences, device = made()

    def prepare(launches: list[LaunchSpec], _: int) -> Renewable:
        device.made.append(launches)
        return Renewable(launches[0].parameters)

    monkeypatch.setattr(device, "prepare", prepare)
    sequences.prepared(packed(row(3, "k", parameters=b"abcd")), 1)
    again = sequences.prepared(packed(row(3, "k", parameters=b"efgh")), 1)
    assert again.parameters == b"efgh"
    assert len(device.made) == 1
    sequences.prepared(packed(row(3, "k", parameters=b"efgh")), 2)  # another M
    sequences.prepared(packed(row(3, "k", grid=7, parameters=b"efgh")), 1)
    assert len(device.made) == 3
    sequences.forget({3})
    sequences.prepared(packed(row(3, "k", parameters=b"ijkl")), 1)
    assert len(device.made) == 4
