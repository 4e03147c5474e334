"""Takes this machine's agent out of the cluster.

A process of its own: Ray ends the whole process that connects to a node that is just ending.

Run it: python -m gpud_ray.node.leave ADDRESS NAME
"""

from __future__ import annotations

import sys
from contextlib import suppress

import ray

from gpud_ray.actors import NAMESPACE, find_agent, node_named
from gpud_ray.errors import NoCluster

__all__ = ["leave"]

_ANSWER_S = 20.0


def leave(address: str, name: str) -> None:
    """End a node's agent, and with it the gpud that it has started."""
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
    agent = find_agent(node_named(name))
    with suppress(ray.exceptions.RayError):
        ray.get(agent.close.remote(), timeout=_ANSWER_S)
    ray.kill(agent, no_restart=True)
    ray.shutdown()


if __name__ == "__main__":
    with suppress(NoCluster, ConnectionError):
        leave(sys.argv[1], sys.argv[2])
