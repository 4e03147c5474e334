"""A node's agent: the actor in front of its gpud.

It has three tasks. It sends heartbeats. It takes items that were submitted at its node (C1), asks
the head for a node, forwards each item there, and returns what comes back. And it runs items that
others have forwarded to it (C2), which may be the same node.

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

from gpud_ray.actors import MOST_CALLS, find_agent, find_head, make_head
from gpud_ray.errors import Attempt, ItemFailed, NoCluster, Report
from gpud_ray.head import Answer
from gpud_ray.items import InOut, Item
from gpud_ray.node.daemon import DaemonConfig, NodeDaemon
from gpud_ray.node.outcome import Done, Failed, NodeFault, NoRoom, Outcome
from gpud_ray.placement.head_state import Ask, Beat, Placed, Refused
from gpud_ray.placement.idle_rate import gpu_idle_rate
from gpud_ray.placement.settings import Settings

__all__ = ["NodeAgent"]

# What is submitted here must leave calls for what is forwarded here, or two nodes that wait for
# each other would wait for ever.
_MOST_SUBMITTED = MOST_CALLS - 4_000
_LEAST_S = 0.02  # between two heartbeats
_MOST_REST_S = 0.05  # between two looks whether an item's data is there
_AGAIN_S = 0.2  # before a head that did not answer is asked again
_DOUBT_S = 1.0  # between an item's time and an agent's start, which two processes' clocks give


class NodeAgent:
    """The actor; see the module."""

    def __init__(self, config: DaemonConfig, settings: Settings) -> None:
        context = ray.get_runtime_context()
        self._node: str = context.get_node_id()
        self._life = time.time_ns()
        self._restarted_s = time.time() if context.was_current_actor_reconstructed else None
        self._settings = settings
        self._daemon = NodeDaemon(config)
        self._serves = not config.absent
        self._gpus: Any = ()
        self._held: dict[str, asyncio.Task[Outcome]] = {}
        self._sizes: dict[str, int] = {}
        self._device_of: dict[str, int] = {}
        self._unread: set[str] = set()  # items of which the last reading knows nothing
        self._arrived: list[str] = []
        self._ended: list[str] = []
        self._forwarded: dict[str, set[asyncio.Future[str]]] = {}  # by node; set when it is lost
        self._submitted = 0
        self._head: Any = None
        self._head_life = ""
        self._soon = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._counts: Counter[str] = Counter()
        # A restarted actor is called by nobody, and has to beat. Ray may not let calls through yet.
        context.current_actor.start.options(max_task_retries=-1).remote()

    async def start(self) -> str:
        """Begin to send heartbeats; return the node's name."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat_on())
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
            "holds": len(self._held),
            "forwarded": sum(map(len, self._forwarded.values())),
            "counts": dict(self._counts),
        }

    async def close(self) -> None:
        """Stop the heartbeats and end the session with gpud; a private gpud ends, too."""
        if self._beating is not None:
            self._beating.cancel()
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
                if time.monotonic() - begin > self._settings.place_wait_s:
                    raise _failure(item, outcome.reason, "out-of-memory", attempts)
                await asyncio.sleep(self._settings.period_s)
                continue
            attempts.append(Attempt(placed.node, outcome.reason, outcome.may_have_run))
            self._counts["again"] += 1
            if len(attempts) >= self._settings.attempts:
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
        ask = Ask(item.id, self._node, item.memory_bytes, frozenset(not_on), item.only_on)
        since: float | None = None
        while True:
            try:
                head = self._find_head()
                answer: Placed | Refused = await head.place.remote(ask)
                return answer
            except (NoCluster, RayActorError) as error:
                self._head = None
                since = time.monotonic() if since is None else since
                if time.monotonic() - since > self._settings.head_wait_s:
                    reason = f"no head has answered for {self._settings.head_wait_s:g} s: {error}"
                    raise _failure(item, reason, "no-head", attempts) from None
                await asyncio.sleep(_AGAIN_S)

    async def _forward(self, node: str, item: Item) -> Outcome:
        """Run an item on a node, here or elsewhere, until it ends or the node is lost."""
        if node == self._node:
            return await self.run(item)
        lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        forwarded = self._forwarded.setdefault(node, set())
        forwarded.add(lost)
        answer = asyncio.create_task(_run_at(node, item))
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

    # -- C2: items forwarded to this node

    async def run(self, item: Item) -> Outcome:
        """Run an item here; the same item again joins the first run."""
        await self.start()
        task = self._held.get(item.id)
        if task is None:
            task = self._held[item.id] = asyncio.create_task(self._run(item))
            self._arrived.append(item.id)
            self._unread.add(item.id)
        return await asyncio.shield(task)

    async def _run(self, item: Item) -> Outcome:
        try:
            device = self._choose_device(item)
            if device is None:
                return NodeFault(f"no GPU is there: {self._daemon.problem}", may_have_run=False)
            try:
                fetched = replace(item.call, args=await _fetched(item.call.args))
            except RayError as error:
                return Failed(f"its data is lost: {error}", "data-lost", may_have_run=False)
            return await self._daemon.run(replace(item, call=fetched), device)
        finally:
            self._held.pop(item.id, None)
            self._sizes.pop(item.id, None)
            self._device_of.pop(item.id, None)
            self._unread.discard(item.id)
            self._ended.append(item.id)
            self._counts["ran"] += 1
            limit = self._settings.in_flight_per_gpu
            if limit and len(self._ended) * 2 >= limit * max(len(self._gpus), 1):
                self._soon.set()  # the head holds items back for this node

    def _choose_device(self, item: Item) -> int | None:
        """Choose the most idle GPU with the memory for an item."""
        best: tuple[bool, float, int] | None = None
        for gpu in self._gpus:
            unread = sum(self._device_of.get(one) == gpu.index for one in self._unread)
            rate = gpu_idle_rate(gpu, self._settings.reading, unseen=unread)
            fits = gpu.memory_free_bytes >= item.memory_bytes
            if best is None or (fits, rate) > best[:2]:
                best = fits, rate, gpu.index
        if best is None:
            return None
        self._sizes[item.id] = item.memory_bytes
        self._device_of[item.id] = best[2]
        return best[2]

    # -- heartbeats

    def _find_head(self) -> Any:
        if self._head is None:
            self._head = find_head()
        return self._head

    async def _beat_on(self) -> None:
        number, wants_all, missed = 0, False, 0
        while True:
            number += 1
            begin = time.monotonic()
            arrived, ended = self._arrived, self._ended
            self._arrived, self._ended = [], []
            self._gpus = await self._read()
            holds = tuple((item, self._sizes.get(item, 0)) for item in self._held)
            beat = Beat(
                self._node, self._life, number, self._gpus, tuple(arrived), tuple(ended),
                holds if wants_all else None, f"{socket.gethostname()} {self._daemon.address}",
                self._serves,
            )  # fmt: skip
            answer = await self._send(beat)
            if answer is None:
                self._arrived, self._ended = arrived + self._arrived, ended + self._ended
                missed += 1
                if missed > self._settings.missed_beats:
                    self._replace_head()
                    missed = 0
                wants_all = False
            else:
                missed = 0
                wants_all = answer.wants_all
                self._take(answer)
            rest = _LEAST_S if wants_all else self._settings.period_s - (time.monotonic() - begin)
            with suppress(TimeoutError):
                async with asyncio.timeout(max(rest, _LEAST_S)):
                    await self._soon.wait()
                    await asyncio.sleep(_LEAST_S)
            self._soon.clear()

    async def _read(self) -> Any:
        reserved: Counter[int] = Counter()
        for item in self._unread:
            device = self._device_of.get(item)
            if device is not None:
                reserved[device] += self._sizes[item]
        before = set(self._unread)
        try:
            gpus = await self._daemon.read(reserved)
        except Exception as error:  # noqa: BLE001  (without heartbeats the node would be lost)
            self._daemon.problem = f"{type(error).__name__}: {error}"
            return ()
        self._unread -= before
        return gpus

    async def _send(self, beat: Beat) -> Answer | None:
        """Send a heartbeat; None if there is no answer within the time that makes a node lost."""
        try:
            head = self._find_head()
            async with asyncio.timeout(self._settings.lost_s):
                answer: Answer = await head.beat.remote(beat)
            return answer
        except (NoCluster, RayActorError, TimeoutError):
            self._head = None
            return None

    def _take(self, answer: Answer) -> None:
        self._head_life, self._settings = answer.head, answer.settings
        for node, reason in answer.lost.items():
            if node != self._node:
                for future in self._forwarded.pop(node, ()):
                    if not future.done():
                        future.set_result(reason)

    def _replace_head(self) -> None:
        """Make a new head: the last one is gone for good, or Ray would have restarted it."""
        with suppress(NoCluster, RayError):
            self._head = make_head(self._settings, self._node)


async def _run_at(node: str, item: Item) -> Outcome:
    """Have another node's agent run an item."""
    try:
        agent = find_agent(node)
        outcome: Outcome = await agent.run.remote(item)
        return outcome
    except NoCluster as error:
        return NodeFault(str(error), may_have_run=False)
    except RayTaskError as error:
        return Failed(f"the agent of node {node} failed: {error}", "internal", may_have_run=True)
    except RayError as error:
        # Ray does not say whether the call had begun.
        return NodeFault(f"node {node} was lost: {_first_line(error)}", may_have_run=True)


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
