"""What becomes of items when a node, an agent, a gpud or the head ends under them.

Every item ends exactly once, as done or failed with the reason, and its report says so if its
kernel may have run more than once.
"""

from __future__ import annotations

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
from gpud_ray.local_cluster import LocalCluster, lasting, local_cluster

# Long patience with heartbeats: a loaded machine is no fault. Ray says at once what has ended.
SETTINGS = gpud_ray.Settings(period_s=0.1, missed_beats=100, attempts=6)


def item(seconds: float = 0.4, y: float = 0) -> gpud_ray.KernelCall:
    return lasting(seconds, np.full(4096, y, np.float32))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with local_cluster("cpu:1", "cpu:1", settings=SETTINGS) as made:
        ray.get([gpud_ray.submit(item(0), on=node) for node in ready()], timeout=60)
        yield made


def ready() -> list[str]:
    return [row["node"] for row in gpud_ray.status()["nodes"] if row["state"] == "ready"]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"{what} within a minute"
        time.sleep(0.02)


@contextmanager
def under_load(
    cluster: LocalCluster, node: str, count: int = 6, held: int = 1
) -> Iterator[list[Any]]:
    """Submit items until the node holds some; then the block runs; then all have to be right."""
    pairs: list[tuple[Any, Any]] = []

    def holds() -> bool:
        told = [one for _, one in pairs]
        if not told or len(ray.wait(told, num_returns=len(told), timeout=0)[1]) < held:
            y = len(pairs)
            pairs.extend(gpud_ray.submit(item(y=y + i), report=True) for i in range(count))
        return bool(cluster.agent(node)["holds"] >= held)

    wait_until(holds, "the node gets items")
    reports: list[Any] = []
    yield reports
    for y, value in enumerate(ray.get([results for results, _ in pairs], timeout=100)):
        np.testing.assert_array_equal(value, y + 1)
    reports += ray.get([told for _, told in pairs])
    assert len({report.item for report in reports}) == len(pairs)


def test_items_of_a_node_that_dies_run_elsewhere_and_say_so(cluster: LocalCluster) -> None:
    victim = cluster.add("cpu:1")
    cluster.wait_ready()
    with under_load(cluster, victim, 12, held=3) as reports:
        cluster.kill_node(victim)
    again = [report for report in reports if len(report.attempts) > 1]
    assert again
    for report in again:
        assert report.attempts[0].node == victim
        assert report.attempts[0].may_have_run == report.may_have_run_twice
        assert "lost" in report.attempts[0].ended
    assert all(report.node != victim for report in again)
    wait_until(lambda: victim not in ready(), "the head misses the node")


def test_an_agent_that_dies_is_started_again_with_a_new_gpud(cluster: LocalCluster) -> None:
    victim = ready()[0]
    before = cluster.agent(victim)
    with under_load(cluster, victim) as reports:
        cluster.kill_agent(victim)
    assert any(report.may_have_run_twice for report in reports)
    wait_until(lambda: victim in ready(), "the node is back")
    after = cluster.agent(victim)
    assert after["life"] > before["life"]
    assert after["gpud_pid"] != before["gpud_pid"]


def test_a_gpud_that_is_killed_under_its_node_is_started_again(cluster: LocalCluster) -> None:
    victim = ready()[0]
    before = cluster.agent(victim)["gpud_pid"]
    with under_load(cluster, victim) as reports:
        cluster.kill_gpud(victim)
    assert any("gpud" in attempt.ended for report in reports for attempt in report.attempts)
    wait_until(lambda: victim in ready(), "the node is back")
    assert cluster.agent(victim)["gpud_pid"] != before


def test_a_head_that_dies_returns_and_learns_from_heartbeats(cluster: LocalCluster) -> None:
    first = gpud_ray.status()
    with under_load(cluster, ready()[0]) as reports:
        cluster.kill_head()
    assert not any(report.may_have_run_twice for report in reports)  # no node was lost
    cluster.wait_ready()
    second = gpud_ray.status()
    assert second["head"] != first["head"]
    assert {row["node"] for row in second["nodes"]} >= set(ready())


def test_a_head_that_is_gone_for_good_is_replaced_by_an_agent(cluster: LocalCluster) -> None:
    with under_load(cluster, ready()[0]):
        cluster.kill_head(for_good=True)
    cluster.wait_ready()


def test_an_item_whose_own_agent_dies_is_submitted_again_and_says_that_it_may_run_twice(
    cluster: LocalCluster,
) -> None:
    wait_until(lambda: len(ready()) == 2, "both nodes are there")
    results, told = gpud_ray.submit(item(2), report=True)
    wait_until(lambda: cluster.agent(cluster.home)["forwarded"] == 1, "it is forwarded")
    cluster.kill_agent(cluster.home)
    np.testing.assert_array_equal(ray.get(results, timeout=60), 1)
    report = ray.get(told)
    assert report.may_have_run_twice
    assert "agent of its own node" in report.attempts[0].ended


def test_an_item_that_may_be_tried_once_fails_with_the_reason(cluster: LocalCluster) -> None:
    from dataclasses import replace

    from gpud_ray.actors import find_head

    wait_until(lambda: len(ready()) == 2, "both nodes are there")
    ray.get(find_head().configure.remote(replace(SETTINGS, attempts=1)))
    home = cluster.agent(cluster.home)
    try:
        time.sleep(3 * SETTINGS.period_s)  # agents learn settings with a heartbeat's answer
        victim = ready()[0]
        ref = gpud_ray.submit(item(3), on=victim)
        wait_until(lambda: cluster.agent(victim)["holds"] > 0, "the node gets the item")
        cluster.kill_agent(victim)
        with pytest.raises(gpud_ray.ItemFailed, match="was lost") as raised:
            ray.get(ref, timeout=60)
        error: Any = raised.value
        assert error.cause.cause == "node-lost"
    finally:
        ray.get(find_head().configure.remote(SETTINGS))
    assert cluster.agent(cluster.home)["life"] == home["life"]
    wait_until(lambda: len(ready()) == 2, "both nodes are there")


@contextmanager
def gpud_at(path: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "gpud", "serve", "--socket", str(path), "--device", "cpu:1"]
    command += ["--config", "/dev/null", "--memory", "256 MiB", "--drain-timeout", "1 s"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


def test_a_node_goes_on_with_the_next_daemon_at_its_socket(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    socket = tmp_path / "gpud.sock"
    with gpud_at(socket):
        node = cluster.add(socket=str(socket))
        wait_until(lambda: node in ready(), "the node is there")
        np.testing.assert_array_equal(ray.get(gpud_ray.submit(item(0), on=node), timeout=60), 1)
    wait_until(lambda: node not in ready(), "the head knows that the gpud is gone")
    np.testing.assert_array_equal(ray.get(gpud_ray.submit(item(0)), timeout=60), 1)  # elsewhere
    with gpud_at(socket):
        np.testing.assert_array_equal(ray.get(gpud_ray.submit(item(0), on=node), timeout=60), 1)
    cluster.kill_node(node)


def test_items_wait_for_a_node_and_fail_when_none_comes(cluster: LocalCluster) -> None:
    from dataclasses import replace

    from gpud_ray.actors import find_head

    ray.get(find_head().configure.remote(replace(SETTINGS, place_wait_s=0.5)))
    try:
        with pytest.raises(gpud_ray.ItemFailed, match="node nowhere, which has not reported"):
            ray.get(gpud_ray.submit(item(0), on="nowhere"), timeout=30)
    finally:
        ray.get(find_head().configure.remote(SETTINGS))
