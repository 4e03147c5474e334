"""The head's decisions: the properties that `gpud_ray.placement.head_state` names."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpud_ray.head import AwakeClock
from gpud_ray.placement.head_state import Ask, Beat, HeadState, NodeLost, Placed, Refused
from gpud_ray.placement.settings import Settings

GIB = 1 << 30


def head(*assignments: str, now_s: float = -1_000) -> HeadState:
    return HeadState(Settings().changed(["in_flight_per_gpu=0", *assignments]), now_s)


def place(state: HeadState, count: int, now_s: float = 0, **fields: Any) -> Counter[str]:
    """Ask for so many items; return how many each node got."""
    placed: Counter[str] = Counter()
    for number in range(count):
        for decision in state.ask(Ask(f"item {number} at {now_s}", "home", **fields), now_s):
            assert isinstance(decision, Placed)
            placed[decision.node] += 1
    return placed


def test_an_item_goes_to_the_most_idle_node(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("busy", nodes.gpu(idle_cores=0.1, idle_bandwidth=0.1, jobs=4)), 0)
    state.beat(nodes.beat("idle", nodes.gpu(idle_cores=0.9, idle_bandwidth=0.9, jobs=4)), 0)
    assert place(state, 1) == {"idle": 1}


def test_items_between_two_heartbeats_are_given_out_in_proportion(nodes: Any) -> None:
    state = head()
    for name, factor in {"three times": 3.0, "twice": 2.0, "once": 1.0}.items():
        state.beat(nodes.beat(name, nodes.gpu(core_clock_mhz=1_000 * factor)), 0)
    # As D'Hondt's method gives seats.
    expected = {"three times": 300, "twice": 200, "once": 100}
    placed = place(state, 600)
    assert set(placed) == set(expected)
    assert all(abs(placed[name] - count) <= 1 for name, count in expected.items())


def test_ties_are_counted_and_shared_out_by_items_in_flight(nodes: Any) -> None:
    state = head()
    for name in "abcd":
        state.beat(nodes.beat(name, nodes.gpu(memory_free_bytes=0)), 0)  # all F are 0
    assert place(state, 40) == dict.fromkeys("abcd", 10)
    assert state.counts["ties"] == 40


def test_a_tie_goes_to_the_node_that_has_the_data(nodes: Any) -> None:
    state = head()
    for name in ("a", "home", "z"):
        state.beat(nodes.beat(name), 0)
    assert place(state, 1) == {"home": 1}


def test_items_that_a_heartbeat_knows_are_not_counted_twice(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("a"), 0)
    state.beat(nodes.beat("b"), 0)
    (first,) = state.ask(Ask("x", "a"), 0)
    assert isinstance(first, Placed)
    assert first.node == "a"
    unseen = state.rate(state.nodes["a"])
    state.beat(nodes.beat("a", arrived=("x",)), 1)
    assert state.rate(state.nodes["a"]) == 2 * unseen
    state.beat(nodes.beat("a", ended=("x",)), 2)
    assert state.nodes["a"].in_flight == 0


def test_no_gpu_gets_items_for_which_it_has_no_memory(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("small", nodes.gpu(memory_bytes=4 * GIB, memory_free_bytes=4 * GIB)), 0)
    state.beat(nodes.beat("large", nodes.gpu(memory_free_bytes=6 * GIB)), 0)
    assert place(state, 3, memory_bytes=3 * GIB) == {"small": 1, "large": 2}
    assert state.ask(Ask("more", "home", 3 * GIB), 0) == []  # it waits
    assert place(state, 1, now_s=1, memory_bytes=GIB) == {"small": 1}  # a smaller one does not
    freed = nodes.beat("large", nodes.gpu(memory_free_bytes=10 * GIB),
                       ended=tuple(state.nodes["large"].unseen))  # fmt: skip
    assert state.beat(freed, 2) == [Placed("more", "large")]


def test_an_item_larger_than_any_gpu_is_refused_with_the_largest(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("a"), 0)
    (refused,) = state.ask(Ask("x", "a", 11 * GIB), 0)
    assert isinstance(refused, Refused)
    assert f"{11 * GIB:,}" in refused.reason
    assert f"{10 * GIB:,}" in refused.reason


def test_a_new_head_refuses_nothing_before_every_node_could_report(nodes: Any) -> None:
    state = head(now_s=0)
    state.beat(nodes.beat("small"), 0.1)
    assert state.ask(Ask("x", "a", 11 * GIB), 0.2) == []
    large = nodes.gpu(memory_bytes=80 * GIB, memory_free_bytes=80 * GIB)
    assert state.beat(nodes.beat("large", large), 0.3) == [Placed("x", "large")]


def test_a_node_is_stale_and_then_lost_and_may_come_back(nodes: Any) -> None:
    state = head("period_s=1", "stale_beats=2", "missed_beats=5")
    state.beat(nodes.beat("a", nodes.gpu(core_clock_mhz=9_000)), 0)
    state.beat(nodes.beat("b"), 2.5)
    # a is the better one, and its last heartbeat is old: it gets an item only if no other can.
    assert place(state, 1, now_s=2.6) == {"b": 1}
    (placed,) = state.ask(Ask("x", "a", only_on="a"), 2.7)
    assert placed == Placed("x", "a")
    assert state.tick(5.0) == []
    (lost,) = state.tick(5.1)
    assert isinstance(lost, NodeLost)
    assert (lost.node, lost.items) == ("a", ("x",))
    assert state.lost["a"] == "5 heartbeats are missing (5.1 s)"
    state.beat(nodes.beat("a"), 6)
    assert "a" in state.nodes
    assert "a" not in state.lost


def test_a_head_that_was_held_up_takes_no_node_for_lost(nodes: Any) -> None:
    ticks = [0.0]
    clock = AwakeClock(lambda: ticks[0])
    state = head("period_s=1", "stale_beats=2", "missed_beats=5")
    state.beat(nodes.beat("a"), clock.now_s(1))
    for ticks[0] in (1.0, 2.0, 3.0, 60.0):  # it got no processor for nearly a minute
        assert state.tick(clock.now_s(1)) == []
    assert clock.held_up_s == 55
    state.beat(nodes.beat("a"), clock.now_s(1))
    for ticks[0] in (61.0, 62.0, 63.0, 64.0, 65.0):
        assert state.tick(clock.now_s(1)) == []
    ticks[0] = 66.0
    (lost,) = state.tick(clock.now_s(1))  # these it could have heard
    assert isinstance(lost, NodeLost)


def test_a_heartbeat_that_was_overtaken_is_dropped(nodes: Any) -> None:
    state = head()
    first = nodes.beat("a", nodes.gpu(idle_cores=1))
    second = nodes.beat("a", nodes.gpu(idle_cores=0.5))
    state.beat(second, 1)
    state.beat(first, 2)
    assert state.nodes["a"].beat is second
    assert state.nodes["a"].at_s == 1
    state.beat(nodes.beat("a", life=2), 3)
    state.beat(nodes.beat("a", life=1), 4)  # of the life before
    assert state.nodes["a"].beat.life == 2
    assert state.counts["beats_overtaken"] == 2


def test_an_agent_that_was_started_again_has_lost_its_items(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("a"), 0)
    state.ask(Ask("x", "a"), 0)
    (lost,) = state.beat(nodes.beat("a", life=2), 1)
    assert lost == NodeLost("a", ("x",), "its agent was started again")


def test_a_new_head_learns_from_heartbeats_what_nodes_hold(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("a"), 0)
    state.beat(nodes.beat("b"), 0)
    state.beat(nodes.beat("b", holds=(("x", GIB),)), 1)
    # Its asker lost the last head's answer and asks again.
    assert state.ask(Ask("x", "a", GIB), 1) == [Placed("x", "b", again=True)]
    assert state.nodes["b"].in_flight == 1


def test_an_item_whose_node_failed_goes_elsewhere_or_back_if_there_is_no_other(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("a", nodes.gpu(core_clock_mhz=9_000)), 0)
    state.beat(nodes.beat("b"), 0)
    assert state.ask(Ask("x", "a"), 0) == [Placed("x", "a")]
    assert state.ask(Ask("x", "a", not_on=frozenset("a")), 0) == [Placed("x", "b")]
    assert state.ask(Ask("x", "a", not_on=frozenset("ab")), 0) == [Placed("x", "a")]


def test_an_item_that_no_node_could_take_is_refused_after_its_time(nodes: Any) -> None:
    state = head("place_wait_s=5", "missed_beats=1000")
    assert state.ask(Ask("x", "a"), 0) == []
    assert state.tick(5) == []
    (refused,) = state.tick(5.1)
    assert isinstance(refused, Refused)
    assert "none has reported" in refused.reason
    assert state.waiting == {}
    # Its time begins when the last node that could have taken it has gone.
    state.beat(nodes.beat("a", nodes.gpu(memory_free_bytes=0)), 10)
    assert state.ask(Ask("y", "a", GIB), 10) == []
    assert state.tick(100) == []
    state.lose("a", "it was taken out")
    assert state.tick(101) == []
    assert state.tick(106) == []
    assert [one.item for one in state.tick(106.1) if isinstance(one, Refused)] == ["y"]


def test_an_item_waits_without_limit_for_room_on_a_node_that_is_there(nodes: Any) -> None:
    state = head("in_flight_per_gpu=1", "missed_beats=1000000000")
    state.beat(nodes.beat("a", nodes.gpu(memory_free_bytes=4 * GIB)), 0)
    state.ask(Ask("runs", "a"), 0)
    for item, size in (("turn", GIB), ("behind", GIB), ("large", 6 * GIB)):
        assert state.ask(Ask(item, "a", size), 0) == []
    assert state.tick(1e6) == []
    assert "in_flight_per_gpu" in state.waits_for(state.waiting["turn"].ask)
    ended = nodes.beat("a", nodes.gpu(memory_free_bytes=4 * GIB), arrived=("runs",),
                       ended=("runs",))  # fmt: skip
    assert state.beat(ended, 1e6) == [Placed("turn", "a")]
    full = nodes.beat("b", nodes.gpu(memory_free_bytes=0))
    assert state.beat(full, 1e6) == []
    assert f"{6 * GIB:,} bytes of free memory" in state.waits_for(state.waiting["large"].ask)
    assert state.tick(2e6) == []

    state.settings = state.settings.changed(["room_wait_s=5"])
    refused = state.tick(2e6)
    assert [one.item for one in refused if isinstance(one, Refused)] == ["behind", "large"]
    assert all("room_wait_s" in one.reason for one in refused if isinstance(one, Refused))


def test_a_paused_gpu_gets_nothing_and_its_items_wait(nodes: Any) -> None:
    state = head("place_wait_s=5", "missed_beats=1000")
    state.beat(nodes.beat("a", nodes.gpu(paused=True)), 0)
    assert state.ask(Ask("x", "a", GIB), 0) == []
    assert state.tick(100) == []
    assert "paused" in state.waits_for(state.waiting["x"].ask)
    assert state.beat(nodes.beat("a"), 100) == [Placed("x", "a")]


def test_items_with_reservations_go_where_so_much_can_be_reserved(nodes: Any) -> None:
    state = head()
    state.beat(nodes.beat("idle, all reserved", nodes.gpu(reserved_sms=60.0)), 0)
    state.beat(nodes.beat("busy", nodes.gpu(idle_cores=0.1, jobs=6, reserved_sms=10.0)), 0)
    assert place(state, 1) == {"idle, all reserved": 1}
    # A quarter is 17 of 68 SMs: three fit beside 10, and none beside 60.
    assert place(state, 3, now_s=1, reservation="25%") == {"busy": 3}
    assert state.ask(Ask("fourth", "home", reservation="25%"), 1) == []
    assert "a reservation of 25%" in state.waits_for(state.waiting["fourth"].ask)
    assert state.ask(Ask("small", "home", reservation=5), 1) == [
        Placed("small", "idle, all reserved")
    ]
    (refused,) = state.ask(Ask("large", "home", reservation=69), 1)
    assert isinstance(refused, Refused)
    assert "68 SMs" in refused.reason


def test_items_wait_at_the_head_while_nodes_have_enough(nodes: Any) -> None:
    state = head("in_flight_per_gpu=2")
    state.beat(nodes.beat("a"), 0)
    for number in range(5):
        state.ask(Ask(str(number), "a"), 0)
    assert list(state.waiting) == ["2", "3", "4"]
    beat = nodes.beat("a", arrived=("0", "1"), ended=("0",))
    assert state.beat(beat, 1) == [Placed("2", "a")]


class Heads(RuleBasedStateMachine):
    """Random histories of nodes and items, with the truth beside."""

    NODES = st.sampled_from("abcd")

    @initialize(limit=st.integers(0, 3))
    def begin(self, limit: int) -> None:
        assignments = [f"in_flight_per_gpu={limit}", "place_wait_s=10", "period_s=1"]
        self.states = [HeadState(Settings().changed(assignments), 0) for _ in range(2)]
        self.now_s, self.items = 0.0, 0
        self.numbers: Counter[str] = Counter()
        self.at: dict[str, set[str]] = {}

    def feed(self, event: Any) -> None:
        first, second = (event(state) for state in self.states)
        assert first == second, "equal events, other decisions"
        for decision in first:
            if isinstance(decision, Placed) and not decision.again:
                assert not any(decision.item in items for items in self.at.values())
                self.at[decision.node].add(decision.item)
            elif isinstance(decision, NodeLost):
                assert set(decision.items) == self.at.pop(decision.node)

    @rule(node=NODES, gone=st.floats(0, 1), free=st.integers(0, 4))
    def beat(self, node: str, gone: float, free: int) -> None:
        self.now_s += 0.1
        self.numbers[node] += 1
        held = sorted(self.at.setdefault(node, set()))
        ended = held[: round(gone * len(held))]
        self.at[node] -= set(ended)
        gpu = _gpu(free * GIB)
        beat = Beat(node, 1, self.numbers[node], (gpu,), tuple(held), tuple(ended))
        self.feed(lambda state: state.beat(beat, self.now_s))

    @rule(asker=NODES, size=st.integers(0, 5))
    def ask(self, asker: str, size: int) -> None:
        self.items += 1
        ask = Ask(str(self.items), asker, size * GIB)
        self.feed(lambda state: state.ask(ask, self.now_s))

    @rule(number=st.integers(1, 50))
    def ask_again(self, number: int) -> None:
        where = [node for node, items in self.at.items() if str(number) in items]
        if where:
            answers = [state.ask(Ask(str(number), "a"), self.now_s) for state in self.states]
            assert answers == [[Placed(str(number), where[0], again=True)]] * 2

    @rule(seconds=st.floats(0.1, 6))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.feed(lambda state: state.tick(self.now_s))

    @invariant()
    def nothing_waits_too_long_or_is_in_two_places(self) -> None:
        for state in getattr(self, "states", ()):
            places = Counter(
                item for node in state.nodes.values() for item in (*node.items, *node.unseen)
            )
            assert all(count == 1 for count in places.values())
            assert not set(places) & set(state.waiting)
            for node in state.nodes.values():
                free = node.beat.gpus[0].memory_free_bytes if node.beat.gpus else 0
                assert sum(node.unseen.values()) <= free


def _gpu(free: int) -> Any:
    from dataclasses import replace

    from gpud_ray.placement.gpu_reading import GPUReading

    common = GPUReading(
        index=0, name="a GPU", core_clock_mhz=1, sms=1, cores_per_sm=1, idle_cores=1,
        memory_clock_mhz=1, bus_width_bits=1, idle_bandwidth=1, memory_bytes=4 * GIB,
        memory_free_bytes=4 * GIB,
    )  # fmt: skip
    return replace(common, memory_free_bytes=free)


Heads.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestHeads = Heads.TestCase
