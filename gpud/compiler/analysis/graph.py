"""Graph algorithms: orders, dominators and components of graphs of small integers.

Problem: control-flow analyses need reverse post-order, immediate dominators (forward and backward)
and strongly connected components. The algorithms do not depend on the meaning of nodes.

Approach: iterative depth-first search (no recursion: real kernels have thousands of blocks).

Algorithm: dominators by Cooper, Harvey and Kennedy, "A Simple, Fast Dominance Algorithm", 2001;
components by Tarjan, "Depth-First Search and Linear Graph Algorithms", 1972.

Properties:
* every function visits only nodes reachable from ``root``;
* equal graphs give equal results: nothing iterates a set.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["immediate_dominators", "reverse_post_order", "strong_components"]


def reverse_post_order(successors: Sequence[Sequence[int]], root: int) -> list[int]:
    """Return the nodes reachable from ``root``, before successors but by retreating edges."""
    seen = bytearray(len(successors))
    seen[root] = 1
    order = []
    stack = [(root, iter(successors[root]))]
    while stack:
        node, rest = stack[-1]
        for successor in rest:
            if not seen[successor]:
                seen[successor] = 1
                stack.append((successor, iter(successors[successor])))
                break
        else:
            order.append(node)
            stack.pop()
    order.reverse()
    return order


def immediate_dominators(successors: Sequence[Sequence[int]], root: int) -> list[int | None]:
    """Return the immediate dominator of every node, ``None`` for ``root`` and unreachable nodes."""
    order = reverse_post_order(successors, root)
    number = {node: place for place, node in enumerate(order)}
    predecessors: list[list[int]] = [[] for _ in order]
    for place, node in enumerate(order):
        for successor in successors[node]:
            predecessors[number[successor]].append(place)
    # Work on places in the order: a dominator always has a smaller one.
    above = [-1] * len(order)
    above[0] = 0
    changed = True
    while changed:
        changed = False
        for place in range(1, len(order)):
            best = -1
            for predecessor in predecessors[place]:
                if above[predecessor] < 0:
                    continue
                other = predecessor
                best = other if best < 0 else best
                while other != best:
                    while other > best:
                        other = above[other]
                    while best > other:
                        best = above[best]
            if above[place] != best:
                above[place] = best
                changed = True
    result: list[int | None] = [None] * len(successors)
    for place in range(1, len(order)):
        result[order[place]] = order[above[place]]
    return result


def strong_components(successors: Sequence[Sequence[int]], root: int) -> list[list[int]]:
    """Return the strongly connected components reachable from ``root``, sinks first."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    open_nodes: list[int] = []
    is_open = bytearray(len(successors))
    components = []
    stack = [(root, iter(successors[root]))]
    index[root] = low[root] = 0
    open_nodes.append(root)
    is_open[root] = 1
    while stack:
        node, rest = stack[-1]
        for successor in rest:
            if successor not in index:
                index[successor] = low[successor] = len(index)
                open_nodes.append(successor)
                is_open[successor] = 1
                stack.append((successor, iter(successors[successor])))
                break
            if is_open[successor]:
                low[node] = min(low[node], index[successor])
        else:
            stack.pop()
            if stack:
                parent = stack[-1][0]
                low[parent] = min(low[parent], low[node])
            if low[node] == index[node]:
                component = []
                while True:
                    member = open_nodes.pop()
                    is_open[member] = 0
                    component.append(member)
                    if member == node:
                        break
                components.append(component)
    return components
