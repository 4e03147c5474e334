"""A node that the network cuts off, and that comes back: a network namespace on this machine.

Needs root, ``ip`` and ``unshare``.
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

import gpud_ray
from gpud_ray.actors import find_agent
from gpud_ray.local_cluster import lasting
from gpud_ray.making import make_agent, make_head
from gpud_ray.node.config import DEVICES_VARIABLE

SETTINGS = gpud_ray.Settings(period_s=0.2, missed_beats=10, attempts=5)
VARIABLES = {"GPUD_MEMORY": "256 MiB", "GPUD_DRAIN_TIMEOUT": "1 s"}
RESOURCES = ("--num-cpus=1", "--object-store-memory=100000000")
# Ray gives a node up after some fifteen seconds, which is longer than `SETTINGS.lost_s`.
PATIENCE = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
NAME = f"gpud{os.getpid() % 100_000}"
HERE, THERE = (f"10.231.{os.getpid() % 250}.{last}" for last in (1, 2))


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=20)


def possible() -> bool:
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "mount"))):
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


def gpud_ray_there(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line in the namespace, with a folder of its own for Ray's files.

    With the one of the node here, Ray would take it for a program of that node.
    """
    program = "import gpud_ray.cli; raise SystemExit(gpud_ray.cli.main())"
    own_files = 'mount --bind "$0" /tmp/ray && exec "$@"'
    return subprocess.run(
        ["ip", "netns", "exec", NAME, "unshare", "--mount", "sh", "-c", own_files, str(folder),
         sys.executable, "-c", program, *arguments],
        env={**os.environ, **VARIABLES, "XDG_RUNTIME_DIR": str(folder)},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


@pytest.fixture
def nodes(link: str, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Ray's ids of the node here and of the one in the namespace."""
    with socket.socket() as one:
        one.bind((HERE, 0))
        port = one.getsockname()[1]
    address = f"{HERE}:{port}"
    head = subprocess.Popen(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats",
         "--head", f"--node-ip-address={HERE}", f"--port={port}", "--include-dashboard=false",
         "--resources={\"gpud_sms\": 1}", *RESOURCES],
        env={**os.environ, **VARIABLES, **PATIENCE, DEVICES_VARIABLE: "cpu:1"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        wait_until(lambda: listens(port), "the cluster is there")
        ray.init(address, namespace="gpud", log_to_driver=False, logging_level="ERROR",
                 _node_ip_address=HERE)  # fmt: skip
        here = ray.get_runtime_context().get_node_id()
        make_head(SETTINGS, here)
        make_agent(here, None, SETTINGS)
        up = gpud_ray_there(
            tmp_path, "up", "--address", address, "--device", "cpu:1", "--json",
            f"--ray=--node-ip-address={THERE}", *(f"--ray={one}" for one in RESOURCES),
        )  # fmt: skip
        assert up.returncode == 0, up.stderr
        there = json.loads(up.stdout)["node"]
        wait_until(lambda: ready() == {here, there}, "both have a gpud")
        yield {"here": here, "there": there}
        ray.get(find_agent(here).close.remote(), timeout=20)
    finally:
        down = gpud_ray_there(tmp_path, "down")
        ray.shutdown()
        head.send_signal(signal.SIGTERM)
        try:
            head.wait(15)
        except subprocess.TimeoutExpired:
            head.kill()
        assert down.returncode == 0, down.stderr


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


def item(seconds: float = 0) -> gpud_ray.KernelCall:
    return lasting(seconds, np.zeros(4096, np.float32))


@contextmanager
def cut(link: str) -> Iterator[None]:
    """Cut the node in the namespace off for the block."""
    ip("link", "set", link, "down")
    try:
        yield
    finally:
        ip("link", "set", link, "up")


def under_load(there: str) -> list[tuple[Any, Any]]:
    """Submit items of a second or so, until the node has one; return them."""
    pairs: list[tuple[Any, Any]] = []

    def has_one() -> bool:
        if len(pairs) < 4 or ray.wait([told for _, told in pairs[-4:]], timeout=0)[0]:
            pairs.extend(gpud_ray.submit(item(0.6), report=True) for _ in range(4))
        return bool(ray.get(find_agent(there).status.remote())["holds"])

    wait_until(has_one, "it has an item")
    return pairs


def check(pairs: list[tuple[Any, Any]], there: str) -> None:
    """All items are right, and those of the node that was cut off say that they ran elsewhere."""
    for value in ray.get([results for results, _ in pairs], timeout=100):
        np.testing.assert_array_equal(value, 1)
    reports = ray.get([told for _, told in pairs])
    again = [report for report in reports if len(report.attempts) > 1]
    assert again
    for report in again:
        assert report.attempts[0].node == there
        assert "heartbeats are missing" in report.attempts[0].ended
        assert report.may_have_run_twice  # whether it had run there cannot be known


def forwarded_again(here: str) -> int:
    counts: dict[str, int] = ray.get(find_agent(here).status.remote())["counts"]
    return counts.get("again", 0)


@pytest.mark.skipif(not possible(), reason="needs root and network namespaces")
@pytest.mark.timeout(400)
def test_a_node_that_is_cut_off_loses_its_items_and_comes_back(
    nodes: dict[str, str], link: str
) -> None:
    here, there = nodes["here"], nodes["there"]
    ray.get([gpud_ray.submit(item(), on=node) for node in nodes.values()], timeout=60)

    # For less than Ray's patience: it comes back as the node that it was.
    pairs = under_load(there)
    with cut(link):
        wait_until(lambda: forwarded_again(here) > 0, "its items are forwarded again")
    check(pairs, there)
    wait_until(lambda: there in ready(), "the node is back")
    np.testing.assert_array_equal(ray.get(gpud_ray.submit(item(), on=there), timeout=60), 1)

    # For longer: Ray ends it, and it joins again as a new node.
    pairs = under_load(there)
    with cut(link):
        wait_until(
            lambda: any(row["NodeID"] == there and not row["Alive"] for row in ray.nodes()),
            "Ray gives it up",
        )
    check(pairs, there)
    wait_until(lambda: len(ready() - {here, there}) == 1, "the machine is back as a new node")
    (back,) = ready() - {here, there}
    np.testing.assert_array_equal(ray.get(gpud_ray.submit(item(), on=back), timeout=60), 1)
