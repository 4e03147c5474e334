"""The properties of arenas and of the ledger over random histories, and faults that break them."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from gpud.core.memory.allocator import PAGE_BYTES, ArenaAllocator
from gpud.core.memory.arena_slots import FIRST_ADDRESS, ArenaSlots
from gpud.core.memory.ledger import FreeRange, Ledger
from gpud.core.memory.used_bytes import UsedBytes
from gpud.errors import InternalError, InvalidArgument, OutOfMemory, UnknownName
from gpud.units import Address, SessionId

DEVICES = [40 * PAGE_BYTES, 9 * PAGE_BYTES + 5]
SESSION_LIMITS = [30 * PAGE_BYTES, 9 * PAGE_BYTES]
USER_LIMITS = [35 * PAGE_BYTES, 8 * PAGE_BYTES]


def new_ledger() -> Ledger:
    return Ledger(DEVICES, session_bytes=SESSION_LIMITS, user_bytes=USER_LIMITS)


def history_of_loans(ledger: Ledger, steps: int = 400) -> None:
    """Lend addresses, resize zones and allocate at random; what was lent is not counted."""
    chance = random.Random(7)
    session = SessionId(1)
    ledger.open(session, 0)
    loans: list[Address] = []
    arrays: dict[Address, int] = {}
    zone = 0
    for _ in range(steps):
        size = chance.randrange(1, 6 * PAGE_BYTES)
        if chance.random() < 0.3:
            with suppress(OutOfMemory):  # no hole is large enough
                loans.append(ledger.lend(session, 0, size))
        elif loans and chance.random() < 0.5:
            freed = ledger.end_loan(session, 0, loans.pop(chance.randrange(len(loans))))
            assert freed.size % PAGE_BYTES == 0
        elif chance.random() < 0.4:
            most = DEVICES[0] - ledger.used_bytes(0) + zone
            zone = -(-min(size, most // PAGE_BYTES * PAGE_BYTES) // PAGE_BYTES) * PAGE_BYTES
            ledger.set_zone(0, zone)
        elif arrays and chance.random() < 0.5:
            address = chance.choice(sorted(arrays))
            if arrays[address] > PAGE_BYTES:
                left = chance.randrange(1, arrays[address] // PAGE_BYTES + 1) * PAGE_BYTES
                given = ledger.shrink(session, 0, address, left)
                assert (given is None) == (left == arrays[address])
                assert given is None or given[2:] == (address + left, arrays[address] - left)
                arrays[address] = left
            else:
                ledger.free(session, 0, address)
                del arrays[address]
        elif loans and chance.random() < 0.3:
            ledger.shrink(session, 0, chance.choice(loans), 1)
        elif size <= ledger.available_bytes(session, 0):
            arrays[ledger.allocate(session, 0, size)] = -(-size // PAGE_BYTES) * PAGE_BYTES
        ledger.validate()
        assert ledger.used_bytes(0) == sum(arrays.values()) + zone
        assert ledger.zone_bytes(0) == zone
    with pytest.raises(InternalError, match="does not fit"):
        ledger.set_zone(0, DEVICES[0] + PAGE_BYTES)
    for address in loans:
        with pytest.raises(UnknownName):
            ledger.end_loan(session, 0, address + 1)
    ledger.close(session)
    assert ledger.used_bytes(0) == zone
    ledger.validate()


def test_what_is_lent_is_counted_by_the_zone_alone() -> None:
    history_of_loans(new_ledger())


class Memory(RuleBasedStateMachine):
    """The ledger beside a list of arrays that knows nothing of holes, pages or limits."""

    sessions = Bundle("sessions")
    arrays = Bundle("arrays")

    @initialize()
    def start(self) -> None:
        self.ledger = new_ledger()
        self.users: dict[SessionId, int] = {}
        self.live: dict[tuple[SessionId, int, Address], int] = {}
        self.waiting: list[tuple[SessionId, int, Address, int, int]] = []
        self.last_job: dict[SessionId, int] = {}
        self.opened = 0

    @rule(target=sessions, user=st.sampled_from([1000, 1001]))
    def open(self, user: int) -> SessionId:
        self.opened += 1
        session = SessionId(self.opened)
        self.ledger.open(session, user)
        self.users[session], self.last_job[session] = user, 0
        return session

    @rule(
        target=arrays,
        session=sessions,
        device=st.integers(0, 1),
        size=st.integers(1, 12 * PAGE_BYTES),
    )
    def allocate(self, session: SessionId, device: int, size: int) -> Any:
        if session not in self.users:
            with pytest.raises(UnknownName):
                self.ledger.allocate(session, device, size)
            return multiple()
        most = self.ledger.available_bytes(session, device)
        try:
            address = self.ledger.allocate(session, device, size)
        except OutOfMemory as error:
            assert size > most == error.available_bytes  # noqa: PT017
            return multiple()
        assert size <= most
        arena = self.ledger.arena(session, device)
        assert arena is not None
        assert arena.base <= address
        assert address + size <= arena.base + arena.size
        self.live[session, device, address] = -(-size // PAGE_BYTES) * PAGE_BYTES
        assert self.ledger.nearest(session, device, address) == (address, size)
        return session, device, address

    @rule(
        target=arrays,
        session=sessions,
        device=st.integers(0, 1),
        size=st.integers(1, 4 * PAGE_BYTES),
        page=st.integers(0, 60),
    )
    def allocate_at(self, session: SessionId, device: int, size: int, page: int) -> Any:
        """As a client does that wants the addresses which it had at another daemon."""
        at = FIRST_ADDRESS + page * PAGE_BYTES
        if session not in self.users:
            return multiple()
        try:
            address = self.ledger.allocate(session, device, size, at)
        except (OutOfMemory, InvalidArgument):
            return multiple()
        assert address == at
        self.live[session, device, address] = -(-size // PAGE_BYTES) * PAGE_BYTES
        return session, device, address

    @rule(array=consumes(arrays))
    def free(self, array: tuple[SessionId, int, Address]) -> None:
        size = self.live.pop(array, None)
        if size is None:
            with pytest.raises(UnknownName):
                self.ledger.free(*array)
        else:
            assert self.ledger.free(*array) == FreeRange(*array, size)

    @rule(array=arrays, jobs=st.integers(0, 3))
    def free_after(self, array: tuple[SessionId, int, Address], jobs: int) -> None:
        session, device, address = array
        size = self.live.pop(array, None)
        if size is None:
            with pytest.raises(UnknownName):
                self.ledger.free_after(*array, 1)
            return
        self.last_job[session] += jobs
        self.ledger.free_after(session, device, address, self.last_job[session])
        self.waiting.append((session, device, address, size, self.last_job[session]))

    @rule(session=sessions, back=st.integers(-3, 1))
    def settle(self, session: SessionId, back: int) -> None:
        if session not in self.users:
            return
        oldest = None if back > 0 else self.last_job[session] + back
        due = [
            one for one in self.waiting
            if one[0] == session and (oldest is None or one[4] < oldest)
        ]  # fmt: skip
        found = self.ledger.reclaim(session, oldest)
        assert sorted(found) == sorted(FreeRange(*one[:4]) for one in due)
        self.waiting = [one for one in self.waiting if one not in due]

    @rule(session=consumes(sessions))
    def close(self, session: SessionId) -> None:
        if session not in self.users:
            return
        arenas = self.ledger.close(session)
        assert all(arena.session == session for arena in arenas)
        del self.users[session]
        self.live = {key: size for key, size in self.live.items() if key[0] != session}
        self.waiting = [one for one in self.waiting if one[0] != session]

    @invariant()
    def disjoint(self) -> None:
        taken = [(key[2], size) for key, size in self.live.items()]
        taken += [(one[2], one[3]) for one in self.waiting]
        taken.sort()
        for (first, size), (second, _) in pairwise(taken):
            assert first + size <= second

    @invariant()
    def conserved_and_limited(self) -> None:
        for device, capacity in enumerate(DEVICES):
            by_session = dict.fromkeys(self.users, 0)
            for (session, where, _), size in self.live.items():
                by_session[session] += size if where == device else 0
            for session, where, _, size, _ in self.waiting:
                by_session[session] += size if where == device else 0
            used = sum(by_session.values())
            assert used == self.ledger.used_bytes(device) <= capacity
            assert all(used <= SESSION_LIMITS[device] for used in by_session.values())
            for user in (1000, 1001):
                own = [used for session, used in by_session.items() if self.users[session] == user]
                assert sum(own) <= USER_LIMITS[device]
            told = {one.session: one.used_bytes for one in self.ledger.usage()
                    if one.device == device}  # fmt: skip
            assert told == {session: by_session[session] for session in told}

    @invariant()
    def validates(self) -> None:
        self.ledger.validate()

    def teardown(self) -> None:
        for session in list(getattr(self, "users", ())):
            self.ledger.close(session)
            self.ledger.validate()
        if hasattr(self, "ledger"):
            assert [self.ledger.used_bytes(device) for device in (0, 1)] == [0, 0]
            assert list(self.ledger.usage()) == []


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# -- the checker is checked ----------------------------------------------------------------------


def history(ledger: Ledger, seed: int = 1, steps: int = 400) -> None:
    """A random life of a ledger, validated after every step."""
    chance = random.Random(seed)
    sessions = [SessionId(number) for number in range(3)]
    for session in sessions:
        ledger.open(session, session % 2)
    arrays: list[tuple[SessionId, int, Address]] = []
    for step in range(steps):
        session = chance.choice(sessions)
        if arrays and chance.random() < 0.5:
            array = arrays.pop(chance.randrange(len(arrays)))
            if chance.random() < 0.7:
                ledger.free(*array)
            else:
                ledger.free_after(*array, step)
        elif chance.random() < 0.2:
            ledger.reclaim(session, step - 5)
        else:
            device = chance.randrange(2)
            try:
                size = chance.randrange(1, 6 * PAGE_BYTES)
                arrays.append((session, device, ledger.allocate(session, device, size)))
            except OutOfMemory:
                pass
        if chance.random() < 0.02:
            arrays = [array for array in arrays if array[0] != session]
            ledger.close(session)
            ledger.validate()
            ledger.open(session, session % 2)
        ledger.validate()


def test_the_history_is_valid_without_a_fault() -> None:
    for seed in range(5):
        history(new_ledger(), seed)


def _no_merge(allocator: Any, address: Address, size: int) -> None:
    index = sum(start < address for start in allocator.starts)
    allocator.starts.insert(index, address)
    allocator.ends.insert(index, address + size)
    allocator.used -= size


def _half(allocator: Any, address: Address, size: int) -> None:
    _RELEASE(allocator, address, max(size // 2, PAGE_BYTES))


def _leave_hole(allocator: Any, size: int, at: int | None) -> Address | None:
    before = list(allocator.starts), list(allocator.ends)
    address = _TAKE(allocator, size, at)
    allocator.starts, allocator.ends = before
    return address


def _uncounted(used: Any, user: int, device: int, size: int) -> None:
    _COUNT(used, user, device, max(size, 0))


def _no_limits(used: Any, user: int, device: int, own: int) -> tuple[int, str]:
    del used, user, device, own
    return 1 << 60, "none"


def _same_slot(slots: Any) -> Address:
    _TAKE_SLOT(slots)
    return Address(FIRST_ADDRESS)


_RELEASE = ArenaAllocator.release
_TAKE = ArenaAllocator.allocate
_COUNT = UsedBytes.count
_TAKE_SLOT = ArenaSlots.take


@pytest.mark.parametrize(
    ("owner", "name", "fault", "message"),
    [
        (ArenaAllocator, "release", _no_merge, "holes touch"),
        (ArenaAllocator, "release", _half, "gap"),
        (ArenaAllocator, "allocate", _leave_hole, "overlap"),
        (UsedBytes, "count", _uncounted, "bytes of devices"),
        (UsedBytes, "left", _no_limits, "over its limit"),
        (ArenaSlots, "take", _same_slot, "slots"),
    ],
)
def test_a_planted_fault_is_seen(
    owner: type[Any],
    name: str,
    fault: Callable[..., Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, fault)
    with pytest.raises(InternalError, match=message):
        history(new_ledger())
