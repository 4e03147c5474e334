"""Adds the variants of kernels: copies under other names, which later passes treat differently.

Problem: some launches need a kernel in another form
(`gpud.compiler.abi.reserved_names.sliced_variant`), or with kill polls (`killable_variant`). All
safety checks but these polls are the same in every variant.

Approach: variants are added after the passes for safety checks, so that these process each kernel
once. A variant shares its statements with the kernel until a later pass changes either.

Properties:
* variants follow their kernel, in the order of the plan;
* a module for which the plan names no variant is returned as the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.reserved_names import kernel_of
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.ptx.model import Directive, Function, Module, Variable

__all__ = ["pass_variants"]


def pass_variants(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Add the variants that are in ``plan`` and not in the module.

    Args:
        module: flat; not changed.
        plan: the decision for each entry, variants included.
    """
    entries = module.entries()
    variants: dict[str, list[str]] = {}
    for name in plan:
        if name not in entries:
            variants.setdefault(kernel_of(name), []).append(name)
    if not variants:
        return module
    items: list[Function | Variable | Directive] = []
    for item in module.items:
        items.append(item)
        if isinstance(item, Function) and item.body is not None:
            items += [replace(item, name=variant) for variant in variants.get(item.name, ())]
    return replace(module, items=items)
