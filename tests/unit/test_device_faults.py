"""What is read for a kernel, and what an error is made of: any numbers, only what is its own."""

from __future__ import annotations

import ctypes
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpud.compiler.abi.fault_record import FaultKind, FaultRecord
from gpud.device.faults import error_of, printable
from gpud.device.readable import TEXT_LIMIT_BYTES, UNREADABLE, ReadableRanges
from gpud.errors import IllegalAddress, KernelTrap, from_wire

TEXT = b"first\0second\0" + b"x" * 1000 + b"\0tail"
BASE = 0x5000


class Memory:
    """A range of memory that notices every read outside of it."""

    def __init__(self, data: bytes = TEXT, base: int = BASE) -> None:
        self.data = data
        self.base = base
        self.reach = ReadableRanges([(base, len(data))], self.read)

    def read(self, address: int, size: int) -> bytes:
        start = address - self.base
        assert 0 <= start <= start + size <= len(self.data), (address, size)
        return self.data[start : start + size]


def test_text_is_read_up_to_its_end() -> None:
    reach = Memory().reach
    assert reach.text_at(BASE) == b"first"
    assert reach.text_at(BASE + 6) == b"second"
    assert reach.text_at(BASE + 12) == b""
    assert reach.text_at(BASE + 13) == b"x" * 1000
    assert reach.text_at(BASE + 13, 1000) == b"x" * 1000


def test_text_that_does_not_end_is_unreadable() -> None:
    reach = Memory().reach
    assert reach.text_at(BASE + 13, 999) is None
    assert reach.text_at(BASE + len(TEXT) - 4) is None
    assert Memory(b"x" * (TEXT_LIMIT_BYTES + 10)).reach.text_at(BASE) is None


def test_a_text_of_known_length_needs_no_end() -> None:
    reach = Memory().reach
    assert reach.start_at(BASE, 3) == b"fir"
    assert reach.start_at(BASE, 30) == b"first"
    assert reach.start_at(BASE + len(TEXT) - 4, 4) == b"tail"
    assert reach.start_at(BASE + len(TEXT) - 4, 5) is None


@given(
    st.one_of(st.integers(0, 2**64 - 1), st.integers(BASE - 20, BASE + len(TEXT) + 20)),
    st.one_of(st.integers(0, 2000), st.integers(0, 2**64)),
)
def test_nothing_outside_the_ranges_is_read(address: int, size: int) -> None:
    memory = Memory()
    memory.reach.text_at(address)
    memory.reach.text_at(address, size)
    memory.reach.start_at(address, size)
    data = memory.reach.bytes_at(address, size)
    inside = address >= BASE and address + size <= BASE + len(TEXT)
    if size:
        assert (data is not None) == inside


def test_by_default_it_reads_this_process() -> None:
    buffer = ctypes.create_string_buffer(b"here")
    address = ctypes.addressof(buffer)
    assert ReadableRanges([(address, 5)]).text_at(address) == b"here"
    assert ReadableRanges([(address, 4)]).text_at(address) is None


RECORD = FaultRecord(FaultKind.ADDRESS, 7, 5, (1, 2, 3), 0, 0x1234_0000, 0, 0)
GRID = (2, 3, 4)
NOTHING = ReadableRanges([])


def test_an_illegal_address() -> None:
    error = error_of(RECORD, NOTHING, kernel="k", grid=GRID, launch=1)
    assert isinstance(error, IllegalAddress)
    assert (error.address, error.site, error.misaligned) == (0x1234_0000, 7, False)
    assert (error.task_block, error.thread) == ((1, 2, 0), (1, 2, 3))
    assert (error.kernel, error.launch, error.space) == ("k", 1, "global")


def test_a_misaligned_address_in_a_space_without_a_site() -> None:
    record = RECORD._replace(kind=FaultKind.MISALIGNED, site=-1, claim=None)
    text = "ret;\n  st.shared.u32 [%r1], 1;\n"
    error = error_of(record, NOTHING, kernel="k", grid=GRID, space="shared", text=text, line=2)
    assert isinstance(error, IllegalAddress)
    assert (error.misaligned, error.space, error.site, error.line) == (True, "shared", None, None)
    assert error.instruction == "st.shared.u32 [%r1], 1;", "nobody has that line but gpud"
    assert error.task_block is None


@pytest.mark.parametrize(
    ("kind", "cause"), [(FaultKind.TRAP, "trap"), (FaultKind.BREAKPOINT, "brkpt")]
)
def test_a_trap(kind: FaultKind, cause: str) -> None:
    error = error_of(RECORD._replace(kind=kind), NOTHING, kernel="k", grid=GRID)
    assert isinstance(error, KernelTrap)
    assert (error.cause, error.task_block) == (cause, (1, 2, 0))


def test_an_assertion_tells_what_it_can_read() -> None:
    memory = Memory(b"n < 4\0a b.cu\0void\x1b[2J f()\0")
    record = RECORD._replace(
        kind=FaultKind.ASSERT, address=BASE, file=BASE + 6, function=BASE + 13, line=10
    )
    error = error_of(record, memory.reach, kernel="k", grid=GRID)
    assert isinstance(error, KernelTrap)
    assert error.cause == "assertion `n < 4' failed"
    assert (error.file, error.file_line) == ("a b.cu", 10)
    assert error.function == "void?[2J f()"
    hostile = record._replace(address=0, file=2**64 - 1, function=BASE + 10**6)
    error = error_of(hostile, memory.reach, kernel="k", grid=GRID)
    assert isinstance(error, KernelTrap)
    assert error.cause == "assertion `(unreadable)' failed"
    assert error.file == error.function == UNREADABLE.decode()


words = st.integers(0, 2**32 - 1)
addresses = st.integers(0, 2**64 - 1)
records = st.builds(
    FaultRecord,
    st.sampled_from(FaultKind),
    st.integers(-1, 2**32 - 1),
    st.one_of(st.none(), words, st.integers(0, 40)),
    st.tuples(words, words, words),
    words,
    *[addresses] * 3,
)


@given(records, st.sampled_from(["global", "shared", "local"]))
def test_any_numbers_make_an_error(record: FaultRecord, space: str) -> None:
    error = error_of(record, Memory().reach, kernel="k", grid=GRID, space=space)
    assert "\n" not in str(error)
    assert from_wire(error.to_wire()).to_wire() == error.to_wire()
    place = error.task_block
    known = record.claim is not None and record.claim < prod(GRID)
    assert known == (place is not None)


def test_text_for_people_is_one_printable_line() -> None:
    assert printable(b"a\nb\tc\x07\x1b\xff") == "a b c??\N{REPLACEMENT CHARACTER}"
    assert printable(None) == "(unreadable)"
