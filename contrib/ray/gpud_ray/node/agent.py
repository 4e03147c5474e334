"""A node's agent: the actor in front of its gpud.

It takes items that were submitted at its node (C1), asks the head for a node, forwards each item
there, and returns what comes back. And it runs items that others have forwarded to it (C2), which
may be the same node. Its heartbeats are in `gpud_ray.node.heartbeats`.

What a fault does to an item is decided in `NodeAgent.submit`: an item is forwarded again if its
node was lost, at most `Settings.attempts` times, and each try is noted with whether its kernel may
have run. Its results come from one try; what a lost node may still answer is dropped.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from gpud.units import share
from gpud_ray.actors import MOST_CALLS, find_agent, find_head
from gpud_ray.errors import Attempt, ItemFailed, NoCluster, Report
from gpud_ray.head import Answer
from gpud_ray.items import InOut, Item
from gpud_ray.node.config import DaemonConfig
from gpud_ray.node.daemon import NodeDaemon
from gpud_ray.node.heartbeats import Heartbeats, HeldItem, MakeHead
from gpud_ray.node.outcome import Done, Failed, NodeFault, NoRoom, Outcome
from gpud_ray.placement.head_state import Ask, Placed, Refused
from gpud_ray.placement.idle_rate import gpu_idle_rate
from gpud_ray.placement.settings import Settings

__all__ = ["NodeAgent"]

# What is submitted here must leave calls for what is forwarded here, or two nodes that wait for
# each other would wait for ever.
_MOST_SUBMITTED = MOST_CALLS - 4_000
_MOST_REST_S = 0.05  # between two looks whether an item's data is there
_AGAIN_S = 0.2  # before a head that did not answer is asked again
_DOUBT_S = 1.0  # between an item's time and an agent's start, which two processes' clocks give


class NodeAgent:
    """The actor; see the module."""

    def __init__(
        self, config: DaemonConfig | None, settings: Settings, make_head: MakeHead
    ) -> None:
        context = ray.get_runtime_context()
        self._node: str = context.get_node_id()
        self._life = time.time_ns()
        self._restarted_s = time.time() if context.was_current_actor_reconstructed else None
        config = DaemonConfig.of_this_node() if config is None else config
        self._daemon = NodeDaemon(config)
        self._beats = Heartbeats(
            self._node, self._life, self._daemon, settings, self._answered, make_head,
            serves=not config.absent,
        )  # fmt: skip
        self._forwarded: dict[str, set[asyncio.Future[str]]] = {}  # by node; set when it is lost
        self._agents: dict[str, Any] = {}
        self._submitted = 0
        self._counts: Counter[str] = Counter()
        # A restarted actor is called by nobody, and has to beat. Ray may not let calls through yet.
        context.current_actor.start.options(max_task_retries=-1).remote()

    async def start(self) -> str:
        """Begin to send heartbeats; return the node's name."""
        self._beats.begin()
        return self._node

    async def status(self) -> dict[str, Any]:
        """Describe the agent as plain data."""
        await self.start()
        return {
            "node": self._node,
            "host": socket.gethostname(),
            "life": self._life,
            "gpud": self._daemon.address,
            "pid": os.getpid(),
            "gpud_pid": self._daemon.pid,
            "problem": self._daemon.problem,
            "latest_beat_s": self._beats.latest_s,
            "holds": len(self._beats.items),
            "forwarded": sum(map(len, self._forwarded.values())),
            "counts": dict(self._counts),
        }

    async def close(self) -> None:
        """Stop the heartbeats and end the session with gpud; a private gpud ends, too."""
        self._beats.end()
        with suppress(NoCluster, RayError):
            await find_head().lose.remote(self._node, "it was taken out by gpud-ray down")
        await self._daemon.close()

    # -- C1: items submitted at this node

    async def submit(self, item: Item) -> tuple[Any, Report]:
        """Have an item run on the most idle node, and return its results and the report.

        The results are None, an array, or a tuple of arrays, as many as the item has of them.

        Raises:
            ItemFailed: It has ended without results; the message says why.
        """
        if self._submitted >= _MOST_SUBMITTED:
            reason = (
                f"{self._submitted:,} items of this node have not ended yet: wait for some before "
                "submitting more"
            )
            raise _failure(item, reason, "limit", [])
        self._submitted += 1
        try:
            return await self._submit(item)
        finally:
            self._submitted -= 1

    async def _submit(self, item: Item) -> tuple[Any, Report]:
        attempts: list[Attempt] = []
        if self._restarted_s is not None and item.created_s < self._restarted_s + _DOUBT_S:
            # This call may be a repetition of one that the agent's last life had begun.
            attempts.append(Attempt(self._node, "the agent of its own node was restarted", True))
        not_on: set[str] = set()
        in_vain_s: float | None = None  # since when nodes had no room without having other items
        await self._measure(item)
        begin = time.monotonic()
        while True:
            placed = await self._ask_head(item, not_on, attempts)
            placed_s = time.monotonic() - begin
            if isinstance(placed, Refused):
                raise _failure(item, placed.reason, "no-node", attempts)
            outcome = await self._forward(placed.node, item)
            if isinstance(outcome, Done):
                attempts.append(Attempt(placed.node, "done", True))
                self._counts["done"] += 1
                report = Report(
                    item.id, placed.node, outcome.device, tuple(attempts), placed_s,
                    outcome.ran_s, outcome.kernel_s,
                )  # fmt: skip
                return _unpacked(outcome.results), report
            if isinstance(outcome, Failed):
                attempts.append(Attempt(placed.node, outcome.reason, outcome.may_have_run))
                raise _failure(item, outcome.reason, outcome.cause, attempts)
            not_on.add(placed.node)
            if isinstance(outcome, NoRoom):
                now_s, settings = time.monotonic(), self._beats.settings
                in_vain_s = None if not outcome.alone else now_s if in_vain_s is None else in_vain_s
                vain = in_vain_s is not None and now_s - in_vain_s > settings.place_wait_s
                if vain or 0 < settings.room_wait_s < now_s - begin:
                    raise _failure(item, outcome.reason, "out-of-memory", attempts)
                await asyncio.sleep(settings.period_s)
                continue
            attempts.append(Attempt(placed.node, outcome.reason, outcome.may_have_run))
            self._counts["again"] += 1
            if len(attempts) >= self._beats.settings.attempts:
                raise _failure(item, outcome.reason, "node-lost", attempts)

    async def _measure(self, item: Item) -> None:
        """Add the sizes of arguments that the client has only references to."""
        if item.refs:
            rest_s = 0.001
            # Waiting for a reference in asyncio would bring its value here.
            while ray.wait(item.refs, num_returns=len(item.refs), timeout=0, fetch_local=False)[1]:
                await asyncio.sleep(rest_s)
                rest_s = min(2 * rest_s, _MOST_REST_S)
            found = await asyncio.to_thread(ray.experimental.get_object_locations, item.refs)
            item.memory_bytes += sum(one.get("object_size") or 0 for one in found.values())
            item.refs = []

    async def _ask_head(
        self, item: Item, not_on: set[str], attempts: list[Attempt]
    ) -> Placed | Refused:
        ask = Ask(
            item.id, self._node, item.memory_bytes, frozenset(not_on), item.only_on,
            item.call.reservation,
        )  # fmt: skip
        since: float | None = None
        while True:
            try:
                answer: Placed | Refused = await self._beats.head().place.remote(ask)
                return answer
            except (NoCluster, RayActorError) as error:
                self._beats.forget_head()
                since = time.monotonic() if since is None else since
                if time.monotonic() - since > self._beats.settings.head_wait_s:
                    reason = (
                        f"no head has answered for {self._beats.settings.head_wait_s:g} s: {error}"
                    )
                    raise _failure(item, reason, "no-head", attempts) from None
                await asyncio.sleep(_AGAIN_S)

    async def _forward(self, node: str, item: Item) -> Outcome:
        """Run an item on a node, here or elsewhere, until it ends or the node is lost."""
        if node == self._node:
            return await self.run(item)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        forwarded = self._forwarded.setdefault(node, set())
        forwarded.add(lost)
        answer = asyncio.create_task(self._run_at(node, item))
        try:
            either: set[asyncio.Future[Any]] = {answer, lost}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            return NodeFault(f"node {node} was lost: {lost.result()}", may_have_run=True)
        finally:
            answer.cancel()
            lost.cancel()
            forwarded.discard(lost)
            if not forwarded and self._forwarded.get(node) is forwarded:
                del self._forwarded[node]

    async def _run_at(self, node: str, item: Item) -> Outcome:
        """Have another node's agent run an item."""
        try:
            # Finding an actor is a call to Ray's head node that holds up everything here.
            agent = self._agents.get(node)
            if agent is None:
                agent = self._agents[node] = find_agent(node)
            outcome: Outcome = await agent.run.remote(item)
            return outcome
        except NoCluster as error:
            return NodeFault(str(error), may_have_run=False)
        except RayTaskError as error:
            reason = f"the agent of node {node} failed: {error}"
            return Failed(reason, "internal", may_have_run=True)
        except RayError as error:
            self._agents.pop(node, None)
            # Ray does not say whether the call had begun.
            return NodeFault(f"node {node} was lost: {_first_line(error)}", may_have_run=True)

    # -- C2: items forwarded to this node

    async def run(self, item: Item) -> Outcome:
        """Run an item here; the same item again joins the first run."""
        await self.start()
        held = self._beats.items.get(item.id)
        if held is None:
            device = self._choose_device(item)
            run = asyncio.create_task(self._run(item, device))
            held = HeldItem(item.memory_bytes, device, run)
            self._beats.take(item.id, held)
        return await asyncio.shield(held.run)

    async def _run(self, item: Item, device: int | None) -> Outcome:
        try:
            if device is None:
                return NodeFault(f"no GPU is there: {self._daemon.problem}", may_have_run=False)
            try:
                fetched = replace(item.call, args=await _fetched(item.call.args))
            except RayError as error:
                return Failed(f"its data is lost: {error}", "data-lost", may_have_run=False)
            others = len(self._beats.items) > 1
            return await self._daemon.run(replace(item, call=fetched), device, alone=not others)
        finally:
            self._beats.give_up(item.id)
            self._counts["ran"] += 1

    def _choose_device(self, item: Item) -> int | None:
        """Choose the most idle GPU with the memory for an item."""
        unread = Counter(one.device for one in self._beats.items.values() if one.unread)
        best: tuple[bool, float, int] | None = None
        for gpu in self._beats.gpus:
            if gpu.paused:
                continue
            rate = gpu_idle_rate(gpu, self._beats.settings.memory, unseen=unread[gpu.index])
            fits = gpu.memory_free_bytes >= item.memory_bytes
            if item.call.reservation is not None:
                needed = share(item.call.reservation, capacity=gpu.sms)
                fits = fits and gpu.sms - gpu.reserved_sms >= needed
            if best is None or (fits, rate) > best[:2]:
                best = fits, rate, gpu.index
        return None if best is None else best[2]

    # -- what heartbeats bring

    def _answered(self, answer: Answer) -> None:
        for node, reason in answer.lost.items():
            if node != self._node:
                self._agents.pop(node, None)
                for future in self._forwarded.pop(node, ()):
                    if not future.done():
                        future.set_result(reason)


async def _fetched(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace references by their values; Ray brings them to this node, readable by all on it."""
    fetched = []
    for one in arguments:
        if isinstance(one, InOut):
            fetched.append(InOut((await _fetched((one.values,)))[0]))
        else:
            fetched.append(await one if isinstance(one, ray.ObjectRef) else one)
    return tuple(fetched)


def _unpacked(results: tuple[Any, ...]) -> Any:
    if not results:
        return None
    return results[0] if len(results) == 1 else results


def _failure(item: Item, reason: str, cause: str, attempts: list[Attempt]) -> ItemFailed:
    began = sum(attempt.may_have_run for attempt in attempts)
    message = reason
    if len(attempts) > 1:
        message += f" (attempt {len(attempts)}"
        message += ", its kernel may have run more than once)" if began > 1 else ")"
    return ItemFailed(
        message, item=item.id, cause=cause, attempts=len(attempts), may_have_run_twice=began > 1
    )


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
