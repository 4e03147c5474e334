"""The ledger of arrays, case by case; tests/property/test_ledger.py has the rest."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpud.core.memory.allocator import PAGE_BYTES, ArenaRange
from gpud.core.memory.arena_slots import FIRST_ADDRESS
from gpud.core.memory.ledger import FreeRange, Ledger
from gpud.errors import InternalError, InvalidArgument, LimitExceeded, OutOfMemory, UnknownName
from gpud.units import Address, SessionId

PAGE = PAGE_BYTES
ONE, TWO, THREE = SessionId(1), SessionId(2), SessionId(3)


@pytest.fixture
def ledger() -> Ledger:
    made = Ledger([100 * PAGE, 10 * PAGE], session_bytes=[50 * PAGE, 10 * PAGE])
    made.open(ONE, user=1000)
    made.open(TWO, user=1000)
    made.open(THREE, user=1001)
    return made


def test_arrays_are_whole_pages_one_after_the_other(ledger: Ledger) -> None:
    first = ledger.allocate(ONE, 0, 1)
    second = ledger.allocate(ONE, 0, PAGE + 1)
    third = ledger.allocate(ONE, 0, PAGE)
    assert (first, second - first, third - second) == (FIRST_ADDRESS, PAGE, 2 * PAGE)
    assert ledger.nearest(ONE, 0, second) == (second, PAGE + 1)
    assert ledger.used_bytes(0) == 4 * PAGE
    assert ledger.used_bytes(1) == 0


def test_an_arena_is_opened_by_the_first_array(ledger: Ledger) -> None:
    assert ledger.arena(ONE, 0) is None
    address = ledger.allocate(ONE, 0, 5)
    assert ledger.arena(ONE, 0) == ArenaRange(ONE, 0, address, 128 * PAGE)
    ledger.allocate(ONE, 0, 5)
    assert ledger.arena(ONE, 0) == ArenaRange(ONE, 0, address, 128 * PAGE)


def test_arrays_are_made_again_at_their_addresses() -> None:
    """As after the end of a daemon, by whatever sessions come first."""
    before = Ledger([100 * PAGE, 10 * PAGE])
    before.open(ONE, user=1000)
    before.open(TWO, user=1000)
    wanted = [before.allocate(session, 0, PAGE) for session in (ONE, TWO, TWO)]
    after = Ledger([100 * PAGE, 10 * PAGE], first_slot=12345)
    for session in (ONE, TWO, THREE):
        after.open(session, user=1000)
    other = after.allocate(THREE, 0, PAGE)
    assert other not in wanted
    assert after.allocate(TWO, 0, PAGE, wanted[2]) == wanted[2]
    assert after.allocate(TWO, 0, PAGE, wanted[1]) == wanted[1]
    assert after.allocate(TWO, 0, PAGE) == wanted[2] + PAGE
    for at, words in (
        (wanted[1], "another session's"),
        (wanted[0] + 1, "whole pages"),
        (FIRST_ADDRESS - PAGE, "other addresses"),
        (5 << 44, "other addresses"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            after.allocate(ONE, 0, PAGE, at)
    with pytest.raises(InvalidArgument, match="other arrays"):
        after.allocate(TWO, 0, PAGE, wanted[2])
    after.validate()
    after.close(TWO)
    assert after.allocate(ONE, 0, PAGE, wanted[1]) == wanted[1]
    after.validate()


def test_slots_that_were_taken_ahead_are_not_used_twice() -> None:
    slot = 8 * PAGE
    ledger = Ledger([slot], first_slot=(4 << 44) // slot - 2)
    sessions = [SessionId(number) for number in range(1, 7)]
    for session in sessions:
        ledger.open(session, user=1000)
    first = ledger.allocate(sessions[0], 0, 1)
    ahead = ledger.allocate(sessions[1], 0, 1, first + slot)
    others = [ledger.allocate(session, 0, 1) for session in sessions[2:]]
    assert others[0] == FIRST_ADDRESS, "after the last address comes the first"
    assert len({first, ahead, *others}) == 6
    ledger.validate()


def test_no_two_arenas_share_an_address(ledger: Ledger) -> None:
    for session in (ONE, TWO):
        for device in (0, 1):
            ledger.allocate(session, device, 1)
    arenas = [ledger.arena(session, device) for session in (ONE, TWO) for device in (0, 1)]
    places = sorted((arena.base, arena.base + arena.size) for arena in arenas if arena)
    assert len(places) == 4
    assert all(end <= start for (_, end), (start, _) in pairwise(places))


def test_the_first_hole_that_is_large_enough(ledger: Ledger) -> None:
    arrays = [ledger.allocate(ONE, 0, size * PAGE) for size in (1, 3, 1, 2, 1)]
    ledger.free(ONE, 0, arrays[1])
    ledger.free(ONE, 0, arrays[3])
    assert ledger.allocate(ONE, 0, 2 * PAGE) == arrays[1]
    assert ledger.allocate(ONE, 0, 2 * PAGE) == arrays[3]
    assert ledger.allocate(ONE, 0, PAGE) == arrays[1] + 2 * PAGE
    ledger.validate()


def test_freed_ranges_merge(ledger: Ledger) -> None:
    arrays = [ledger.allocate(ONE, 0, PAGE) for _ in range(5)]
    for index in (0, 2, 4, 1, 3):
        assert ledger.free(ONE, 0, arrays[index]) == FreeRange(ONE, 0, arrays[index], PAGE)
        ledger.validate()
    assert ledger.allocate(ONE, 0, 50 * PAGE) == arrays[0]


@pytest.mark.parametrize(
    ("sizes", "requested", "available", "limit"),
    [
        ({ONE: 45}, 6, 5, "session"),
        ({ONE: 1}, 2**63, 49, "session"),
        ({TWO: 50, THREE: 45}, 6, 5, "device"),
        ({}, 51, 50, "session"),
    ],
)
def test_what_does_not_fit(
    ledger: Ledger, sizes: dict[SessionId, int], requested: int, available: int, limit: str
) -> None:
    for session, pages in sizes.items():
        ledger.allocate(session, 0, pages * PAGE)
    with pytest.raises(OutOfMemory) as caught:
        ledger.allocate(ONE, 0, requested * PAGE)
    assert caught.value.requested_bytes == requested * PAGE
    assert caught.value.available_bytes == available * PAGE
    assert caught.value.limit == limit
    ledger.validate()
    ledger.allocate(ONE, 0, available * PAGE)


def test_what_fits_when_jobs_have_ended(ledger: Ledger) -> None:
    freed = ledger.allocate(ONE, 0, 30 * PAGE)
    ledger.free_after(ONE, 0, freed, 1)
    for pages, limit in ((45, "jobs"), (51, "session")):
        with pytest.raises(OutOfMemory) as caught:
            ledger.allocate(ONE, 0, pages * PAGE)
        assert (caught.value.limit, caught.value.available_bytes) == (limit, 20 * PAGE)


def test_a_user_has_a_limit_for_all_sessions() -> None:
    ledger = Ledger([100 * PAGE], user_bytes=[20 * PAGE])
    for session, user in ((ONE, 1000), (TWO, 1000), (THREE, 1001)):
        ledger.open(session, user)
    ledger.allocate(ONE, 0, 15 * PAGE)
    with pytest.raises(OutOfMemory, match="to this user; free arrays of your other sessions") as e:
        ledger.allocate(TWO, 0, 6 * PAGE)
    assert (e.value.limit, e.value.available_bytes) == ("user", 5 * PAGE)
    ledger.allocate(THREE, 0, 20 * PAGE)
    ledger.close(ONE)
    ledger.allocate(TWO, 0, 20 * PAGE)
    ledger.validate()


def test_of_equal_limits_the_device_is_named() -> None:
    ledger = Ledger([8 * PAGE], session_bytes=[8 * PAGE], user_bytes=[8 * PAGE])
    ledger.open(ONE, 0)
    with pytest.raises(OutOfMemory, match="the daemon's setting memory raised") as caught:
        ledger.allocate(ONE, 0, 9 * PAGE)
    assert (caught.value.limit, caught.value.available_bytes) == ("device", 8 * PAGE)


def test_what_is_left_but_in_pieces() -> None:
    ledger = Ledger([8 * PAGE])
    ledger.open(ONE, 0)
    arrays = [ledger.allocate(ONE, 0, PAGE) for _ in range(8)]
    for address in arrays[::2]:
        ledger.free(ONE, 0, address)
    with pytest.raises(OutOfMemory, match="4096 are available in one piece") as caught:
        ledger.allocate(ONE, 0, 2 * PAGE)
    assert caught.value.limit == "arena"
    assert ledger.available_bytes(ONE, 0) == PAGE


def test_a_device_without_memory() -> None:
    ledger = Ledger([0, PAGE - 1])
    ledger.open(ONE, 0)
    for device in (0, 1):
        assert ledger.available_bytes(ONE, device) == 0
        with pytest.raises(OutOfMemory):
            ledger.allocate(ONE, device, 1)


@pytest.mark.parametrize("size", [0, -1])
def test_an_array_of_nothing(ledger: Ledger, size: int) -> None:
    with pytest.raises(InvalidArgument, match="1 byte or more"):
        ledger.allocate(ONE, 0, size)


def test_what_is_not_there(ledger: Ledger) -> None:
    address = ledger.allocate(ONE, 0, 2 * PAGE)
    for session, device, place in [
        (ONE, 0, address + PAGE), (ONE, 0, address + 1), (ONE, 0, 0), (ONE, 1, address),
        (TWO, 0, address), (ONE, 0, -1), (ONE, 7, address), (SessionId(9), 0, address),
    ]:  # fmt: skip
        with pytest.raises(UnknownName, match="there is no array at"):
            ledger.free(session, device, place)
        with pytest.raises(UnknownName, match="freed already"):
            ledger.free_after(session, device, place, 1)
    for session, device in [(SessionId(9), 0), (ONE, 2), (ONE, -1)]:
        with pytest.raises(UnknownName):
            ledger.allocate(session, device, 1)
    with pytest.raises(UnknownName):
        ledger.reclaim(SessionId(9), None)
    assert ledger.used_bytes(0) == 2 * PAGE
    ledger.validate()


def test_nothing_is_freed_twice(ledger: Ledger) -> None:
    now, later = ledger.allocate(ONE, 0, 1), ledger.allocate(ONE, 0, 1)
    ledger.free(ONE, 0, now)
    ledger.free_after(ONE, 0, later, 3)
    for address in (now, later):
        with pytest.raises(UnknownName):
            ledger.free(ONE, 0, address)
        with pytest.raises(UnknownName):
            ledger.free_after(ONE, 0, address, 3)
    ledger.validate()


def test_deferred(ledger: Ledger) -> None:
    """Memory that jobs may still use is not reallocated, and counts, until they have ended."""
    first, second, other = (
        ledger.allocate(ONE, 0, PAGE),
        ledger.allocate(ONE, 0, PAGE),
        ledger.allocate(ONE, 1, PAGE),
    )
    ledger.free_after(ONE, 0, first, 5)
    ledger.free_after(ONE, 1, other, 5)
    ledger.free_after(ONE, 0, second, 8)
    assert ledger.used_bytes(0) == 2 * PAGE
    assert ledger.allocate(ONE, 0, 1) not in (first, second)
    assert ledger.reclaim(ONE, 5) == []
    assert ledger.reclaim(ONE, 6) == [
        FreeRange(ONE, 0, first, PAGE),
        FreeRange(ONE, 1, other, PAGE),
    ]
    assert ledger.reclaim(ONE, 6) == []
    assert ledger.allocate(ONE, 0, 1) == first
    assert ledger.reclaim(ONE, None) == [FreeRange(ONE, 0, second, PAGE)]
    ledger.validate()


def test_everything_is_back_when_the_session_has_gone(ledger: Ledger) -> None:
    ledger.allocate(TWO, 0, 7)
    ledger.allocate(ONE, 0, 7)
    ledger.free_after(ONE, 0, ledger.allocate(ONE, 0, 7), 1)
    ledger.allocate(ONE, 1, 7)
    arenas = [ledger.arena(ONE, 0), ledger.arena(ONE, 1)]
    assert ledger.close(ONE) == arenas
    assert (ledger.used_bytes(0), ledger.used_bytes(1)) == (PAGE, 0)
    with pytest.raises(UnknownName):
        ledger.allocate(ONE, 0, 1)
    with pytest.raises(UnknownName):
        ledger.close(ONE)
    ledger.validate()


def test_addresses_of_sessions_that_have_gone_are_used_again() -> None:
    ledger = Ledger([1 << 40])
    bases: set[Address] = set()
    for number in range(200):
        session = SessionId(number)
        ledger.open(session, 0)
        bases.add(ledger.allocate(session, 0, 1))
        ledger.close(session)
    assert bases == {FIRST_ADDRESS}


def test_addresses_run_out_loudly() -> None:
    ledger = Ledger([1 << 44])
    for number in range(4):
        ledger.open(SessionId(number), 0)
        ledger.allocate(SessionId(number), 0, 1)
    ledger.open(SessionId(9), 0)
    with pytest.raises(LimitExceeded, match="4 arenas are all") as caught:
        ledger.allocate(SessionId(9), 0, 1)
    assert caught.value.limit == "memory"
    ledger.validate()
    ledger.close(SessionId(2))
    ledger.allocate(SessionId(9), 0, 1)
    ledger.validate()


def test_usage_is_told_by_session_and_device(ledger: Ledger) -> None:
    ledger.allocate(THREE, 1, 3 * PAGE)
    ledger.allocate(ONE, 0, 1)
    ledger.free_after(ONE, 0, ledger.allocate(ONE, 0, 2 * PAGE), 4)
    assert list(ledger.usage()) == [
        (THREE, 1001, 1, 1, 3 * PAGE, 0, 10 * PAGE),
        (ONE, 1000, 0, 1, 3 * PAGE, 2 * PAGE, 50 * PAGE),
    ]
    assert ledger.available_bytes(THREE, 1) == 7 * PAGE


def test_a_session_is_opened_once(ledger: Ledger) -> None:
    with pytest.raises(InternalError):
        ledger.open(ONE, 0)


def test_the_nearest_array(ledger: Ledger) -> None:
    assert ledger.nearest(ONE, 0, FIRST_ADDRESS) is None
    small, large, last = (ledger.allocate(ONE, 0, pages * PAGE) for pages in (1, 3, 1))
    ledger.free(ONE, 0, small)
    assert ledger.nearest(ONE, 0, 0) == (large, 3 * PAGE)
    assert ledger.nearest(ONE, 0, large + 5) == (large, 3 * PAGE)
    assert ledger.nearest(ONE, 0, last) == (last, PAGE)
    assert ledger.nearest(ONE, 0, 2**64 - 1) == (last, PAGE)
    ledger.free_after(ONE, 0, last, last_job=1)
    assert ledger.nearest(ONE, 0, 2**64 - 1) == (last, PAGE)  # a job may still use it
    ledger.reclaim(ONE, None)
    assert ledger.nearest(ONE, 0, 2**64 - 1) == (large, 3 * PAGE)
    odd = ledger.allocate(ONE, 0, 5)  # where the first one was
    assert ledger.nearest(ONE, 0, odd + 4) == (odd, 5)
    assert ledger.nearest(ONE, 0, odd + PAGE // 2) == (odd, 5)
    assert ledger.nearest(ONE, 0, odd + PAGE - 1) == (large, 3 * PAGE)  # is nearer to its end
    ledger.free_after(ONE, 0, odd, last_job=1)
    assert ledger.nearest(ONE, 0, odd) == (odd, 5)
    assert ledger.nearest(ONE, 1, 0) is None
    assert ledger.nearest(SessionId(77), 0, 0) is None


# -- what is counted without an address ------------------------------------------------------------


def test_reserved_bytes_count_for_everybody() -> None:
    ledger = Ledger([8 * PAGE], session_bytes=[4 * PAGE], user_bytes=[6 * PAGE])
    ledger.open(ONE, 7)
    ledger.open(TWO, 7)
    ledger.reserve(ONE, 0, 2 * PAGE + 1)  # three pages
    ledger.validate()
    assert ledger.used_bytes(0) == 3 * PAGE
    with pytest.raises(OutOfMemory) as caught:
        ledger.allocate(ONE, 0, 2 * PAGE)
    assert (caught.value.limit, caught.value.available_bytes) == ("session", PAGE)
    with pytest.raises(OutOfMemory) as caught:
        ledger.reserve(TWO, 0, 4 * PAGE)
    assert (caught.value.limit, caught.value.available_bytes) == ("user", 3 * PAGE)
    ledger.release(ONE, 0, 2 * PAGE + 1)
    ledger.allocate(ONE, 0, 4 * PAGE)
    ledger.validate()


def test_what_is_reserved_goes_with_its_session() -> None:
    ledger = Ledger([8 * PAGE])
    ledger.open(ONE, 0)
    ledger.reserve(ONE, 0, PAGE)
    with pytest.raises(InternalError, match="not reserved"):
        ledger.release(ONE, 0, 2 * PAGE)
    ledger.close(ONE)
    assert ledger.used_bytes(0) == 0
    ledger.validate()
    with pytest.raises(UnknownName):
        ledger.reserve(ONE, 0, PAGE)
    ledger.open(TWO, 0)
    with pytest.raises(UnknownName):
        ledger.reserve(TWO, 1, PAGE)


def test_holes_are_what_no_array_has() -> None:
    ledger = Ledger([8 * PAGE])
    ledger.open(ONE, 0)
    assert ledger.holes(ONE, 0) == []
    arena = ledger.open_arena(ONE, 0)
    (hole,) = ledger.holes(ONE, 0)
    assert (hole.address, hole.size) == (arena.base, arena.size)
    first = ledger.allocate(ONE, 0, PAGE)
    ledger.allocate(ONE, 0, PAGE)
    ledger.free_after(ONE, 0, first, 3)
    assert ledger.array_bytes(ONE, 0) == 2 * PAGE, "one of them waits"
    ledger.reclaim(ONE, None)
    assert [(hole.address, hole.size) for hole in ledger.holes(ONE, 0)] == [
        (first, PAGE),
        (first + 2 * PAGE, arena.size - 2 * PAGE),
    ]
    assert ledger.arena(ONE, 0) == ledger.open_arena(ONE, 0) == arena
