"""What programs call: `submit`, and the node's own gpud for what Ray schedules itself."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import ray

import gpud_client as gc
from gpud.errors import InvalidArgument
from gpud.units import byte_size
from gpud_ray.actors import agent_name, find_agent, find_head
from gpud_ray.errors import NoCluster
from gpud_ray.items import InOut, Item, KernelCall, Out, array_of, new_item_id

__all__ = ["local_session", "status", "submit", "workload_node"]

_INLINE_BYTES = 64 << 10  # smaller arrays travel within the item
_REPEATS = 5  # of the call, if the agent of this node is restarted meanwhile

_agents: dict[str, Any] = {}


def submit(
    call: KernelCall,
    *,
    on: Any = None,
    memory_bytes: int | None = None,
    report: bool = False,
) -> Any:
    """Submit a kernel call; it runs on the node whose GPUs are the most idle. Returns at once.

    Arrays become Ray objects, without a copy for programs and agents on one node. An array that
    several calls use is best put once: ``x = ray.put(array)``, and ``x`` as the argument.

    Args:
        call: The kernel and its arguments.
        on: The only node that may run it: Ray's id of a node; a placement group of one bundle; or
            a pair of a placement group and the number of one of its bundles. None: any node.
        memory_bytes: What its arrays take together on a device; None: what they add up to.
        report: Whether to return a second reference, to the `Report` of where it ran.

    Returns:
        A Ray object reference to the call's results: an array if it has one `Out` or `InOut`, a
        tuple of arrays if it has several, else None. ``ray.get`` of it raises `ItemFailed` if the
        item has ended without results.

    Raises:
        NoCluster: This program is not connected to Ray, or there is no agent.
        InvalidArgument: The call or an option is not valid.
    """
    if not isinstance(call, KernelCall):
        raise InvalidArgument(f"submit takes a KernelCall, not {type(call).__name__}")
    item = _item(call, _node(on), memory_bytes)
    results, told = (
        _own_agent().submit.options(num_returns=2, max_task_retries=_REPEATS).remote(item)
    )
    return (results, told) if report else results


def local_session() -> gc.Session:
    """Connect to the gpud of the node on which this runs, such as in a Ray task.

    For tasks and actors that Ray itself places: ``@ray.remote(resources={"gpud_sms": 1})``.

    Raises:
        NoCluster: The node has no agent of gpud-ray, or its gpud does not answer.
    """
    node = ray.get_runtime_context().get_node_id()
    told = ray.get(find_agent(node).status.remote())
    if told["problem"]:
        raise NoCluster(f"the gpud of node {node} does not answer: {told['problem']}")
    return gc.connect(told["gpud"], name="gpud-ray")


def status() -> dict[str, Any]:
    """Describe the head and all nodes as plain data, as ``gpud-ray status --json`` prints it.

    Raises:
        NoCluster: This program is not connected to Ray, or there is no head.
    """
    _connected()
    told: dict[str, Any] = ray.get(find_head().status.remote(), timeout=30)
    return told


def workload_node(persistent: int | str, temporary: int | str, offset: int | str = 0) -> str:
    """Return the node on which most memory stays free beside a workload.

    Of a GPU's workloads the persistent memory adds up, and the largest temporary need counts once,
    so a node whose workloads have large temporary needs already has room for this one's.

    Args:
        persistent: What the workload keeps, in bytes or as "2GiB".
        temporary: What lives within one of its iterations.
        offset: Room in which the persistent memory can grow.

    Returns:
        Ray's id of the node, for `NodeAffinitySchedulingStrategy`; `local_session` in a task there
        opens the workload.

    Raises:
        NoCluster: This program is not connected to Ray, there is no head, or no node has the room.
        ValueError: A size is none.
    """
    keeps, shares = byte_size(persistent) + byte_size(offset), byte_size(temporary)
    left = [
        (gpu["memory_free_bytes"] - keeps - max(0, shares - gpu["temporary_bytes"]), row["node"])
        for row in status()["nodes"]
        for gpu in row["inputs"]
        if row["state"] == "ready" and not gpu["paused"]
    ]
    free_bytes, node = max(left, key=lambda one: one[0], default=(-1, ""))
    if free_bytes < 0:
        raise NoCluster(
            f"no node has room for a workload that keeps {keeps:,} bytes and uses {shares:,} "
            "within an iteration; gpud-ray status shows what is free"
        )
    return str(node)


def _connected() -> None:
    if not ray.is_initialized():
        raise NoCluster('this program is not connected to Ray: call ray.init("auto") first')


def _own_agent() -> Any:
    """Return the agent of this program's node, or of any other node if that has none."""
    _connected()
    node = ray.get_runtime_context().get_node_id()
    agent = _agents.get(node)
    if agent is None:
        try:
            agent = find_agent(node)
        except NoCluster:
            nodes = [row["node"] for row in status()["nodes"]]
            if not nodes:
                raise NoCluster(f"no node has an agent ({agent_name(node)} is missing)") from None
            return find_agent(nodes[0])
        _agents.clear()  # of a cluster that this program was connected to before
        _agents[node] = agent
    return agent


def _item(call: KernelCall, only_on: str, memory_bytes: int | None) -> Item:
    total, refs, put = 0, [], {}
    arguments: list[Any] = []
    for one in call.args:
        values, argument = array_of(one), one
        if values is not None:
            total += values.nbytes
            if values.nbytes > _INLINE_BYTES:
                key = id(values)
                if key not in put:
                    put[key] = ray.put(np.ascontiguousarray(values))
                argument = InOut(put[key]) if isinstance(one, InOut) else put[key]
        elif isinstance(one, Out):
            total += one.nbytes
        else:
            reference = one.values if isinstance(one, InOut) else one
            if isinstance(reference, ray.ObjectRef) and reference not in refs:
                refs.append(reference)
        arguments.append(argument)
    if memory_bytes is not None:
        if memory_bytes < 0:
            raise InvalidArgument(f"memory_bytes is 0 or more, not {memory_bytes}")
        total, refs = memory_bytes, []
    changed = replace(call, args=tuple(arguments))
    return Item(new_item_id(), changed, time.time(), total, only_on, refs)


def _node(on: Any) -> str:
    """Return Ray's id of the node that ``on`` names; empty: any."""
    if on is None:
        return ""
    if isinstance(on, str):
        return on
    group, bundle = on if isinstance(on, tuple) else (on, 0)
    from ray.util import placement_group_table

    table = placement_group_table(group)
    nodes = table.get("bundles_to_node_id") or {}
    if bundle not in nodes or not nodes[bundle]:
        raise InvalidArgument(
            f"placement group {table.get('name') or table.get('placement_group_id')} has no node "
            f"for bundle {bundle}: wait for its ready() first"
        )
    return str(nodes[bundle])
