"""Which arrays are kept when a device's host is lost: by example, and against a model."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpud.core.memory.coherence import ArrayExtent, CoherenceTracker, LostArrays
from gpud.errors import InvalidArgument, UnknownName
from gpud.units import SessionId

ONE, OTHER = SessionId(1), SessionId(2)
X, Y = 0x10000, 0x20000


def copies() -> CoherenceTracker:
    """One session with two arrays of 100 bytes, of which X has been written."""
    found = CoherenceTracker()
    for address in (X, Y):
        found.allocated(ONE, address, 100)
    found.written(ONE, X, 0, 100)
    return found


def lost(found: CoherenceTracker) -> list[int]:
    """Which arrays of the first session are lost when the host is."""
    found.host_lost("are gone")
    return [at for at in (X, Y) if found.loss_reason(ONE, at) is not None]


def test_what_no_job_has_seen_is_kept() -> None:
    found = copies()
    assert lost(found) == []
    assert found.arrays(ONE) == [ArrayExtent(X, 4096, True), ArrayExtent(Y, 4096, False)]
    assert found.lost_arrays(ONE, 7) is None


def test_what_a_job_could_have_written_is_lost_and_says_so() -> None:
    found = copies()
    found.job_started(ONE)
    found.job_ended(ONE)
    found.allocated(OTHER, X, 5)
    assert found.host_lost("are gone") == [(ONE, 2, 200)]
    assert found.lost_arrays(ONE, 7) == LostArrays((X, Y), 0, "are gone")
    assert found.lost_arrays(OTHER, 7) is None
    assert found.arrays(ONE) == [ArrayExtent(X, 4096, False), ArrayExtent(Y, 4096, False)]


def test_what_was_read_after_the_last_job_is_kept() -> None:
    found = copies()
    found.job_started(ONE)
    found.job_ended(ONE)
    assert not found.in_file(ONE, X)
    found.end_read(ONE, X, 0, 100, found.begin_read(ONE, X))
    assert found.in_file(ONE, X)
    assert lost(found) == [Y]


@pytest.mark.parametrize("moved", ["job_started", "job_ended"])
def test_a_copy_during_which_a_job_begins_or_ends_proves_nothing(moved: str) -> None:
    found = copies()
    found.job_started(ONE)
    if moved == "job_started":
        found.job_ended(ONE)
    epoch = found.begin_read(ONE, X)
    getattr(found, moved)(ONE)
    found.end_read(ONE, X, 0, 100, epoch)
    assert not found.in_file(ONE, X)
    assert lost(found) == [X, Y]


def test_what_was_written_beside_a_job_is_kept_if_the_job_fails_with_the_host() -> None:
    found = copies()
    found.job_started(ONE)
    found.written(ONE, X, 0, 100)
    assert not found.in_file(ONE, X)  # the job may be changing it now
    assert lost(found) == [Y]
    assert found.in_file(ONE, X)  # the job was lost with the host
    found = copies()
    found.job_started(ONE)
    found.written(ONE, X, 0, 100)
    found.job_ended(ONE)
    assert lost(found) == [X, Y]


def test_what_the_session_has_mapped_is_never_known_to_be_in_the_file() -> None:
    found = copies()
    assert found.in_file(ONE, X)
    assert found.exported(ONE, X) == 100
    for _ in range(2):
        assert not found.in_file(ONE, X)
        assert found.in_file(ONE, Y)
        found.written(ONE, X, 0, 100)
        found.end_read(ONE, X, 0, 100, found.begin_read(ONE, X))
    assert lost(found) == [X]
    found.written(ONE, X, 0, 100)
    assert found.loss_reason(ONE, X) is None
    with pytest.raises(UnknownName, match="freed already"):
        found.exported(ONE, X + 1)


def test_a_part_makes_nothing_good() -> None:
    found = copies()
    found.job_started(ONE)
    found.job_ended(ONE)
    found.written(ONE, X, 0, 99)
    found.end_read(ONE, Y, 1, 99, found.begin_read(ONE, Y))
    assert lost(found) == [X, Y]
    found.written(ONE, X, 1, 99)
    assert found.loss_reason(ONE, X) == "are gone"


def test_all_of_it_written_or_freed_an_array_is_lost_no_more() -> None:
    found = copies()
    found.job_started(ONE)
    found.job_ended(ONE)
    assert lost(found) == [X, Y]
    found.written(ONE, X, 0, 100)
    assert found.loss_reason(ONE, X) is None
    found.freed(ONE, Y, last_job=7)
    assert found.lost_arrays(ONE, 7) == LostArrays((), 1, "are gone")
    assert found.lost_arrays(ONE, 8) is None
    found.removed(ONE, Y)
    assert found.lost_arrays(ONE, 7) is None
    assert found.arrays(ONE) == [ArrayExtent(X, 4096, True)]


def test_an_array_that_was_shrunk_is_restored_as_it_is_then() -> None:
    found = CoherenceTracker()
    found.allocated(ONE, X, 3 * 4096, shrinks=True)
    assert found.arrays(ONE) == [ArrayExtent(X, 3 * 4096, False, True)]
    found.shrunk(ONE, X, 4096)
    assert found.array(ONE, X) == ArrayExtent(X, 4096, False)
    with pytest.raises(InvalidArgument, match="which has 4096"):
        found.check(ONE, X, 4096, 1)
    found.job_started(ONE)
    found.written(ONE, X, 0, 4096)  # all of it
    assert found.host_lost("are gone") == []


def test_parts_are_checked() -> None:
    found = copies()
    for offset, size in ((0, 101), (100, 1), (0, 0), (-1, 2), (1 << 62, 1 << 62)):
        with pytest.raises(InvalidArgument, match="no part of the array at 0x10000, which has 100"):
            found.written(ONE, X, offset, size)
    found.freed(ONE, Y, 1)
    for session, address in ((OTHER, X), (ONE, X + 1), (ONE, Y)):
        with pytest.raises(UnknownName, match="was it freed already"):
            found.check(session, address, 0, 1)


@dataclass
class _Model:
    """An array with its copies' values: numbers that grow with each write."""

    device: int = 0
    file: int = 0
    known: bool = True
    mapped: bool = False
    mapped_writes: bool = False
    writers: set[int] = field(default_factory=set)


