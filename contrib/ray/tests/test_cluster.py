"""Items on several nodes: where they run, what comes back, and what Ray's own scheduling sees."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.util import placement_group, remove_placement_group

import gpud_client as gc
import gpud_ray
from gpud.errors import InvalidArgument
from gpud_ray.actors import find_agent
from gpud_ray.client import _item
from gpud_ray.node.config import DEVICES_VARIABLE

N = 1 << 16


def test_an_items_results_come_back_with_a_report(two_nodes: Any, saxpy: Any) -> None:
    results, told = gpud_ray.submit(saxpy(N), report=True)
    assert np.array_equal(ray.get(results, timeout=60), 2 * np.arange(N, dtype=np.float32) + 3)
    report = ray.get(told)
    assert report.node in {row["node"] for row in gpud_ray.status()["nodes"] if row["sms"]}
    assert [attempt.ended for attempt in report.attempts] == ["done"]
    assert not report.may_have_run_twice
    assert 0 < report.kernel_s < report.ran_s


def test_many_items_use_all_nodes_and_each_ends_once(two_nodes: Any, saxpy: Any) -> None:
    before = gpud_ray.status()["counts"]["placed"]
    pairs = [gpud_ray.submit(saxpy(256, y=number), report=True) for number in range(200)]
    values = ray.get([results for results, _ in pairs], timeout=100)
    for number, value in enumerate(values):
        assert np.array_equal(value, 2 * np.arange(256, dtype=np.float32) + number)
    reports = ray.get([told for _, told in pairs])
    assert all(len(report.attempts) == 1 for report in reports)
    assert len(Counter(report.node for report in reports)) == 2
    assert gpud_ray.status()["counts"]["placed"] == before + 200


def test_an_array_is_put_once_and_read_without_a_copy(two_nodes: Any) -> None:
    x = np.arange(N, dtype=np.float32)
    call = gpud_ray.KernelCall(source="unused", kernel="k", grid=1, block=1, args=(x, x, 3))
    item = _item(call, "", None)
    first, second, third = item.call.args
    assert first == second
    assert isinstance(first, ray.ObjectRef)
    assert third == 3
    assert item.memory_bytes == 2 * x.nbytes
    value = ray.get(first)
    assert not value.flags.owndata  # a view of the node's shared memory
    assert not value.flags.writeable


def test_data_may_be_given_by_its_address(two_nodes: Any, saxpy: Any) -> None:
    x = ray.put(np.ones(N, np.float32))
    y = gpud_ray.submit(saxpy(N, y=1))  # the result of one item is data of the next
    source = saxpy(N).source
    call = gpud_ray.KernelCall(
        source=source, kernel="saxpy", grid=N // 256, block=256,
        args=(np.float32(10), x, gpud_ray.InOut(y), np.int32(N)),
    )  # fmt: skip
    value = ray.get(gpud_ray.submit(call), timeout=60)
    assert np.array_equal(value, 2 * np.arange(N, dtype=np.float32) + 11)


def test_several_results_are_a_tuple_in_the_order_of_the_arguments(two_nodes: Any) -> None:
    source = (
        'extern "C" __global__ void both(float* a, const float* x, int* b) '
        "{ int i = threadIdx.x; a[i] = x[i] + 1; b[i] = i; }"
    )
    x = np.arange(32, dtype=np.float32)
    call = gpud_ray.KernelCall(
        source=source, kernel="both", grid=1, block=32,
        args=(gpud_ray.Out(32, "float32"), x, gpud_ray.Out((4, 8), "int32")),
    )  # fmt: skip
    a, b = ray.get(gpud_ray.submit(call), timeout=60)
    assert np.array_equal(a, x + 1)
    assert np.array_equal(b, np.arange(32, dtype=np.int32).reshape(4, 8))


def test_a_workload_goes_where_most_memory_stays_free(two_nodes: Any) -> None:
    rows = {row["node"]: row for row in gpud_ray.status()["nodes"] if row["sms"]}
    (one, first), (two, second) = rows.items()
    sockets = {node: row["address"].partition(" ")[2] for node, row in rows.items()}
    most = min(row["memory_free_bytes"] for row in rows.values())
    with gc.connect(sockets[one]) as gpu:
        used = gpu.workload("1MiB", "100MiB", offset=0)
        held = gc.connect(sockets[two])
        array = held.zeros(60 << 20, np.uint8)
        waits_until(lambda: free(one) < first["memory_free_bytes"])
        waits_until(lambda: free(two) < second["memory_free_bytes"])
        # The temporary memory of 100 MiB is there once, for all workloads of a node.
        assert gpud_ray.workload_node("1MiB", "100MiB") == one
        assert gpud_ray.workload_node("1MiB", "0") == two
        with pytest.raises(gpud_ray.NoCluster, match="room"):
            gpud_ray.workload_node(most, "1MiB")
        used.close()
        array.free()
        held.close()


def free(node: str) -> int:
    rows = gpud_ray.status()["nodes"]
    return int(next(row["memory_free_bytes"] for row in rows if row["node"] == node))


def waits_until(condition: Any) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("change", "cause", "said"),
    [
        ({"source": "this is no kernel"}, "compile", "error"),
        ({"kernel": "saxpi"}, "kernel-not-found", "saxpi"),
        ({"block": 4_096}, "launch-config", "4096"),
        ({"args": (1,)}, "invalid-argument", "argument"),
        ({"grid": 0}, "launch-config", "grid"),
    ],
)
def test_an_item_at_fault_fails_once_with_the_reason(
    two_nodes: Any, saxpy: Any, change: dict[str, Any], cause: str, said: str
) -> None:
    from dataclasses import replace

    with pytest.raises(gpud_ray.ItemFailed, match=said) as raised:
        ray.get(gpud_ray.submit(replace(saxpy(), **change)), timeout=60)
    error = raised.value.cause if isinstance(raised.value, ray.exceptions.RayTaskError) else None
    assert isinstance(error, gpud_ray.ItemFailed)
    assert error.cause == cause
    assert error.attempts == 1


def test_an_item_that_needs_more_memory_than_any_gpu_fails_at_once(
    two_nodes: Any, saxpy: Any
) -> None:
    with pytest.raises(gpud_ray.ItemFailed, match="largest GPU that may take it has 268,435,456"):
        ray.get(gpud_ray.submit(saxpy(), memory_bytes=300 << 20), timeout=30)


def test_items_that_do_not_fit_together_wait_for_one_another(two_nodes: Any) -> None:
    source = 'extern "C" __global__ void touch(char* a) { a[threadIdx.x] = 1; }'
    call = gpud_ray.KernelCall(
        source=source, kernel="touch", grid=1, block=32, args=(gpud_ray.Out(150 << 20, "int8"),)
    )
    told = [gpud_ray.submit(call, report=True, memory_bytes=150 << 20)[1] for _ in range(6)]
    reports = ray.get(told, timeout=100)
    assert len({report.item for report in reports}) == 6
    assert not any(report.may_have_run_twice for report in reports), reports


def test_an_item_can_be_bound_to_a_node_or_to_a_placement_group(two_nodes: Any, saxpy: Any) -> None:
    nodes = {row["sms"]: row["node"] for row in gpud_ray.status()["nodes"] if row["sms"]}
    for node in nodes.values():
        _, told = gpud_ray.submit(saxpy(), on=node, report=True)
        assert ray.get(told, timeout=30).node == node
    group = placement_group([{"gpud_sms": 2}])  # only one node announces as many
    ray.get(group.ready(), timeout=30)
    try:
        _, told = gpud_ray.submit(saxpy(), on=group, report=True)
        assert ray.get(told, timeout=30).node == nodes[2]
        with pytest.raises(InvalidArgument, match="has no node for bundle 1"):
            gpud_ray.submit(saxpy(), on=(group, 1))
    finally:
        remove_placement_group(group)


def test_ray_places_tasks_by_what_nodes_announce_and_they_find_their_gpud(two_nodes: Any) -> None:
    def work() -> tuple[str, int]:
        with gpud_ray.local_session() as gpu:
            return ray.get_runtime_context().get_node_id(), gpu.device.sms

    task = ray.remote(resources={"gpud_sms": 2, "gpud_memory": 1 << 20}, num_cpus=0)(work)
    node, sms = ray.get(task.remote(), timeout=60)
    assert sms == 2
    assert node == {row["sms"]: row["node"] for row in gpud_ray.status()["nodes"] if row["sms"]}[2]


def test_a_node_that_joins_by_itself_gets_an_agent(two_nodes: Any, saxpy: Any) -> None:
    # As Ray's autoscaler adds one: nothing of gpud-ray runs there.
    raylet = two_nodes.cluster.add_node(
        num_cpus=1, object_store_memory=96 << 20, resources={"gpud_sms": 1},
        env_vars={DEVICES_VARIABLE: "cpu:1", "GPUD_MEMORY": "256 MiB"},
    )  # fmt: skip
    node: str = raylet.node_id
    _, told = gpud_ray.submit(saxpy(), on=node, report=True)
    assert ray.get(told, timeout=60).node == node
    # Taken out by its agent, it gets none again, though Ray has it still.
    ray.get(find_agent(node).close.remote(), timeout=20)
    ray.kill(find_agent(node))
    time.sleep(3)
    assert node not in {row["node"] for row in gpud_ray.status()["nodes"]}
    two_nodes.cluster.remove_node(raylet, allow_graceful=False)


def test_a_node_whose_gpud_is_slow_to_answer_is_not_lost(two_nodes: Any) -> None:
    node = next(row["node"] for row in gpud_ray.status()["nodes"] if row["sms"])
    gpud = two_nodes.agent(node)["gpud_pid"]
    os.kill(gpud, signal.SIGSTOP)
    stopped = time.monotonic()
    try:
        time.sleep(1)
        while True:
            rows = {row["node"]: row for row in gpud_ray.status()["nodes"]}
            assert rows[node]["state"] in ("ready", "stale")
            if rows[node]["beat_age_s"] < time.monotonic() - stopped - 0.5:
                break  # a heartbeat has come from there since
            time.sleep(0.05)
    finally:
        os.kill(gpud, signal.SIGCONT)


def test_the_example_of_the_how_to_runs(two_nodes: Any) -> None:
    page = Path(__file__).parents[3] / "docs/howto/two-workstations.md"
    (example,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    short = example.replace("1 << 20", "1 << 12").replace("range(100)", "range(8)")
    done = subprocess.run(
        [sys.executable, "-c", short], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "RAY_ADDRESS": two_nodes.cluster.address},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0.0" in done.stdout
    assert "3.0" in done.stdout


def test_submit_says_what_it_takes(two_nodes: Any, saxpy: Any) -> None:
    with pytest.raises(InvalidArgument, match="takes a KernelCall, not str"):
        gpud_ray.submit("saxpy")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="memory_bytes is 0 or more"):
        gpud_ray.submit(saxpy(), memory_bytes=-1)
    with pytest.raises(InvalidArgument, match="Python objects"):
        gpud_ray.KernelCall(source="x", kernel="k", grid=1, block=1, args=(np.array([object()]),))
    with pytest.raises(gpud_ray.NoCluster, match="has no agent"):
        find_agent("nowhere")
