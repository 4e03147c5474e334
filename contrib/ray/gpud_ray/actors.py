"""The actors' names, and how they are made and found."""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpud_ray.errors import NoCluster
from gpud_ray.placement.settings import Settings

__all__ = [
    "HEAD",
    "MOST_CALLS",
    "NAMESPACE",
    "agent_name",
    "find_agent",
    "find_head",
    "make_agent",
    "make_head",
]

NAMESPACE = "gpud"
HEAD = "gpud-head"
MOST_CALLS = 20_000
"""Calls that an actor has at a time; more wait at their callers."""


def agent_name(node: str) -> str:
    """Return the name of a node's agent."""
    return f"gpud-node-{node}"


def find_head() -> Any:
    """Return the head.

    Raises:
        NoCluster: there is none.
    """
    try:
        return ray.get_actor(HEAD, namespace=NAMESPACE)
    except ValueError:
        raise NoCluster("this Ray cluster has no head of gpud-ray: run `gpud-ray up`") from None


def find_agent(node: str) -> Any:
    """Return a node's agent.

    Raises:
        NoCluster: the node has none.
    """
    try:
        return ray.get_actor(agent_name(node), namespace=NAMESPACE)
    except ValueError:
        raise NoCluster(f"node {node} has no agent of gpud-ray: run `gpud-ray up` on it") from None


def make_head(settings: Settings, node: str) -> Any:
    """Return the head; make it, on this node if possible, if there is none."""
    from gpud_ray.head import Head

    return _make(Head, HEAD, node, soft=True).remote(settings)


def make_agent(node: str, config: Any, settings: Settings) -> Any:
    """Return the node's agent; make it if there is none.

    Without a config it takes the gpud that its raylet's environment names.
    """
    from gpud_ray.node.agent import NodeAgent

    return _make(NodeAgent, agent_name(node), node, soft=False).remote(config, settings)


def _make(kind: type, name: str, node: str, *, soft: bool) -> Any:
    # No concurrency groups: Ray gives each an event loop of its own, and these have one state.
    return ray.remote(kind).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        max_concurrency=MOST_CALLS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=soft),
    )
