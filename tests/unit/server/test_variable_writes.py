"""Writes to variables are kept: the last value of each byte, once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpud.server.hosts.variable_writes import VariableWrites

SIZE = 24
WRITES = st.lists(
    st.tuples(st.sampled_from(("a", "b")), st.integers(0, SIZE - 1), st.binary(max_size=8)),
    max_size=20,
)


@given(WRITES)
def test_overlay(writes: list[tuple[str, int, bytes]]) -> None:
    written = VariableWrites()
    images = {name: [-1] * (SIZE + 8) for name in "ab"}
    for name, offset, data in writes:
        written.write(name, offset, data)
        images[name][offset : offset + len(data)] = data
    found = {name: [-1] * (SIZE + 8) for name in "ab"}
    for name, offset, data in written.pieces():
        for place, value in enumerate(data, offset):
            assert found[name][place] == -1, "no byte is there twice"
            found[name][place] = value
    assert found == images
    assert not written.missing
    kept = sum(value >= 0 for image in images.values() for value in image)
    assert written._bytes == kept + 1024 * len(list(written.pieces()))


@given(WRITES)
def test_bounded(writes: list[tuple[str, int, bytes]]) -> None:
    written = VariableWrites(limit_bytes=2100)
    for one in writes:
        written.write(*one)
        assert len(list(written.pieces())) <= 2
        assert written._bytes <= 2100
    assert set(written.missing) <= {name for name, _, _ in writes}


def test_what_does_not_fit_is_known_to_be_missing() -> None:
    written = VariableWrites(limit_bytes=1028)
    written.write("a", 0, b"1234")
    written.write("b", 0, b"5")
    assert list(written.missing) == ["b"]
    written.write("constant", 0, b"6", constant=True)
    assert sorted(written.pieces()) == [("a", 0, b"1234"), ("constant", 0, b"6")]
