"""Nodes, GPUs and items in virtual time, to compare ways of placing items.

Model: a GPU has core cycles and memory bits a second (clock x SMs x cores, clock x bus width) and
shares both equally among its items, as gpud does; what an item cannot use goes to the others. An
item has core cycles to do, bits to move, memory to hold, and a number of SMs beyond which it gains
nothing. It runs at the rate of the scarcer of the two. Programs of other people come and go on
each GPU, as further items that no head has placed. A node takes an item when its memory fits, in
the order of their arrival, and runs it on the most idle of its GPUs, as the agent does.

What is not modelled: transfers, launch costs, and that more warps hide more latency. So nothing
here can speak for warpSize but what it does to the order of GPUs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from gpud_ray.placement.gpu_reading import GPUReading
from gpud_ray.placement.idle_rate import gpu_idle_rate

__all__ = ["FIRST_S", "NODES", "SimulatedItem", "SimulatedNode", "Simulation", "make_items"]

FIRST_S = 1.0
"""When the first item may come: every node has sent a heartbeat by then."""
_GIB = 1 << 30
_LEFT = 1e-9  # a part of an item that is none


def _gpu(name: str, clock: float, sms: int, cores: int, memory_clock: float, bus: int, gib: int,
         warps: int) -> GPUReading:  # fmt: skip
    return GPUReading(
        index=0, name=name, core_clock_mhz=clock, sms=sms, cores_per_sm=cores, idle_cores=1,
        memory_clock_mhz=memory_clock, bus_width_bits=bus, idle_bandwidth=1,
        memory_bytes=gib * _GIB, memory_free_bytes=gib * _GIB, warps_per_sm=warps,
    )  # fmt: skip


_LARGE = _gpu("large", 1_410, 108, 64, 1_593, 5_120, 40, 64)
_COMMON = _gpu("common", 1_710, 68, 128, 9_501, 320, 10, 48)
_SMALL = _gpu("small", 2_460, 24, 128, 8_500, 128, 8, 48)
_OLD = _gpu("old", 1_590, 40, 64, 5_001, 256, 16, 32)
NODES = {"large": (_LARGE,), "two common": (_COMMON, _COMMON), "small": (_SMALL,), "old": (_OLD,)}
"""Four unequal nodes, with data of an A100 40 GB, RTX 3080, RTX 4060 and T4 (makers' data
sheets)."""


@dataclass(slots=True)
class SimulatedItem:
    """An item, or a program of somebody else's if it has no name.

    Attributes:
        name: Its id.
        mega_cycles: Core cycles to do, in 10^6.
        mega_bits: Bits to move, in 10^6.
        memory_bytes: What it holds while it runs.
        sms: How many SMs it can use.
        arrives_s: When it is submitted.
    """

    name: str
    mega_cycles: float
    mega_bits: float
    memory_bytes: int
    sms: float
    arrives_s: float = FIRST_S
    began_s: float = 0.0
    ended_s: float = 0.0
    left: float = 1.0
    rate: float = 0.0


@dataclass(slots=True)
class _GPU:
    figures: GPUReading
    running: list[SimulatedItem] = field(default_factory=list)
    now_s: float = 0.0
    used_cores: float = 0.0
    used_bandwidth: float = 0.0

    @property
    def free_bytes(self) -> int:
        return self.figures.memory_bytes - sum(item.memory_bytes for item in self.running)

    def advance(self, now_s: float) -> None:
        for item in self.running:
            item.left -= item.rate * (now_s - self.now_s)
        self.now_s = now_s

    def share(self) -> None:
        """Divide cores and bandwidth, and set each item's rate: parts of it a second."""
        figures, running = self.figures, self.running
        cores = _max_min([min(item.sms / figures.sms, 1.0) for item in running])
        by_cores = [
            part * figures.peak_core_mhz / item.mega_cycles if item.mega_cycles else np.inf
            for part, item in zip(cores, running, strict=True)
        ]
        wanted = [
            min(rate * item.mega_bits / figures.peak_mbit_s, 1.0) if item.mega_bits else 0.0
            for rate, item in zip(by_cores, running, strict=True)
        ]
        bandwidth = _max_min(wanted)
        for item, limit, part in zip(running, by_cores, bandwidth, strict=True):
            by_bits = part * figures.peak_mbit_s / item.mega_bits if item.mega_bits else np.inf
            item.rate = float(min(limit, by_bits))
        self.used_cores = min(sum(cores), 1.0)
        self.used_bandwidth = min(sum(bandwidth), 1.0)

    def next_end_s(self) -> float:
        return min(
            (self.now_s + max(item.left, 0) / item.rate for item in self.running), default=np.inf
        )

    def reading(self, index: int) -> GPUReading:
        return replace(
            self.figures, index=index, idle_cores=1 - self.used_cores,
            idle_bandwidth=1 - self.used_bandwidth, memory_free_bytes=max(self.free_bytes, 0),
            jobs=len(self.running),
        )  # fmt: skip


