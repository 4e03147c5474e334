"""Launches are recognised by all but their parameters."""

from __future__ import annotations

from gpud.wire.beginnings import Beginnings
from gpud.wire.messages import CLIENT_PROTOCOL, LaunchRecord

LAUNCH = LaunchRecord(1, 0, (4, 1, 1), (32, 1, 1), 0, b"abcdefgh")


def packed(launch: LaunchRecord) -> bytes:
    return CLIENT_PROTOCOL.encode_records([launch])


def test_same() -> None:
    known: Beginnings[str] = Beginnings()
    known.keep("key", packed(LAUNCH), 8, "it")
    assert known.find("key", packed(LAUNCH._replace(parameters=b"12345678"))) == ("it", b"12345678")
    assert known.find("other", packed(LAUNCH)) is None
    for other in (
        LAUNCH._replace(kernel=1),
        LAUNCH._replace(grid=(5, 1, 1)),
        LAUNCH._replace(shared=16),
        LAUNCH._replace(parameters=b"1234567"),
        LAUNCH._replace(parameters=b"123456789"),
    ):
        assert known.find("key", packed(other)) is None


def test_launches_of_one_length_whose_parameters_begin_at_different_places() -> None:
    known: Beginnings[str] = Beginnings()
    long = LAUNCH._replace(grid=(300, 1, 1), parameters=b"123456")  # a longer number, 2 bytes less
    assert len(packed(long)) == len(packed(LAUNCH))
    known.keep(0, packed(LAUNCH), 8, "eight")
    known.keep(0, packed(long), 6, "six")
    assert known.find(0, packed(LAUNCH)) == ("eight", b"abcdefgh")
    assert known.find(0, packed(long)) == ("six", b"123456")


def test_bounded() -> None:
    known: Beginnings[int] = Beginnings(most=2)
    for kernel in range(3):
        known.keep(0, packed(LAUNCH._replace(kernel=kernel)), 8, kernel)
    found = [known.find(0, packed(LAUNCH._replace(kernel=kernel))) for kernel in range(3)]
    assert found == [None, None, (2, b"abcdefgh")]


def test_what_is_dropped_is_not_found() -> None:
    known: Beginnings[int] = Beginnings()
    for kernel in range(3):
        known.keep(0, packed(LAUNCH._replace(kernel=kernel)), 8, kernel)
    known.drop(lambda one: one != 1)
    found = [known.find(0, packed(LAUNCH._replace(kernel=kernel))) for kernel in range(3)]
    assert found == [None, (1, b"abcdefgh"), None]
