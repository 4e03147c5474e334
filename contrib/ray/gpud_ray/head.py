"""The head: an actor that answers on which node an item shall run.

It is a shell around `gpud_ray.placement.head_state`, which decides: it gives it the time, and
holds the questions of items that wait. It keeps nothing that heartbeats do not bring back.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import ray

from gpud_ray.placement.head_state import (
    Ask,
    Beat,
    Decision,
    HeadState,
    NodeLost,
    Placed,
    Refused,
)
from gpud_ray.placement.settings import Settings

__all__ = ["Answer", "Head"]

_MOST_REQUESTED = 64  # GPUs that an autoscaler is asked for at a time


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

    def __init__(self, settings: Settings) -> None:
        self._life = os.urandom(8).hex()
        self._started_s = time.time()
        self._state = HeadState(settings, time.monotonic())
        self._waiting: dict[str, asyncio.Future[Placed | Refused]] = {}
        self._ticking: asyncio.Task[None] | None = None
        self._requested = 0

    async def beat(self, beat: Beat) -> Answer:
        """Take a node's heartbeat."""
        self._tick_on()
        state = self._state
        known = beat.node in state.nodes and state.nodes[beat.node].beat.life == beat.life
        self._carry_out(state.beat(beat, time.monotonic()))
        wants_all = not known and beat.holds is None
        return Answer(self._life, state.settings, wants_all, dict(state.lost))

    async def place(self, ask: Ask) -> Placed | Refused:
        """Answer with the node for an item, as soon as there is one."""
        self._tick_on()
        waiting = self._waiting.get(ask.item)
        if waiting is None or waiting.done():
            waiting = self._waiting[ask.item] = asyncio.get_running_loop().create_future()
        self._carry_out(self._state.ask(ask, time.monotonic()))
        return await asyncio.shield(waiting)

    async def status(self) -> dict[str, Any]:
        """Describe the head and its nodes as plain data."""
        now_s, state = time.monotonic(), self._state
        return {
            "head": self._life,
            "pid": os.getpid(),
            "node": ray.get_runtime_context().get_node_id(),
            "uptime_s": time.time() - self._started_s,
            "reading": state.settings.reading.name,
            "waiting": len(state.waiting),
            "counts": dict(state.counts),
            "lost": dict(state.lost),
            "nodes": [
                {
                    "node": node.name,
                    "address": node.beat.address,
                    "state": (
                        "stale" if state.stale(node, now_s)
                        else "client" if not node.beat.serves
                        else "ready" if node.beat.gpus else "no gpud"
                    ),
                    "beat_age_s": now_s - node.at_s,
                    "idle_rate": state.rate(node),
                    "items": node.in_flight,
                    "gpus": len(node.beat.gpus),
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
        self._carry_out(self._state.lose(node, reason))

    # -- steps

    def _carry_out(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, NodeLost):
                continue  # the agents that forwarded these items learn it with their next heartbeat
            waiting = self._waiting.pop(decision.item, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(decision)

    def _tick_on(self) -> None:
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._state.settings.period_s)
            self._carry_out(self._state.tick(time.monotonic()))
            await self._ask_autoscaler()

    async def _ask_autoscaler(self) -> None:
        """Ask Ray's autoscaler, if there is one, for GPUs for the items that wait."""
        wanted = min(len(self._state.waiting), _MOST_REQUESTED)
        if wanted != self._requested:
            from ray.autoscaler.sdk import request_resources

            largest = max((ask.memory_bytes for ask, _ in self._state.waiting.values()), default=0)
            bundle = {"gpud_sms": 1.0, **({"gpud_memory": largest} if largest else {})}
            await asyncio.to_thread(request_resources, bundles=[bundle] * wanted)
            self._requested = wanted
