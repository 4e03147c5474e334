"""A node that the network cuts off, and that comes back: two network namespaces on this machine.

Needs root, ``ip`` and GPUD_RAY_PARTITION=1: whether the node comes back depends on Ray's own health
check. A node that it has given up meanwhile is ended, and needs `gpud-ray up` again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ray

import gpud_ray
from gpud_ray.actors import find_agent, make_agent, make_head
from gpud_ray.node.daemon import DaemonConfig

SETTINGS = gpud_ray.Settings(period_s=0.2, missed_beats=10, attempts=5)
OPTIONS = {"memory": "256 MiB", "drain_timeout": "1 s"}
NAME = f"gpud{os.getpid() % 100_000}"
HERE, THERE = (f"10.231.{os.getpid() % 250}.{last}" for last in (1, 2))
SLOW = r"""
extern "C" __global__ void slow(float* y, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = y[i];
    for (int k = 0; k < steps; k++) v = v * 0.5f + 1.0f;
    y[i] = v;
}"""


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


def possible() -> bool:
    if os.geteuid() or shutil.which("ip") is None or "GPUD_RAY_PARTITION" not in os.environ:
        return False
    try:
        ip("netns", "add", f"{NAME}t")
        ip("netns", "del", f"{NAME}t")
    except subprocess.SubprocessError:
        return False
    return True


@pytest.fixture
def link() -> Iterator[str]:
    """A namespace that is reached by one link; its name is that of the link's near end."""
    near, far = f"{NAME}a", f"{NAME}b"
    ip("netns", "add", NAME)
    try:
        ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", NAME)
        ip("addr", "add", f"{HERE}/30", "dev", near)
        ip("link", "set", near, "up")
        for device in (far, "lo"):
            ip("-n", NAME, "link", "set", device, "up")
        ip("-n", NAME, "addr", "add", f"{THERE}/30", "dev", far)
        yield near
    finally:
        ip("netns", "del", NAME)


def raylet(*options: str, within: tuple[str, ...] = (), **resources: float) -> Any:
    return subprocess.Popen(
        [*within, sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
         "--disable-usage-stats", "--num-cpus=1", "--object-store-memory=100000000",
         f"--resources={json.dumps(resources)}", *options],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


@pytest.fixture
def nodes(link: str) -> Iterator[dict[str, str]]:
    """Ray's ids of the node here and of the one in the namespace."""
    with socket.socket() as one:
        one.bind((HERE, 0))
        port = one.getsockname()[1]
    started = [raylet("--head", f"--node-ip-address={HERE}", f"--port={port}",
                      "--include-dashboard=false", here=1)]  # fmt: skip
    try:
        wait_until(lambda: listens(port), "the cluster is there")
        started.append(
            raylet(f"--address={HERE}:{port}", f"--node-ip-address={THERE}",
                   within=("ip", "netns", "exec", NAME), there=1)
        )  # fmt: skip
        ray.init(f"{HERE}:{port}", namespace="gpud", log_to_driver=False, logging_level="ERROR",
                 _node_ip_address=HERE)  # fmt: skip
        found: dict[str, str] = {}

        def both() -> bool:
            for row in ray.nodes():
                for name in ("here", "there"):
                    if row["Alive"] and name in row["Resources"]:
                        found[name] = row["NodeID"]
            return len(found) == 2

        wait_until(both, "both nodes are there")
        make_head(SETTINGS, found["here"])
        for node in found.values():
            make_agent(node, DaemonConfig(private=("cpu:1",), options=OPTIONS), SETTINGS)
        wait_until(lambda: ready() == set(found.values()), "both have a gpud")
        yield found
        ray.get([find_agent(node).close.remote() for node in found.values()], timeout=20)
    finally:
        ray.shutdown()
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in reversed(started):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def listens(port: int) -> bool:
    try:
        socket.create_connection((HERE, port), 1).close()
    except OSError:
        return False
    return True


def ready() -> set[str]:
    return {row["node"] for row in gpud_ray.status()["nodes"] if row["state"] == "ready"}


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"{what} within a minute"
        time.sleep(0.05)


def slow(steps: int) -> gpud_ray.KernelCall:
    args = gpud_ray.InOut(np.zeros(4096, np.float32)), steps
    return gpud_ray.KernelCall(source=SLOW, kernel="slow", grid=16, block=256, args=args)


@pytest.mark.skipif(
    not possible(), reason="needs root, network namespaces and GPUD_RAY_PARTITION=1"
)
@pytest.mark.timeout(200)
def test_items_of_a_node_that_is_cut_off_run_elsewhere_and_the_node_comes_back(
    nodes: dict[str, str], link: str
) -> None:
    ray.get([gpud_ray.submit(slow(9), on=node) for node in nodes.values()], timeout=60)
    pairs = [gpud_ray.submit(slow(1_500_000), report=True) for _ in range(4)]
    there = nodes["there"]
    wait_until(lambda: ray.get(find_agent(there).status.remote())["holds"] > 0, "it has an item")
    ip("link", "set", link, "down")
    try:
        for value in ray.get([results for results, _ in pairs], timeout=100):
            np.testing.assert_allclose(value, 2.0, rtol=1e-6)
        reports = ray.get([told for _, told in pairs])
    finally:
        ip("link", "set", link, "up")
    assert all(report.node == nodes["here"] for report in reports)
    cut_off = [report for report in reports if len(report.attempts) > 1]
    assert cut_off
    # Whether the other node has run it cannot be known, and the report says so.
    assert all(report.may_have_run_twice for report in cut_off)
    wait_until(lambda: there in ready(), "the node is back")
    np.testing.assert_allclose(ray.get(gpud_ray.submit(slow(99), on=there), timeout=60), 2.0)
