"""Show 3: nodes are killed under load, and no item is lost.

Nodes with one virtual SM each on this machine. Again and again a node is killed, as if its machine
had lost power, and a new one takes its place, while items run all the time. At the end every item
has ended with the right values, and the table says how many were tried again, and how many may
have run twice.

Run it: .venv-ray/bin/python contrib/ray/bench/kills.py [--kills 200] [--nodes 3] [--seconds 230]
[--agents]: kill the nodes' agents instead, which Ray starts again: quicker than new nodes.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import ray

import gpud_ray
from gpud_ray.local_cluster import LocalCluster, lasting, local_cluster

SETTINGS = gpud_ray.Settings(period_s=0.1, missed_beats=30, attempts=1000, place_wait_s=300)
PENDING = 12
LASTS_S = 0.1


def run(cluster: LocalCluster, kills: int, seconds: float, *, agents: bool) -> dict[str, Any]:
    """Kill nodes until there were enough kills, or the time is over."""
    begin = time.monotonic()
    nodes = [row["node"] for row in gpud_ray.status()["nodes"] if row["sms"]]
    pending: dict[Any, tuple[Any, int]] = {}
    counts: Counter[str] = Counter()

    def collect(block: bool) -> None:
        while pending:
            ended, _ = ray.wait(list(pending), num_returns=1, timeout=60 if block else 0)
            if not ended:
                assert not block, "an item has not ended within a minute"
                return
            told = ended[0]
            results, number = pending.pop(told)
            try:
                value = ray.get(results)
            except gpud_ray.ItemFailed:
                counts["failed"] += 1
                continue
            assert (value == number + 1).all(), "an item's values are wrong"
            report = ray.get(told)
            counts["done"] += 1
            counts["again"] += len(report.attempts) > 1
            counts["twice"] += report.may_have_run_twice

    while counts["kills"] < kills and time.monotonic() - begin < seconds:
        while len(pending) < PENDING:
            number = counts["submitted"]
            item = lasting(LASTS_S, np.full(1024, number, np.float32))
            results, told = gpud_ray.submit(item, report=True)
            pending[told] = results, number
            counts["submitted"] += 1
        busy = [node for node in nodes if _holds(cluster, node)]
        if busy:
            victim = busy[counts["kills"] % len(busy)]
            if agents:
                cluster.kill_agent(victim)
            else:
                nodes.remove(victim)
                cluster.kill_node(victim)
                nodes.append(_added(cluster))
            counts["kills"] += 1
        collect(block=False)
    collect(block=True)
    counts["lost"] = counts["submitted"] - counts["done"] - counts["failed"]
    return {**counts, "seconds": time.monotonic() - begin}


def _added(cluster: LocalCluster) -> str:
    while True:
        try:
            return cluster.add("cpu:1")
        except Exception as error:  # noqa: BLE001  (what Ray raises when a start takes too long)
            print(f"a new node did not start, another one is: {error}", file=sys.stderr)


def _holds(cluster: LocalCluster, node: str) -> bool:
    try:
        return bool(cluster.agent(node)["holds"])
    except (gpud_ray.NoCluster, ray.exceptions.RayError):
        return False  # it is starting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=230)
    parser.add_argument("--agents", action="store_true")
    asked = parser.parse_args()
    with local_cluster(*["cpu:1"] * asked.nodes, settings=SETTINGS) as cluster:
        told = run(cluster, asked.kills, asked.seconds, agents=asked.agents)
    what = "agents" if asked.agents else "nodes"
    print(
        f"{told['kills']} {what} killed in {told['seconds']:.0f} s with items on them: "
        f"{told['submitted']} items, {told['done']} done, {told.get('failed', 0)} failed, "
        f"{told['lost']} lost; {told.get('again', 0)} were tried again, {told.get('twice', 0)} may "
        "have run twice and say so"
    )


if __name__ == "__main__":
    main()
