"""The head's decisions: which node an item goes to, when a node is lost, what waits and why.

Problem: the head knows nodes only by heartbeats, which are late, may be overtaken by others, or
stay away. Items come faster than heartbeats, and the head itself may die and come back knowing
nothing.

Approach: a state machine without clock and I/O; each event carries the time. `HeadState.beat`
keeps the latest heartbeat of each node, `ask` places an item or lets it wait, `tick` finds the
nodes that are stale or lost. Each returns the decisions that follow, for items that waited too.

* An item goes to the node with the highest F (`gpud_ray.placement.idle_rate`) among those with
  room: a GPU with the memory that the item needs, and fewer than `Settings.in_flight_per_gpu`
  items for each GPU. If there is none it waits here, where it can still go anywhere.
* Items placed on a node since its last heartbeat are in none of that heartbeat's figures. Their
  number divides what was idle, and their memory is taken off what was free. A heartbeat names the
  items that had arrived when it was made, and those that have ended, so both are known exactly.
* An item with a reservation needs a GPU that has so much left to be reserved, too: it would wait
  for the online jobs there, however much of the rest is idle.
* A tie (equal F) goes to the node with the fewest items in flight for its peak, then to the one
  where the item's data is (the asker's), then to the one that has waited longest.
* A heartbeat with a number not over the last one's, of the same life of the node's agent, was
  overtaken by that one: it is dropped.
* After a restart, heartbeats bring everything back: a node that is told of a new head sends all
  items that it has. A node that was called lost and beats again is a node like any other.

Properties (each has a test):
    * an item is at no more than one node that is not lost;
    * asking again for an item that is placed gives the same node, for as long as that node lives;
    * no GPU is given items that need more memory than it has free;
    * with equal events the decisions are equal;
    * an item waits for as long as a node that is there could take it some day (or for
      `Settings.room_wait_s`); one that none could ever take is refused after its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from gpud.units import share
from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.idle_rate import gpu_idle_rate
from gpud_ray.placement.settings import Settings

__all__ = ["Ask", "Beat", "Decision", "HeadState", "NodeLost", "Placed", "Refused"]

# An item that has not arrived after so many times `Settings.lost_s` is not on its way any more: who
# forwarded it has ended.
_ARRIVES = 10
_MOST_LOST = 100  # of the latest nodes that were lost
_EQUAL = 1e-9  # two rates that differ by less, relatively, are a tie


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat.

    Attributes:
        node: The node's name, which is Ray's id of it.
        life: Which life of the node's agent this is; a later one is higher.
        number: Of the heartbeat in that life, from 1.
        gpus: The node's GPUs; none while its gpud does not answer.
        arrived: Items that the node has taken since the last heartbeat that was answered.
        ended: Items that have ended there since then.
        holds: All items that it has, if the head has asked for them; else None.
        address: For people: host and socket of the node's gpud.
        serves: Whether the node has a gpud; one without only forwards what is submitted there.
    """

    node: str
    life: int
    number: int
    gpus: tuple[GPUReading, ...]
    arrived: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    holds: tuple[tuple[str, int], ...] | None = None
    address: str = ""
    serves: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """A question for a node.

    Attributes:
        item: The item's id.
        asker: The node at which it was submitted.
        memory_bytes: What its arrays take together.
        not_on: Nodes that have failed it: others are preferred.
        only_on: The one node that may take it; empty: any.
        reservation: The share that it runs with, as it is submitted to gpud; None: offline.
    """

    item: str
    asker: str
    memory_bytes: int = 0
    not_on: frozenset[str] = frozenset()
    only_on: str = ""
    reservation: float | str | None = None

    def sms_of(self, gpu: GPUReading) -> float:
        """Return how many SMs of a GPU it reserves."""
        return 0.0 if self.reservation is None else float(share(self.reservation, capacity=gpu.sms))

    def fits(self, gpu: GPUReading) -> bool:
        """Return whether the GPU is large enough for it, be it busy or not."""
        return gpu.memory_bytes >= self.memory_bytes and gpu.sms >= self.sms_of(gpu)


@dataclass(frozen=True, slots=True)
class Placed:
    """The item goes to this node; ``again`` if the head had said so before."""

    item: str
    node: str
    again: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The item cannot run; ``reason`` says why and what to do."""

    item: str
    reason: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is lost, with these items."""

    node: str
    items: tuple[str, ...]
    reason: str


Decision = Placed | Refused | NodeLost


