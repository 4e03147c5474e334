"""Compares ways of placing items in virtual time: idle rates, and what people do without them.

The idle rate is what the head decides with (`HeadState`, the same code), fed with simulated
heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import numpy as np

from gpud_ray.placement.head_state import Ask, Beat, HeadState, Placed
from gpud_ray.placement.idle_rate import IdleMemory, gpu_idle_rate
from gpud_ray.placement.settings import Settings
from placing.simulation import (
    FIRST_S,
    NODES,
    SimulatedItem,
    SimulatedNode,
    Simulation,
    make_items,
)

__all__ = ["BASELINES", "predictions", "run_baseline", "run_idle_rate"]

Run = dict[str, float]


def run_idle_rate(settings: Settings, count: int, seed: int, load: float | None) -> Run:
    """Run items placed by the head's own decisions."""
    head = HeadState(settings, -1e9)

    def carry_out(decisions: Sequence[Any]) -> None:
        for one in decisions:
            if isinstance(one, Placed):
                simulation.arrive(one.node, simulation.by_name[one.item])

    def place(item: SimulatedItem, now_s: float) -> None:
        carry_out(head.ask(Ask(item.name, "", item.memory_bytes), now_s))

    def beat(node: SimulatedNode, now_s: float) -> None:
        arrived, ended = tuple(node.arrived), tuple(node.ended)
        node.arrived, node.ended = [], []
        carry_out(
            head.beat(Beat(node.name, 1, node.number, node.readings(), arrived, ended), now_s)
        )

    items, others = make_items(count, seed, load=load, nodes=NODES)
    simulation = Simulation(NODES, items, others, place, beat, settings.period_s)
    return _told(simulation.run(), head.counts["ties"])


def run_baseline(name: str, count: int, seed: int, load: float | None) -> Run:
    """Run items placed by one of `BASELINES`."""
    items, others = make_items(count, seed, load=load, nodes=NODES)
    choose = BASELINES[name](seed)
    waiting: list[SimulatedItem] = []

    def place(item: SimulatedItem, _now_s: float) -> None:
        waiting.append(item)
        give()

    def give() -> None:
        while waiting:
            node = choose(waiting[0], list(simulation.nodes.values()))
            if node is None:
                return
            simulation.arrive(node, waiting.pop(0))

    # Those that wait are looked at as often as the head looks at its own.
    simulation = Simulation(NODES, items, others, place, lambda *_: give(), Settings().period_s)
    return _told(simulation.run(), 0)


def predictions(count: int, seed: int, load: float) -> dict[str, float]:
    """Return, for each reading, how well it predicts the throughput that items then reach.

    Items are placed at random. Before each, F of its node is taken from what a heartbeat would say
    just then; after it, its throughput: the time that it takes alone on a common GPU over the time
    that it took. The figure is Spearman's rank correlation of the two: 1 if the order agrees.
    """
    items, others = make_items(count, seed, load=load, nodes=NODES)
    rng = np.random.default_rng(seed)
    rated: dict[IdleMemory, list[float]] = {memory: [] for memory in get_args(IdleMemory)}

    def place(item: SimulatedItem, _now_s: float) -> None:
        node = simulation.nodes[str(rng.choice(sorted(simulation.nodes)))]
        gpus = node.readings()
        for memory, rates in rated.items():
            rates.append(max(gpu_idle_rate(gpu, memory) for gpu in gpus))
        simulation.arrive(node.name, item)

    simulation = Simulation(NODES, items, others, place, lambda *_: None, Settings().period_s)
    done = simulation.run()
    common = NODES["two common"][0]
    reached = [
        max(item.mega_cycles / (common.peak_core_mhz * min(item.sms / common.sms, 1)),
            item.mega_bits / common.peak_mbit_s) / (item.ended_s - item.began_s)
        for item in done
    ]  # fmt: skip
    order = [item.name for item in sorted(done, key=lambda item: item.arrives_s)]
    by_name = {item.name: value for item, value in zip(done, reached, strict=True)}
    values = [by_name[name] for name in order]
    return {name: _spearman(rates, values) for name, rates in rated.items()}


def _told(items: Sequence[SimulatedItem], ties: int) -> Run:
    took = np.array([item.ended_s - item.arrives_s for item in items])
    makespan = max(item.ended_s for item in items) - FIRST_S
    return {
        "makespan_s": makespan,
        "items_per_s": len(items) / makespan,
        "mean_s": float(took.mean()),
        "p99_s": float(np.percentile(took, 99)),
        "ties": float(ties),
    }


def _spearman(a: Sequence[float], b: Sequence[float]) -> float:
    def ranks(values: Sequence[float]) -> Any:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        ends = np.cumsum(counts)
        return ((2 * ends - counts - 1) / 2)[inverse]  # equal values share their mean rank

    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


# -- what people do without idle rates: each gives a function that chooses a node, or None: wait

Choose = Callable[[SimulatedItem, list[SimulatedNode]], str | None]


def _round_robin(_seed: int) -> Choose:
    turn = -1

    def choose(item: SimulatedItem, nodes: list[SimulatedNode]) -> str:
        nonlocal turn
        turn += 1
        return nodes[turn % len(nodes)].name

    return choose


def _random(seed: int) -> Choose:
    rng = np.random.default_rng(seed)
    return lambda item, nodes: nodes[int(rng.integers(len(nodes)))].name


def _least_loaded(_seed: int) -> Choose:
    return lambda item, nodes: min(nodes, key=lambda node: node.items() / len(node.gpus)).name


def _ray_default(seed: int) -> Choose:
    """Ray's hybrid policy, for tasks that ask for the SMs and the memory that they use.

    Nodes whose scarcest resource is used less than half count as equal, and one of the first is
    taken; else the one that is used least. A task that no node has the resources for waits.
    """
    rng = np.random.default_rng(seed)

    def used(node: SimulatedNode, item: SimulatedItem) -> float | None:
        sms = sum(gpu.figures.sms for gpu in node.gpus)
        memory = sum(gpu.figures.memory_bytes for gpu in node.gpus)
        mine = [one for gpu in node.gpus for one in gpu.running if one.name] + node.queue
        taken = sum(min(one.sms, sms) for one in mine)
        held = sum(one.memory_bytes for one in mine)
        if taken + min(item.sms, sms) > sms or held + item.memory_bytes > memory:
            return None
        share = max(taken / sms, held / memory)
        return 0.0 if share < 0.5 else share

    def choose(item: SimulatedItem, nodes: list[SimulatedNode]) -> str | None:
        scores = [(score, node.name) for node in nodes if (score := used(node, item)) is not None]
        if not scores:
            return None
        best = min(score for score, _ in scores)
        equal = [name for score, name in scores if score == best]
        return equal[int(rng.integers(max(1, len(nodes) // 5)))] if len(equal) > 1 else equal[0]

    return choose


BASELINES: dict[str, Callable[[int], Choose]] = {
    "round robin": _round_robin,
    "random": _random,
    "least loaded": _least_loaded,
    "Ray's default": _ray_default,
}
