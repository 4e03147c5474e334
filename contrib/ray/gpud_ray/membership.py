"""What the head asks of Ray: which nodes there are, and more of them while items wait.

A node that announces ``gpud_sms`` has a gpud. One that joined by itself, from Ray's autoscaler or
after the network was back, has nobody who makes its agent: the head does.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import ray

from gpud_ray.placement.head_state import HeadState
from gpud_ray.placement.settings import Settings

__all__ = ["MakeAgent", "Membership"]

MakeAgent = Callable[[str, None, Settings], Any]

_PERIOD_S = 1.0
_MOST_REQUESTED = 64  # GPUs that an autoscaler is asked for at a time


class Membership:
    """Looks at Ray's nodes every second, beside the head's own work.

    Attributes:
        left: Nodes that were taken out, and that Ray still has: they get no agent again.
        given_up: Nodes that Ray has given up. It ends them; until then they may be heard once more.
    """

    def __init__(
        self, state: HeadState, lost: Callable[[str, str], None], make_agent: MakeAgent
    ) -> None:
        self._state = state
        self._lost = lost
        self._make_agent = make_agent
        self._requested = 0
        self._watching: asyncio.Task[None] | None = None
        self.left: set[str] = set()
        self.given_up: set[str] = set()

    def begin(self) -> None:
        """Look from now on."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            # Ray's own head node may be away for a moment; then later.
            with contextlib.suppress(ray.exceptions.RayError, RuntimeError, ConnectionError):
                await self._look(await asyncio.to_thread(ray.nodes))
                await self._ask_autoscaler()
            await asyncio.sleep(_PERIOD_S)

    async def _look(self, rows: list[dict[str, Any]]) -> None:
        alive = {row["NodeID"]: row["Resources"] for row in rows if row["Alive"]}
        self.left &= alive.keys()
        self.given_up = {row["NodeID"] for row in rows if not row["Alive"]}
        for node in self.given_up & self._state.nodes.keys():
            self._lost(node, "Ray has given it up")
        for node, resources in alive.items():
            if "gpud_sms" in resources and node not in self._state.nodes and node not in self.left:
                await asyncio.to_thread(self._make_agent, node, None, self._state.settings)

    async def _ask_autoscaler(self) -> None:
        """Ask Ray's autoscaler, if there is one, for GPUs for the items that wait."""
        wanted = min(len(self._state.waiting), _MOST_REQUESTED)
        if wanted != self._requested:
            from ray.autoscaler.sdk import request_resources

            asks = [one.ask for one in self._state.waiting.values()]
            largest = max((ask.memory_bytes for ask in asks), default=0)
            bundle = {"gpud_sms": 1.0, **({"gpud_memory": largest} if largest else {})}
            await asyncio.to_thread(request_resources, bundles=[bundle] * wanted)
            self._requested = wanted
