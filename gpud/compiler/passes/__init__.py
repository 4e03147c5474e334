"""Rewrites of PTX programs: one file a pass, in the order of `PASSES`.

A pass is a pure function from a module and a plan (the `Decision` of each entry) to a new module;
its input is not changed. It is given the part of the plan whose forms it applies to. A new pass is
one file and one row of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpud.compiler.forms import Decision, Form
from gpud.compiler.passes.exit_aware import pass_exit_aware
from gpud.compiler.passes.hidden_parameters import pass_coordinates
from gpud.compiler.passes.persistent import pass_persistent
from gpud.compiler.passes.sliced import pass_sliced
from gpud.compiler.ptx.model import Module

__all__ = ["PASSES", "Pass", "rewrite"]

Plan = Mapping[str, Decision]


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite: its name, the forms whose entries it is given, and what it does."""

    name: str
    forms: frozenset[Form]
    run: Callable[[Module, Plan], Module]


_RESIZABLE = frozenset((Form.PERSISTENT, Form.SLICED))

PASSES: tuple[Pass, ...] = (
    Pass("hidden-parameters", _RESIZABLE, pass_coordinates),
    Pass("exit-aware", frozenset((Form.PERSISTENT,)), pass_exit_aware),
    Pass("persistent", frozenset((Form.PERSISTENT,)), pass_persistent),
    Pass("sliced", frozenset((Form.SLICED,)), pass_sliced),
)
"""All passes, in the order in which they run."""


def rewrite(
    module: Module, plan: Plan, *, after: Callable[[str, Module], None] | None = None
) -> Module:
    """Bring every entry of ``plan`` into its form; other entries stay as they are.

    Args:
        module: a flat module; not changed.
        plan: the decision for each entry.
        after: called with each pass's name and result, to dump stages.

    Raises:
        KernelRejected: the plan holds a rejected entry.
    """
    for decision in plan.values():
        decision.require()
    for one in PASSES:
        share = {name: d for name, d in plan.items() if d.form in one.forms}
        if share:
            module = one.run(module, share)
            if after is not None:
                after(one.name, module)
    return module
