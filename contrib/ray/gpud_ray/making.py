"""How the actors are made.

Head and agents make each other when they are gone. Each is given the function for it, so that
neither's file imports the other's.
"""

from __future__ import annotations

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gpud_ray.actors import HEAD, MOST_CALLS, NAMESPACE, agent_name
from gpud_ray.head import Head
from gpud_ray.node.agent import NodeAgent
from gpud_ray.node.config import DaemonConfig
from gpud_ray.placement.settings import Settings

__all__ = ["make_agent", "make_head"]


def make_head(settings: Settings, node: str) -> Any:
    """Return the head; make it, on this node if possible, if there is none."""
    return _make(Head, HEAD, node, soft=True).remote(settings, make_agent)


def make_agent(node: str, config: DaemonConfig | None, settings: Settings) -> Any:
    """Return the node's agent; make it if there is none.

    Without a config it takes the gpud that its raylet's environment names.
    """
    return _make(NodeAgent, agent_name(node), node, soft=False).remote(config, settings, make_head)


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
