"""The head: an actor that answers on which node an item shall run.

It is a shell around `gpud_ray.placement.head_state`, which decides: it gives it the time, and
holds the questions of items that wait. It keeps nothing that heartbeats do not bring back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import ray

from gpud_ray.membership import MakeAgent, Membership
from gpud_ray.placement.head_state import (
    Ask,
    Beat,
    Decision,
    HeadState,
    NodeLost,
    Placed,
    Refused,
)
from gpud_ray.placement.idle_rate import gpu_idle_rate
from gpud_ray.placement.settings import Settings

__all__ = ["Answer", "AwakeClock", "Head"]

_LATE = 2  # periods after which the head itself was held up: it ticks every one


class AwakeClock:
    """Time in which the head could have heard a heartbeat.

    A head that got no processor for some seconds has heard nobody in them; they count as two
    periods, or it would take all nodes for lost when it goes on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_s = clock()
        self.held_up_s = 0.0

    def now_s(self, period_s: float) -> float:
        """Return the time; called at least every period while the head is awake."""
        now_s = self._clock()
        self.held_up_s += max(0.0, now_s - self._last_s - _LATE * period_s)
        self._last_s = now_s
        return now_s - self.held_up_s


@dataclass(frozen=True, slots=True)
class Answer:
    """The head's answer to a heartbeat.

    Attributes:
        head: Which life of the head this is.
        settings: Those of the cluster.
        wants_all: Whether the next heartbeat shall name all items that the node holds.
        lost: Nodes that are lost, and why.
    """

    head: str
    settings: Settings
    wants_all: bool
    lost: dict[str, str]


class Head:
    """The actor; its methods are called by agents and by the command line."""

    def __init__(self, settings: Settings, make_agent: MakeAgent) -> None:
        self._life = os.urandom(8).hex()
        self._started_s = time.time()
        self._clock = AwakeClock()
        self._state = HeadState(settings, self._now_s(settings))
        self._membership = Membership(self._state, self._lost, make_agent)
        self._waiting: dict[str, asyncio.Future[Placed | Refused]] = {}
        self._ticking: asyncio.Task[None] | None = None

    async def beat(self, beat: Beat) -> Answer:
        """Take a node's heartbeat."""
        self._tick_on()
        state = self._state
        known = beat.node in state.nodes and state.nodes[beat.node].beat.life == beat.life
        if beat.node not in self._membership.given_up:
            self._carry_out(state.beat(beat, self._now_s(state.settings)))
        wants_all = not known and beat.holds is None
        return Answer(self._life, state.settings, wants_all, dict(state.lost))

    async def place(self, ask: Ask) -> Placed | Refused:
        """Answer with the node for an item, as soon as there is one."""
        self._tick_on()
        waiting = self._waiting.get(ask.item)
        if waiting is None or waiting.done():
            waiting = self._waiting[ask.item] = asyncio.get_running_loop().create_future()
        self._carry_out(self._state.ask(ask, self._now_s(self._state.settings)))
        return await asyncio.shield(waiting)

    async def status(self) -> dict[str, Any]:
        """Describe the head and its nodes as plain data."""
        self._tick_on()
        state = self._state
        now_s = self._now_s(state.settings)
        return {
            "head": self._life,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "uptime_s": time.time() - self._started_s,
            "memory": state.settings.memory,
            "waiting": len(state.waiting),
            "waits_for": dict(Counter(state.waits_for(one.ask) for one in state.waiting.values())),
            "counts": dict(state.counts),
            "held_up_s": self._clock.held_up_s,
            "lost": dict(state.lost),
            "nodes": [
                {
                    "node": node.name,
                    "address": node.beat.address,
                    "state": (
                        "stale" if state.stale(node, now_s)
                        else "client" if not node.beat.serves
                        else "no gpud" if not node.beat.gpus
                        else "paused" if all(gpu.paused for gpu in node.beat.gpus) else "ready"
                    ),
                    "beat_age_s": now_s - node.at_s,
                    "idle_rate": state.rate(node),
                    "items": node.in_flight,
                    "gpus": len(node.beat.gpus),
                    "inputs": [
                        {**asdict(gpu), "idle_rate": gpu_idle_rate(gpu, state.settings.memory)}
                        for gpu in node.beat.gpus
                    ],
                    "sms": sum(gpu.sms for gpu in node.beat.gpus),
                    "idle_sms": sum(gpu.sms * gpu.idle_cores for gpu in node.beat.gpus),
                    "memory_bytes": sum(gpu.memory_bytes for gpu in node.beat.gpus),
                    "memory_free_bytes": sum(gpu.memory_free_bytes for gpu in node.beat.gpus),
                }
                for node in state.nodes.values()
            ],
        }  # fmt: skip

    async def configure(self, settings: Settings) -> None:
        """Change the settings; agents learn them with their next heartbeat."""
        self._state.settings = settings

    async def lose(self, node: str, reason: str) -> None:
        """Take out a node that is ending."""
        self._membership.left.add(node)
        self._lost(node, reason)

    # -- steps

    def _now_s(self, settings: Settings) -> float:
        return self._clock.now_s(settings.period_s)

    def _lost(self, node: str, reason: str) -> None:
        self._carry_out(self._state.lose(node, reason))

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, NodeLost):
                continue  # the agents that forwarded these items learn it with their next heartbeat
            waiting = self._waiting.pop(decision.item, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(decision)

    def _tick_on(self) -> None:
        self._membership.begin()
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._state.settings.period_s)
            self._carry_out(self._state.tick(self._now_s(self._state.settings)))