@dataclass(slots=True)
class SimulatedNode:
    """A node: its GPUs, and the items that wait there for memory."""

    name: str
    gpus: list[_GPU]
    queue: list[SimulatedItem] = field(default_factory=list)
    arrived: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    number: int = 0

    def readings(self) -> tuple[GPUReading, ...]:
        """Return what a heartbeat says now."""
        return tuple(gpu.reading(index) for index, gpu in enumerate(self.gpus))

    def items(self) -> int:
        """Return how many items it has, without the programs of others."""
        return len(self.queue) + sum(bool(item.name) for gpu in self.gpus for item in gpu.running)


class Simulation:
    """A run of items on nodes.

    Args:
        nodes: The GPUs of each node.
        items: To be submitted at their times.
        others: Programs of others: node, GPU, and the item that stands for it.
        place: Called with an item and the time; it calls `arrive`, now or later.
        beat: Called with a node and the time, every ``period_s``.
        period_s: Between two heartbeats.
    """

    def __init__(
        self,
        nodes: Mapping[str, Sequence[GPUReading]],
        items: Sequence[SimulatedItem],
        others: Sequence[tuple[str, int, SimulatedItem]],
        place: Callable[[SimulatedItem, float], None],
        beat: Callable[[SimulatedNode, float], None],
        period_s: float,
    ) -> None:
        self.nodes = {
            name: SimulatedNode(name, [_GPU(one) for one in gpus]) for name, gpus in nodes.items()
        }
        self.by_name = {item.name: item for item in items}
        self._place, self._beat, self._period_s = place, beat, period_s
        self._left = len(items)
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._number = 0
        self.now_s = 0.0
        for item in items:
            self._at(item.arrives_s, partial(place, item))
        for node, gpu, item in others:
            self._at(item.arrives_s, partial(self._begin_other, self.nodes[node].gpus[gpu], item))
        for index, one in enumerate(self.nodes.values()):
            self._at(index * period_s / len(nodes), partial(self._beat_on, one))

    def run(self) -> list[SimulatedItem]:
        """Run until every item has ended, and return them."""
        gpus = [(gpu, node) for node in self.nodes.values() for gpu in node.gpus]
        while self._left:
            end_s, index = min((gpu.next_end_s(), index) for index, (gpu, _) in enumerate(gpus))
            if self._events and self._events[0][0] <= end_s:
                self.now_s, _, event = heapq.heappop(self._events)
                event(self.now_s)
                continue
            if end_s == np.inf:
                raise AssertionError(f"{self._left} items never end: nothing runs, nothing comes")
            self.now_s = float(end_s)
            self._end(*gpus[index])
        return list(self.by_name.values())

    def arrive(self, node: str, item: SimulatedItem) -> None:
        """Have an item arrive at a node now."""
        where = self.nodes[node]
        item.began_s = self.now_s
        where.arrived.append(item.name)
        where.queue.append(item)
        self._admit(where)

    # -- steps

    def _at(self, time_s: float, event: Callable[[float], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (time_s, self._number, event))

    def _beat_on(self, node: SimulatedNode, now_s: float) -> None:
        node.number += 1
        self._beat(node, now_s)
        self._at(now_s + self._period_s, partial(self._beat_on, node))

    def _begin_other(self, gpu: _GPU, item: SimulatedItem, _now_s: float) -> None:
        self._begin(gpu, item)

    def _begin(self, gpu: _GPU, item: SimulatedItem) -> None:
        gpu.advance(self.now_s)
        gpu.running.append(item)
        gpu.share()

    def _admit(self, node: SimulatedNode) -> None:
        while node.queue:
            item = node.queue[0]
            able = [gpu for gpu in node.gpus if gpu.free_bytes >= item.memory_bytes]
            if not able:
                return
            node.queue.pop(0)
            self._begin(max(able, key=lambda gpu: gpu_idle_rate(gpu.reading(0))), item)

    def _end(self, gpu: _GPU, node: SimulatedNode) -> None:
        gpu.advance(self.now_s)
        over = [item for item in gpu.running if item.left <= _LEFT]
        gpu.running = [item for item in gpu.running if item.left > _LEFT]
        gpu.share()
        for item in over:
            item.ended_s = self.now_s
            if item.name:
                self._left -= 1
                node.ended.append(item.name)
        self._admit(node)


def make_items(
    count: int, seed: int, *, load: float | None, nodes: Mapping[str, Sequence[GPUReading]]
) -> tuple[list[SimulatedItem], list[tuple[str, int, SimulatedItem]]]:
    """Draw mixed items and programs of others.

    A third each is bound by cores, by bandwidth, and by neither alone. Alone on a common GPU an
    item takes 0.1 to 2 seconds.

    Args:
        count: How many items.
        seed: Of the random numbers.
        load: They come one by one, so that they take this part of all GPUs; None: all at once.
        nodes: For the load, and on whose GPUs the programs of others run.
    """
    rng = np.random.default_rng(seed)
    items = []
    for number in range(count):
        alone_s = float(rng.uniform(0.1, 2.0))
        cycles, bits = ((1.0, 0.1), (0.1, 1.0), (0.6, 0.6))[number % 3]
        sms = float(rng.choice([8, 16, 34, 68]))
        items.append(
            SimulatedItem(
                f"item {number}",
                alone_s * cycles * _COMMON.peak_core_mhz * min(sms / _COMMON.sms, 1.0),
                alone_s * bits * _COMMON.peak_mbit_s * min(sms / _COMMON.sms, 1.0),
                int(rng.uniform(0.05, 2.0) * _GIB),
                sms,
            )
        )
    rng.shuffle(items)
    total = sum(gpu.peak_core_mhz for gpus in nodes.values() for gpu in gpus)
    on_common_s = sum(
        max(item.mega_cycles / _COMMON.peak_core_mhz, item.mega_bits / _COMMON.peak_mbit_s)
        for item in items
    )
    needed_s = on_common_s * _COMMON.peak_core_mhz / total
    if load is not None:
        gaps = rng.exponential(needed_s / load / count, count)
        for item, time_s in zip(items, np.cumsum(gaps), strict=True):
            item.arrives_s = FIRST_S + float(time_s)
    others = []
    span_s = needed_s / (load or 1.0)
    for node, gpus in nodes.items():
        for index, gpu in enumerate(gpus):
            time_s = float(rng.exponential(span_s / 8))
            while time_s < 2 * span_s:
                part, long_s = rng.uniform(0.2, 0.9), float(rng.exponential(span_s / 8))
                cycles = gpu.peak_core_mhz * part * long_s
                bits = gpu.peak_mbit_s * rng.uniform(0.1, 0.9) * part * long_s
                sms = gpu.sms * part
                other = SimulatedItem("", cycles, bits, gpu.memory_bytes // 8, sms, time_s)
                others.append((node, index, other))
                time_s += long_s + float(rng.exponential(span_s / 8))
    return items, others


def _max_min(caps: Sequence[float]) -> list[float]:
    """Divide 1 equally, no more than its cap to each; what one leaves goes to the others."""
    parts = [0.0] * len(caps)
    left, waiting = 1.0, sorted(range(len(caps)), key=caps.__getitem__)
    for done, index in enumerate(waiting):
        parts[index] = min(caps[index], left / (len(caps) - done))
        left -= parts[index]
    return parts
