"""Which jobs wait for pending writes of their sessions: by example, and against a model."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpud.core.memory.pending_writes import PendingWrites
from gpud.units import SessionId

ONE, OTHER = SessionId(1), SessionId(2)


def test_a_job_waits_for_what_was_written_before_it_and_no_later() -> None:
    writes = PendingWrites()
    first = writes.begin(ONE, 0)
    second = writes.begin(ONE, 1)
    assert [writes.is_waited_for(ONE, job) for job in (0, 1, 2)] == [False, True, True]
    assert not writes.is_waited_for(OTHER, 1)
    writes.end(ONE, [first])
    assert [writes.is_waited_for(ONE, job) for job in (1, 2)] == [False, True]
    writes.end(ONE, [second, second])
    assert not writes.is_waited_for(ONE, 2)


def test_nothing_is_kept_of_a_session_that_has_gone() -> None:
    writes = PendingWrites()
    number = writes.begin(ONE, 0)
    writes.closed(ONE)
    writes.end(ONE, [number])
    writes.closed(ONE)
    assert not writes.is_waited_for(ONE, 1)


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_found_and_no_later(data: st.DataObject) -> None:
    writes, jobs = PendingWrites(), 0
    left: dict[int, int] = {}
    for what in data.draw(st.lists(st.sampled_from("jww+"), max_size=30)):
        if what == "j":
            jobs += 1
        elif what == "w":
            left[writes.begin(ONE, jobs)] = jobs
        elif left:
            number = data.draw(st.sampled_from(sorted(left)))
            del left[number]
            writes.end(ONE, [number])
        for job in range(1, jobs + 2):
            told_before = any(last_job < job for last_job in left.values())
            assert writes.is_waited_for(ONE, job) is told_before
