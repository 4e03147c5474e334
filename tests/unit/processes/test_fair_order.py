"""The fair order: turns between parties, one item of each under way, and no trace afterwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpud.processes.fair_order import FairOrder


def order_of(**items: str) -> FairOrder[str, str]:
    order: FairOrder[str, str] = FairOrder()
    for party, names in items.items():
        for name in names:
            order.put(party, party + name)
    return order


def run_all(order: FairOrder[str, str]) -> list[str]:
    begun = []
    while (turn := order.take()) is not None:
        begun.append(turn[1])
        order.done(turn[0])
    return begun


def test_fair() -> None:
    assert run_all(order_of(a="123", b="1", c="12")) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_one_at_a_time() -> None:
    order = order_of(a="12", b="1")
    assert [order.take(), order.take(), order.take()] == [("a", "a1"), ("b", "b1"), None]
    order.done("b")
    assert order.take() is None
    order.done("a")
    assert order.take() == ("a", "a2")


def test_an_item_that_is_put_back_is_its_partys_first() -> None:
    order = order_of(a="12", b="12")
    assert order.take() == ("a", "a1")
    order.put_back("a", "a1")
    assert run_all(order) == ["b1", "a1", "b2", "a2"]
    order = order_of(a="12", b="1")
    order.take()
    order.put_back("a", "a1", keeps_turn=True)
    assert run_all(order) == ["a1", "b1", "a2"]


def test_an_item_waits_once() -> None:
    order = order_of(a="1121")
    assert order.waiting("a") == ["a1", "a2"]
    assert run_all(order) == ["a1", "a2"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["put", "take", "done", "back", "remove"]), st.integers(0, 2)),
        max_size=60,
    )
)
def test_nothing_is_lost_or_kept(steps: list[tuple[str, int]]) -> None:
    """Against a list: every item is begun once, in its party's order, and parties are forgotten."""
    order: FairOrder[int, int] = FairOrder()
    waiting: dict[int, list[int]] = {0: [], 1: [], 2: []}
    under_way: dict[int, int] = {}
    for number, (step, party) in enumerate(steps):
        if step == "put":
            order.put(party, number)
            waiting[party].append(number)
        elif step == "take":
            turn = order.take()
            can = [one for one in waiting if waiting[one] and one not in under_way]
            assert (turn is None) == (not can)
            if turn is not None:
                assert turn[0] in can
                assert turn[1] == waiting[turn[0]].pop(0)
                under_way[turn[0]] = turn[1]
        elif step == "remove" and waiting[party]:
            order.remove(waiting[party].pop(), party)
        elif party in under_way and step == "done":
            del under_way[party]
            order.done(party)
        elif party in under_way and step == "back":
            waiting[party].insert(0, under_way[party])
            order.put_back(party, under_way.pop(party))
        assert {one: order.waiting(one) for one in waiting} == waiting
        assert len(order) == len([one for one in waiting if waiting[one] or one in under_way])
