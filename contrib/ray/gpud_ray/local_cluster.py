"""Several nodes on one machine, each with a gpud of its own: for tests, benchmarks and trying out.

Each node is a raylet, which Ray treats as a machine. They share this machine's processors.
`lasting` makes items that take a known time, whatever the machine does meanwhile.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import ray
from ray._private.ray_constants import PROCESS_TYPE_RAYLET
from ray.cluster_utils import Cluster

from gpud_ray.actors import find_agent, find_head
from gpud_ray.client import status
from gpud_ray.errors import NoCluster
from gpud_ray.items import InOut, KernelCall
from gpud_ray.making import make_agent, make_head
from gpud_ray.node.config import DaemonConfig
from gpud_ray.placement.settings import Settings

__all__ = ["LocalCluster", "lasting", "local_cluster"]

_STORE_BYTES = 96 << 20
_POLL_S = 0.05
_START_S = 90.0
_OPTIONS = {"drain_timeout": "1 s", "memory": "256 MiB"}
_LASTING = r"""
__device__ unsigned long long now() {
    unsigned long long ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
extern "C" __global__ void lasting(float* values, int n, unsigned long long ns) {
    for (unsigned long long began = now(); now() - began < ns;) {}
    for (int i = 0; i < n; i++) values[i] += 1;
}"""


def lasting(seconds: float, values: npt.NDArray[np.float32]) -> KernelCall:
    """Return a call whose kernel runs for a time, and then adds 1 to ``values``.

    Args:
        seconds: how long from its beginning, on any device.
        values: numbers of any shape; the call's result.
    """
    return KernelCall(
        source=_LASTING, kernel="lasting", grid=1, block=1,
        args=(InOut(values), values.size, round(seconds * 1e9)),
    )  # fmt: skip


class LocalCluster:
    """Nodes on this machine; the first has no GPU, only the head and this program."""

    def __init__(self, settings: Settings, options: dict[str, str] | None = None) -> None:
        self.settings = settings
        self._options = {
            f"GPUD_{name.upper()}": value for name, value in {**_OPTIONS, **(options or {})}.items()
        }
        self._raylets: dict[str, Any] = {}
        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 1, "object_store_memory": _STORE_BYTES, "include_dashboard": False,
            },
        )  # fmt: skip
        ray.init(address=self.cluster.address, log_to_driver=False, logging_level="ERROR")
        self.home: str = ray.get_runtime_context().get_node_id()
        make_head(settings, self.home)
        make_agent(self.home, DaemonConfig(absent=True), settings)

    def add(self, devices: str | Sequence[str] = "cpu:1", *, socket: str | None = None) -> str:
        """Add a node with these devices, or with the gpud at a socket; return Ray's id of it."""
        private = () if socket else (devices,) if isinstance(devices, str) else tuple(devices)
        sms = sum(int(one.partition(":")[2] or 1) for one in private) or 1
        raylet = self.cluster.add_node(
            num_cpus=1,
            object_store_memory=_STORE_BYTES,
            resources={"gpud_sms": sms, "gpud_memory": (256 << 20) * max(len(private), 1)},
            env_vars=DaemonConfig(socket, private).variables() | self._options,
        )
        node: str = raylet.node_id
        self._raylets[node] = raylet
        make_agent(node, None, self.settings)
        return node

    def begin_home(self, socket: str) -> str:
        """Give this program's own node the gpud at a socket, once its first agent has ended."""
        end = time.monotonic() + _START_S
        while time.monotonic() < end:
            try:
                find_agent(self.home)
            except NoCluster:
                make_agent(self.home, DaemonConfig(socket), self.settings)
                return self.home
            time.sleep(_POLL_S)
        raise NoCluster(f"the agent of node {self.home} has not ended within {_START_S:g} s")

    def wait_ready(self, nodes: int | None = None) -> None:
        """Wait until so many nodes (None: all that were added) report GPUs.

        Raises:
            NoCluster: they did not within 90 s.
        """
        wanted = len(self._raylets) if nodes is None else nodes
        end = time.monotonic() + _START_S
        ready: list[str] = []
        while time.monotonic() < end:
            with suppress(ray.exceptions.RayError, NoCluster):
                ready = [row["node"] for row in status()["nodes"] if row["state"] == "ready"]
                if len(ready) >= wanted:
                    return
            time.sleep(_POLL_S)
        raise NoCluster(f"of {wanted} nodes, {len(ready)} were ready within {_START_S:g} s")

    def agent(self, node: str) -> dict[str, Any]:
        """Return what a node's agent says of itself, once it is there if Ray starts it again.

        Raises:
            ray.exceptions.ActorUnavailableError: it is not within 90 s.
        """
        end = time.monotonic() + _START_S
        while True:
            try:
                told: dict[str, Any] = ray.get(find_agent(node).status.remote(), timeout=30)
            except ray.exceptions.ActorUnavailableError:
                if time.monotonic() > end:
                    raise
                time.sleep(_POLL_S)
            else:
                return told

    def kill_node(self, node: str) -> None:
        """End a node at once, as if its machine had lost power."""
        raylet = self._raylets.pop(node)
        told = self.agent(node)
        # Ray's own way leaves workers running for a while, which finish what they have.
        ended = raylet.all_processes[PROCESS_TYPE_RAYLET][0].process.pid, told["pid"]
        for pid in (*ended, told["gpud_pid"]):
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.cluster.remove_node(raylet, allow_graceful=False)

    def kill_agent(self, node: str) -> None:
        """End a node's agent; Ray starts it again."""
        ray.kill(find_agent(node), no_restart=False)

    def kill_head(self, *, for_good: bool = False) -> None:
        """End the head; Ray starts it again, or not if it is for good."""
        ray.kill(find_head(), no_restart=for_good)

    def kill_gpud(self, node: str) -> None:
        """End a node's gpud, whose agent starts it again if it is a private one."""
        pid = self.agent(node)["gpud_pid"]
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """End everything that was started."""
        agents = []
        for node in (*self._raylets, self.home):
            with suppress(NoCluster):
                agents.append(find_agent(node))
        with suppress(ray.exceptions.RayError):
            if agents:
                ended = [one.close.remote() for one in agents]
                ray.wait(ended, num_returns=len(ended), timeout=10)
        ray.shutdown()
        self.cluster.shutdown()


@contextmanager
def local_cluster(
    *nodes: str | Sequence[str],
    settings: Settings | None = None,
    options: dict[str, str] | None = None,
) -> Iterator[LocalCluster]:
    """Start nodes with these devices on this machine, and end them with the block."""
    cluster = LocalCluster(settings or Settings(), options)
    try:
        for devices in nodes:
            cluster.add(devices)
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.end()
