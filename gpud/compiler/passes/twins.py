"""Twins of kernels: the same code under a further name, for the passes that follow to tell apart.

Problem: one launch needs a kernel in another form than the next (`gpud.compiler.names.twin_of`), or
with kill polls (`killable_of`). What comes before the forms is the same for all of them.

Approach: the passes that watch over a kernel have run when its twins are made, so they see its code
once. A twin shares the statements with its kernel until a later pass changes one of both.

Properties:
* a twin follows its kernel, in the order of the plan;
* a module for which the plan names no twin comes out as the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.forms import Decision
from gpud.compiler.names import kernel_of
from gpud.compiler.ptx.model import Directive, Function, Module, Variable

__all__ = ["pass_twins"]


def pass_twins(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Add the twins that are in ``plan`` and not in the module.

    Args:
        module: flat; not changed.
        plan: the decision for each entry, twins included.
    """
    entries = module.entries()
    twins: dict[str, list[str]] = {}
    for name in plan:
        if name not in entries:
            twins.setdefault(kernel_of(name), []).append(name)
    if not twins:
        return module
    items: list[Function | Variable | Directive] = []
    for item in module.items:
        items.append(item)
        if isinstance(item, Function) and item.body is not None:
            items += [replace(item, name=twin) for twin in twins.get(item.name, ())]
    return replace(module, items=items)