@dataclass(slots=True)
class Node:
    """What the head knows of a node; ``items`` and ``unseen`` map items to bytes."""

    name: str
    beat: Beat
    at_s: float
    items: dict[str, int] = field(default_factory=dict)  # those that its last heartbeat knew
    unseen: dict[str, int] = field(default_factory=dict)  # placed since
    placed_s: dict[str, float] = field(default_factory=dict)  # when, of those
    reserves: dict[str, Ask] = field(default_factory=dict)  # those of them with reservations
    last_placed: int = 0

    @property
    def peak(self) -> float:
        """The core cycles of all its GPUs together, for comparison with other nodes'."""
        return sum(gpu.peak_core_mhz for gpu in self.beat.gpus) or 1.0

    @property
    def in_flight(self) -> int:
        """How many items it has."""
        return len(self.items) + len(self.unseen)


@dataclass(slots=True)
class Waiting:
    """An item that waits; ``hopeless_s``: since when no node could ever take it, if so."""

    ask: Ask
    since_s: float
    hopeless_s: float | None = None


class HeadState:
    """Nodes, items and what waits; see the module."""

    def __init__(self, settings: Settings, now_s: float) -> None:
        self.settings = settings
        self._started_s = now_s
        self.nodes: dict[str, Node] = {}
        self.waiting: dict[str, Waiting] = {}  # in the order in which they came
        self.lost: dict[str, str] = {}  # nodes and why, for those that ask about their items
        self.counts = dict.fromkeys(
            ("beats", "beats_overtaken", "placed", "ties", "refused", "nodes_lost"), 0
        )
        self._where: dict[str, str] = {}
        self._last_life: dict[str, int] = {}
        self._least_waiting = math.inf  # bytes: an item of as much would overtake one that waits

    # -- events

    def beat(self, beat: Beat, now_s: float) -> list[Decision]:
        """Take a heartbeat; items that waited may be placed by it."""
        self.counts["beats"] += 1
        node = self.nodes.get(beat.node)
        decisions: list[Decision] = []
        if beat.life < self._last_life.get(beat.node, 0):
            self.counts["beats_overtaken"] += 1
            return []
        if node is not None:
            if beat.life > node.beat.life:
                decisions += self.lose(beat.node, "its agent was started again")
                node = None
            elif beat.number <= node.beat.number:
                self.counts["beats_overtaken"] += 1
                return []
        self._last_life[beat.node] = beat.life
        if node is None:
            node = self.nodes[beat.node] = Node(beat.node, beat, now_s)
            self.lost.pop(beat.node, None)
        node.beat, node.at_s = beat, now_s
        self._account(node, beat)
        return decisions + self._place_waiting(now_s)

    def ask(self, ask: Ask, now_s: float) -> list[Decision]:
        """Place an item, or refuse it; without a decision for it, it waits."""
        where = self._where.get(ask.item)
        if where is not None and where not in ask.not_on:
            return [Placed(ask.item, where, again=True)]
        if where is not None:
            self._forget(ask.item)
        behind = _plain(ask) and ask.memory_bytes >= self._least_waiting
        decision = self._refusal(ask, now_s) if behind else self._decide(ask, now_s)
        if decision is None:
            hopeless_s = None if self._could_ever(ask) else now_s
            self.waiting.setdefault(ask.item, Waiting(ask, now_s, hopeless_s))
            if _plain(ask):
                self._least_waiting = min(self._least_waiting, ask.memory_bytes)
            return []
        self.waiting.pop(ask.item, None)
        return [decision]

    def lose(self, name: str, reason: str) -> list[Decision]:
        """Take a node out; the decision names the items that it had."""
        node = self.nodes.pop(name, None)
        if node is None:
            return []
        self.counts["nodes_lost"] += 1
        self.lost[name] = reason
        while len(self.lost) > _MOST_LOST:
            del self.lost[next(iter(self.lost))]
        items = (*node.items, *node.unseen)
        for item in items:
            self._where.pop(item, None)
        return [NodeLost(name, items, reason)]

    def tick(self, now_s: float) -> list[Decision]:
        """Find nodes whose heartbeats stay away, and items that have waited too long."""
        decisions: list[Decision] = []
        for node in list(self.nodes.values()):
            age = now_s - node.at_s
            if age > self.settings.lost_s:
                decisions += self.lose(
                    node.name, f"{self.settings.missed_beats} heartbeats are missing ({age:.1f} s)"
                )
            for item, placed_s in list(node.placed_s.items()):
                if now_s - placed_s > _ARRIVES * self.settings.lost_s:
                    self._forget(item)
        decisions += self._place_waiting(now_s)
        for one in list(self.waiting.values()):
            if (reason := self._expired(one, now_s)) is not None:
                del self.waiting[one.ask.item]
                self.counts["refused"] += 1
                decisions.append(Refused(one.ask.item, reason))
        return decisions

    # -- what others look at

    def stale(self, node: Node, now_s: float) -> bool:
        """Return whether a node's last heartbeat is old."""
        return now_s - node.at_s > self.settings.stale_s

    def rate(self, node: Node, ask: Ask | None = None) -> float:
        """Return F of a node for an item; 0 if no GPU is large enough."""
        gpus, memory = node.beat.gpus, self.settings.memory
        # The node gives its items to its GPUs by the same rule, so they are spread over them.
        share, more = divmod(len(node.unseen), len(gpus)) if gpus else (0, 0)
        taken = sum(node.unseen.values()) // max(len(gpus), 1)
        return max(
            (
                gpu_idle_rate(gpu, memory, unseen=share + (index < more), taken=taken)
                for index, gpu in enumerate(gpus)
                if not gpu.paused and (ask is None or ask.fits(gpu))
            ),
            default=0.0,
        )

    def has_room(self, node: Node, ask: Ask) -> bool:
        """Return whether a node may be given an item now."""
        if not self._has_turn(node):
            return False
        # In the worst case all unseen items are on the GPU that this one would need.
        unseen = sum(node.unseen.values())
        return any(
            gpu.memory_free_bytes - unseen >= ask.memory_bytes and self._can_reserve(node, gpu, ask)
            for gpu in node.beat.gpus
            if not gpu.paused
        )

    def waits_for(self, ask: Ask) -> str:
        """Say what keeps an item from being placed now, for people."""
        able = self._able(ask)
        if not able:
            if ask.only_on:
                return f"node {ask.only_on}, which has not reported"
            return "a node: none has reported" if not self.nodes else "a node with a gpud"
        if not any(node.beat.gpus for node in able):
            return "a gpud that answers: no node's does"
        if not self._could_ever(ask):
            return f"a GPU of {ask.memory_bytes:,} bytes{_reserving(ask)}: none is that large"
        if all(gpu.paused for node in able for gpu in node.beat.gpus):
            return "a GPU that is not paused"
        if not any(self._has_turn(node) for node in able):
            return (
                "its turn: each node has as many items as it is given at a time "
                f"({self.settings.in_flight_per_gpu} a GPU, setting in_flight_per_gpu)"
            )
        if not any(self.has_room(node, ask) for node in able):
            return (
                f"{ask.memory_bytes:,} bytes of free memory{_reserving(ask)}: nodes with a turn "
                "have less now"
            )
        return "the items before it"

    # -- steps

    def _has_turn(self, node: Node) -> bool:
        """Return whether a node has fewer items than it is given at a time."""
        limit = self.settings.in_flight_per_gpu
        gpus = sum(not gpu.paused for gpu in node.beat.gpus)
        return gpus > 0 and (not limit or node.in_flight < limit * gpus)

    def _can_reserve(self, node: Node, gpu: GPUReading, ask: Ask) -> bool:
        needed = ask.sms_of(gpu)
        unseen = sum(one.sms_of(gpu) for one in node.reserves.values())  # all may be on this GPU
        return not needed or gpu.sms - gpu.reserved_sms - unseen >= needed

    def _account(self, node: Node, beat: Beat) -> None:
        if beat.holds is not None:
            held = dict(beat.holds)
            for item in [one for one in node.items if one not in held]:
                self._forget(item)
            for item, size in held.items():
                node.unseen.pop(item, None)
                node.reserves.pop(item, None)
                node.items[item] = size
                self._where[item] = node.name
        for item in beat.arrived:
            if item in node.unseen:
                node.items[item] = node.unseen.pop(item)
                node.placed_s.pop(item, None)
                node.reserves.pop(item, None)
        for item in beat.ended:
            if self._where.get(item) == node.name:
                self._forget(item)

    def _forget(self, item: str) -> None:
        node = self.nodes.get(self._where.pop(item, ""))
        if node is not None:
            node.items.pop(item, None)
            node.unseen.pop(item, None)
            node.placed_s.pop(item, None)
            node.reserves.pop(item, None)

    def _place_waiting(self, now_s: float) -> list[Decision]:
        decisions: list[Decision] = []
        full: set[int] = set()  # sizes for which there was no room a moment ago
        for ask in [one.ask for one in self.waiting.values()]:
            general = _plain(ask) and not ask.not_on
            if general and any(ask.memory_bytes >= size for size in full):
                continue
            decision = self._decide(ask, now_s)
            if decision is not None:
                del self.waiting[ask.item]
                decisions.append(decision)
            elif general:
                full.add(ask.memory_bytes)
        self._least_waiting = min(
            (one.ask.memory_bytes for one in self.waiting.values() if _plain(one.ask)),
            default=math.inf,
        )
        return decisions

    def _refusal(self, ask: Ask, now_s: float) -> Refused | None:
        """Refuse an item that no GPU can hold. Not while some nodes may not have reported yet."""
        able = self._able(ask)
        all_reported = all(node.beat.gpus for node in self.nodes.values() if node.beat.serves)
        if not able or not all_reported or now_s - self._started_s < self.settings.lost_s:
            return None
        if self._could_ever(ask):
            return None
        gpus = [gpu for node in able for gpu in node.beat.gpus]
        most_bytes, most_sms = (max(gpu.memory_bytes for gpu in gpus), max(g.sms for g in gpus))
        self.counts["refused"] += 1
        return Refused(
            ask.item,
            f"it needs {ask.memory_bytes:,} bytes{_reserving(ask)}, and the largest GPU that may "
            f"take it has {most_bytes:,} and {most_sms} SMs; split it, or add a larger node",
        )

    def _able(self, ask: Ask) -> list[Node]:
        able = [
            node
            for node in self.nodes.values()
            if node.beat.serves and ask.only_on in ("", node.name)
        ]
        # A node that failed the item may have a new gpud by now: better than none.
        return [node for node in able if node.name not in ask.not_on] or able

    def _decide(self, ask: Ask, now_s: float) -> Decision | None:
        """Place or refuse an item; None: it has to wait."""
        refusal = self._refusal(ask, now_s)
        if refusal is not None:
            return refusal
        able = self._able(ask)
        with_room = [node for node in able if self.has_room(node, ask)]
        fresh = [node for node in with_room if not self.stale(node, now_s)]
        if not (chosen_from := fresh or with_room):
            return None
        node = self._most_idle(chosen_from, ask)
        node.unseen[ask.item] = ask.memory_bytes
        node.placed_s[ask.item] = now_s
        if ask.reservation is not None:
            node.reserves[ask.item] = ask
        self._where[ask.item] = node.name
        self.counts["placed"] += 1
        node.last_placed = self.counts["placed"]
        return Placed(ask.item, node.name)

    def _most_idle(self, nodes: Iterable[Node], ask: Ask) -> Node:
        rated = [(self.rate(node, ask), node) for node in nodes]
        best = max(rate for rate, _ in rated)
        equal = [node for rate, node in rated if rate >= best - _EQUAL * max(best, 1e-300)]
        if len(equal) == 1:
            return equal[0]
        self.counts["ties"] += 1
        return min(
            equal,
            key=lambda node: (
                node.in_flight / node.peak, node.name != ask.asker, node.last_placed
            ),
        )  # fmt: skip

    def _could_ever(self, ask: Ask) -> bool:
        """Return whether a node that is there has a GPU that is large enough, however busy."""
        return any(ask.fits(gpu) for node in self._able(ask) for gpu in node.beat.gpus)

    def _expired(self, one: Waiting, now_s: float) -> str | None:
        """Return why an item that waits shall wait no longer; None: it goes on."""
        most_s = self.settings.room_wait_s
        if self._could_ever(one.ask):
            one.hopeless_s = None
            waited_s = now_s - one.since_s
            if not most_s or waited_s <= most_s:
                return None
            return (
                f"it has waited {waited_s:.0f} s (setting room_wait_s) for "
                f"{self.waits_for(one.ask)}; add a node, or let it wait longer"
            )
        if one.hopeless_s is None:
            one.hopeless_s = now_s
        waited_s = now_s - one.hopeless_s
        if waited_s <= self.settings.place_wait_s:
            return None
        return (
            f"for {waited_s:.0f} s (setting place_wait_s) there was no node that could take it: "
            f"{self.waits_for(one.ask)}; see gpud-ray status"
        )


def _plain(ask: Ask) -> bool:
    """Return whether nothing but memory decides where an item has room."""
    return not ask.only_on and ask.reservation is None


def _reserving(ask: Ask) -> str:
    return "" if ask.reservation is None else f" and a reservation of {ask.reservation}"
