"""The timer queue: order, and pruning of obsolete timers."""

from __future__ import annotations

from gpud.core.timers import Timer, Timers


def test_times_come_in_order_when_they_are_due() -> None:
    timers = Timers()
    for at_ns in (30, 10, 20):
        timers.add(at_ns, Timer.TIMEOUT, at_ns)
    assert timers.pop(9) is None
    assert timers.pop(25) == (10, Timer.TIMEOUT, 10)
    assert timers.pop(25) == (20, Timer.TIMEOUT, 20)
    assert timers.pop(25) is None


def test_what_does_not_matter_is_dropped_from_the_front() -> None:
    timers = Timers()
    for at_ns in (10, 20, 30):
        timers.add(at_ns, Timer.GRACE, at_ns)
    assert timers.first_ns(lambda due: due[2] != 10) == 20
    assert timers.first_ns(lambda due: True) == 20, "the first one is gone"
    assert timers.first_ns(lambda due: False) is None


def test_tidying_keeps_what_matters_and_waits_until_it_is_worth_it() -> None:
    timers = Timers()
    for at_ns in range(1000):
        timers.add(at_ns, Timer.TIMEOUT, at_ns)
    timers.prune(1000, lambda due: False)
    assert timers.first_ns(lambda due: True) == 0
    timers.prune(10, lambda due: due[2] % 100 == 99)
    found = []
    while (due := timers.pop(10**6)) is not None:
        found.append(due[0])
    assert found == list(range(99, 1000, 100))
