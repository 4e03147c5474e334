"""Starts the nodes of a run: processes on this machine, or one on each node of a Ray cluster."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpud_ray.sets.run.framework import Framework, FrameworkConfig
from gpud_ray.sets.run.scheduler import Ended, PolicyChoice, Scheduler
from gpud_ray.sets.setfile import TaskSet

__all__ = ["LocalNode", "started_locally", "started_on_ray"]

_START_S = 90.0
_END_S = 10.0
_THREADS = 8  # of an executor under our policy, which starts as many tasks as fit
_Told = Callable[[Ended], None]


def _threads(policy: PolicyChoice | None, task_set: TaskSet) -> int:
    ours = policy is None or policy.name == "gpud"
    return max(_THREADS, task_set.parallel) if ours else task_set.parallel


@dataclass(slots=True)
class LocalNode:
    """A framework process on this machine."""

    name: str
    process: subprocess.Popen[bytes]


@contextmanager
def started_locally(
    task_set: TaskSet,
    nodes: Sequence[Sequence[str] | Path],
    *,
    policy: PolicyChoice | None = None,
    tries: int = 3,
    told: _Told = lambda _: None,
) -> Iterator[tuple[Scheduler, list[LocalNode]]]:
    """Start a scheduler and nodes; `Scheduler.run` is up to the caller.

    Args:
        task_set: What to run.
        nodes: Each with devices, for which a gpud is started, or the socket of a gpud that runs.
        policy: How tasks are placed; None: ours.
        tries: How often a task is started at most.
        told: Called when a task has ended.

    Raises:
        NoNodes: they did not start.
    """
    key = secrets.token_bytes(32)
    scheduler = Scheduler(task_set, policy=policy, tries=tries, key=key, told=told)
    started: list[LocalNode] = []
    try:
        for number, devices in enumerate(nodes):
            config = FrameworkConfig(
                scheduler.address, key.hex(), f"node {number}",
                socket=str(devices) if isinstance(devices, Path) else None,
                private=() if isinstance(devices, Path) else tuple(devices),
                parallel=task_set.parallel, threads=_threads(policy, task_set),
                mode=task_set.mode,
            )  # fmt: skip
            process = subprocess.Popen(
                [sys.executable, "-m", "gpud_ray.sets.run.framework"], stdin=subprocess.PIPE
            )
            started.append(LocalNode(config.node, process))
            assert process.stdin is not None
            with process.stdin as pipe:
                pipe.write(json.dumps(asdict(config)).encode())

        def ended() -> str:
            return next((one.name for one in started if one.process.poll() is not None), "")

        scheduler.accept(len(nodes), _START_S, ended)
        yield scheduler, started
    finally:
        scheduler.close()
        for node in started:
            try:
                node.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()


class _Node:
    """The actor that is a Ray node's framework process."""

    def run(self, config: FrameworkConfig) -> None:
        """Serve until the scheduler ends."""
        Framework(config).run()


@contextmanager
def started_on_ray(
    task_set: TaskSet,
    *,
    policy: PolicyChoice | None = None,
    tries: int = 3,
    told: _Told = lambda _: None,
) -> Iterator[Scheduler]:
    """Start a scheduler, and a framework on every node whose agent has reached its gpud.

    This program is connected to Ray. `Scheduler.run` is up to the caller.

    Raises:
        NoCluster: there is no head, or no node with a gpud.
        NoNodes: the nodes did not start.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from gpud_ray.actors import find_agent
    from gpud_ray.client import status
    from gpud_ray.errors import NoCluster

    names = [row["node"] for row in status()["nodes"] if row["state"] == "ready"]
    if not names:
        raise NoCluster("no node of the cluster is ready: see `gpud-ray status`")
    sockets = [ray.get(find_agent(name).status.remote(), timeout=30)["gpud"] for name in names]
    key = secrets.token_bytes(32)
    host = ray.util.get_node_ip_address()
    scheduler = Scheduler(task_set, policy=policy, tries=tries, host=host, key=key, told=told)
    actors: list[Any] = []
    try:
        for name, socket in zip(names, sockets, strict=True):
            config = FrameworkConfig(
                scheduler.address, key.hex(), name, socket, parallel=task_set.parallel,
                threads=_threads(policy, task_set), mode=task_set.mode,
            )  # fmt: skip
            actor = ray.remote(_Node).options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(name, soft=False)
            ).remote()  # fmt: skip
            actors.append(actor)
            actor.run.remote(config)
        scheduler.accept(len(names), _START_S)
        yield scheduler
    finally:
        scheduler.close()
        for actor in actors:
            actor.__ray_terminate__.remote()
