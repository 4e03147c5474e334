"""Refuses tasks that no node could ever run, in words that say what there is."""

from __future__ import annotations

from collections.abc import Iterable

from gpud.tasks.core.events import TaskTerms
from gpud.tasks.core.node import NodeRecord

__all__ = ["refusal"]


def refusal(terms: TaskTerms, nodes: Iterable[NodeRecord]) -> str:
    """Return why no node can ever run a task; empty: one can."""
    there = list(nodes)
    gpus, cores = terms.gpus, terms.cores or 1
    most = max((node.gpus for node in there), default=0)
    if gpus > 1 and gpus.denominator != 1:
        return f"{gpus} GPUs: ask for a whole number of them, or for a part of one, such as 0.5"
    if gpus > most:
        has = "there is no GPU" if not most else f"the most that a node has is {most}"
        return f"{float(gpus):g} GPUs were asked for, and {has}"
    fit = [node for node in there if node.gpus >= gpus]
    cores_most = max((len(node.cpus) for node in fit), default=0)
    if cores > cores_most:
        where = " with so many GPUs" if gpus else ""
        return f"{cores} cores were asked for, and the most that a node{where} has is {cores_most}"
    memory = max((node.memory_bytes for node in fit), default=0)
    if memory and (terms.memory_bytes or 0) > memory:
        return f"{terms.memory_bytes} bytes were asked for, and a node has {memory}"
    return ""
