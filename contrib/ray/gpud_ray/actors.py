"""The actors' names, and how they are found; `gpud_ray.making` makes them."""

from __future__ import annotations

from typing import Any

import ray

from gpud_ray.errors import NoCluster

__all__ = [
    "HEAD",
    "MOST_CALLS",
    "NAMESPACE",
    "agent_name",
    "find_agent",
    "find_head",
    "node_named",
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


def node_named(name: str) -> str:
    """Return Ray's id of the node that was started with a name.

    Raises:
        NoCluster: there is none.
    """
    for row in ray.nodes():
        if row["Alive"] and row["NodeName"] == name:
            return str(row["NodeID"])
    raise NoCluster(f"Ray has no node {name}")
