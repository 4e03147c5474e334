"""Finds the cycles of a function's control flow and of a module's call graph.

Problem: all code that may run forever must be found before it runs: natural loops, cycles with
several entries (irreducible ones), and recursion.

Approach: every cycle of a directed graph has at least one edge that *retreats* in any reverse
post-order, that is, whose target comes no later than its source.

Properties:
    every_cycle: without its retreating edges a graph has no cycle;
    only_cycles: a retreating edge is part of a cycle.

Source: Aho, Lam, Sethi and Ullman, "Compilers", section 9.6.
"""

from __future__ import annotations

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.graph import strong_components

__all__ = ["has_cycle", "recursive", "retreating_edges"]


def retreating_edges(flow: ControlFlow) -> list[tuple[int, int]]:
    """Return the retreating edges (source, target), by source block."""
    number = {block: place for place, block in enumerate(flow.order)}
    return [
        (block, successor)
        for block in sorted(flow.order)
        for successor in flow.successors[block]
        if successor != flow.exit and number[successor] <= number[block]
    ]


def has_cycle(call_graph: CallGraph, name: str) -> bool:
    """Return whether the control flow of the function ``name`` has a cycle."""
    return call_graph.uses[name].may_cycle and bool(call_graph.flow(name).components)


def recursive(call_graph: CallGraph) -> frozenset[str]:
    """Return the functions that can call themselves by direct calls, also through others."""
    names = list(call_graph.uses)
    place = {name: number for number, name in enumerate(names)}
    calls = [
        tuple(place[target] for target in uses.calls if target in place)
        for uses in call_graph.uses.values()
    ]
    root = len(names)
    calls.append(tuple(range(root)))
    return frozenset(
        names[node]
        for component in strong_components(calls, root)
        for node in component
        if node != root and (len(component) > 1 or node in calls[node])
    )