class Histories(RuleBasedStateMachine):
    """One session. Jobs write arrays at any moment while they run; a host is lost at any moment.

    The model knows every value. What is kept must be what the device had, as far as the client can
    tell: what jobs have written that failed with the host does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.copies = CoherenceTracker()
        self.arrays: dict[int, _Model] = {}
        self.running: list[int] = []
        self.reads: list[tuple[int, int]] = []
        self.value = 0
        self.jobs = 0
        self.next = 4096

    def _new_value(self) -> int:
        self.value += 1
        return self.value

    @rule()
    def allocate(self) -> None:
        self.copies.allocated(ONE, self.next, 10)
        self.arrays[self.next] = _Model()
        self.next += 4096

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.arrays)))
        self.copies.written(ONE, at, 0, 10)
        one = self.arrays[at]
        one.file = one.device = self._new_value()
        one.known = True
        one.mapped_writes = False
        one.writers.clear()

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def map(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.arrays)))
        assert self.copies.exported(ONE, at) == 10
        self.arrays[at].mapped = True

    @precondition(lambda self: any(one.mapped for one in self.arrays.values()))
    @rule(data=st.data())
    def client_writes_the_device(self, data: st.DataObject) -> None:
        mapped = [at for at in sorted(self.arrays) if self.arrays[at].mapped]
        one = self.arrays[data.draw(st.sampled_from(mapped))]
        one.device = self._new_value()
        one.mapped_writes = True

    @rule()
    def begin(self) -> None:
        self.jobs += 1
        self.running.append(self.jobs)
        self.copies.job_started(ONE)

    @precondition(lambda self: self.running and self.arrays)
    @rule(data=st.data())
    def job_writes(self, data: st.DataObject) -> None:
        one = self.arrays[data.draw(st.sampled_from(sorted(self.arrays)))]
        one.device = self._new_value()
        one.writers.add(data.draw(st.sampled_from(self.running)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.running))
        self.running.remove(job)
        self.copies.job_ended(ONE)

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def read_begins(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.arrays)))
        if self.arrays[at].known:
            self.reads.append((at, self.copies.begin_read(ONE, at)))

    @precondition(lambda self: self.reads)
    @rule()
    def read_ends(self) -> None:
        at, epoch = self.reads.pop(0)
        if at in self.arrays:
            one = self.arrays[at]
            one.file = one.device
            # The file now also has what jobs that still run have written on the device.
            self.copies.end_read(ONE, at, 0, 10, epoch)

    @precondition(lambda self: self.arrays)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(sorted(self.arrays)))
        self.copies.freed(ONE, at, self.jobs)
        self.copies.removed(ONE, at)
        del self.arrays[at]
        self.reads = [one for one in self.reads if one[0] != at]

    @rule()
    def lose_host(self) -> None:
        told = self.copies.host_lost("are gone")
        before = sum(one.known for one in self.arrays.values())
        for at, one in self.arrays.items():
            kept = self.copies.loss_reason(ONE, at) is None
            if kept and one.file != one.device:
                # Only jobs that were lost with the host may have caused the difference.
                assert one.writers, "a write that went to the device alone was nobody's"
                assert one.writers <= set(self.running), "kept, though a job that ended wrote it"
                assert not one.mapped_writes, "kept, though the client had written it"
            one.mapped = one.mapped_writes = False  # it has the old memory mapped
            one.known = one.known and kept
            one.device = one.file
            one.writers.clear()
        self.running.clear()
        self.reads.clear()
        after = sum(one.known for one in self.arrays.values())
        assert sum(count for _, count, _ in told) == before - after

    @invariant()
    def told(self) -> None:
        unknown = tuple(at for at, one in self.arrays.items() if not one.known)
        problem = self.copies.lost_arrays(ONE, self.jobs + 1)
        assert sorted(() if problem is None else problem.arrays) == sorted(unknown)

    @invariant()
    def in_the_file_is_in_the_file(self) -> None:
        for at, one in self.arrays.items():
            if self.copies.in_file(ONE, at):
                assert one.known
                assert one.file == one.device


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_kept_is_right = Histories.TestCase
