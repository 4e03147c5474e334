"""The pass manager: the table of all passes, and `rewrite`, which runs them in order.

A pass is a pure function from a module and a plan (the `Decision` of each entry) to a new module;
its input is not changed. It gets the entries of the plan that have one of its forms, and the site
table if it inserts fault reports. A new pass is one file and one row of the table.

The first passes insert safety checks (traps that report, bounds checks, kill polls) and calls for
``printf``, those in the middle bring each kernel into its form, and the last passes to the fault
reports what only the form knows: the control record and the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.analysis.name_checks import check_names
from gpud.compiler.forms.classifier import Decision, Form
from gpud.compiler.passes.forms.exit_aware import pass_exit_aware
from gpud.compiler.passes.forms.grid_sync import pass_grid_sync
from gpud.compiler.passes.forms.hidden_parameters import pass_coordinates
from gpud.compiler.passes.forms.persistent import pass_persistent
from gpud.compiler.passes.forms.sliced import pass_sliced
from gpud.compiler.passes.runtime.arena_variables import pass_arena_variables
from gpud.compiler.passes.runtime.fault_lowering import pass_fault_lowering
from gpud.compiler.passes.runtime.printf import pass_printf
from gpud.compiler.passes.safety.bounds_checks import pass_bounds_checks
from gpud.compiler.passes.safety.checking import pass_checking
from gpud.compiler.passes.safety.control_flow_integrity import pass_control_flow_integrity
from gpud.compiler.passes.safety.kill import pass_kill
from gpud.compiler.passes.safety.traps import pass_traps
from gpud.compiler.passes.variants import pass_variants
from gpud.compiler.ptx.model import Module

__all__ = ["PASSES", "Pass", "rewrite"]

Plan = Mapping[str, Decision]


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite.

    Attributes:
        name: its name, as dumps show it.
        forms: the forms of the entries that it gets.
        run: the function that rewrites a module; its third argument is the site table if it
            ``reports``.
        reports: whether it inserts fault reports.
        only: the option that enables it: ``"arena_variables"``, ``"check"``,
            ``"bounds_checks"``, ``"kill"``; None: it always runs.
    """

    name: str
    forms: frozenset[Form]
    run: Callable[..., Module]
    reports: bool = False
    only: str | None = None


_RESIZABLE = frozenset((Form.PERSISTENT, Form.SLICED))
_ALL = _RESIZABLE | {Form.WHOLE}

PASSES: tuple[Pass, ...] = (
    Pass("arena-variables", _ALL, pass_arena_variables, only="arena_variables"),
    Pass("checking", _ALL, pass_checking, reports=True, only="check"),
    Pass("traps", _ALL, pass_traps, reports=True),
    Pass("bounds-checks", _ALL, pass_bounds_checks, reports=True, only="bounds_checks"),
    Pass(
        "control-flow-integrity",
        _ALL,
        pass_control_flow_integrity,
        reports=True,
        only="bounds_checks",
    ),
    Pass("grid-sync", frozenset((Form.WHOLE,)), pass_grid_sync),
    Pass("variants", _ALL, pass_variants),
    Pass("kill", _ALL, pass_kill, only="kill"),
    Pass("printf", _ALL, pass_printf),
    Pass("hidden-parameters", _RESIZABLE, pass_coordinates),
    Pass("exit-aware", frozenset((Form.PERSISTENT,)), pass_exit_aware),
    Pass("persistent", frozenset((Form.PERSISTENT,)), pass_persistent),
    Pass("sliced", frozenset((Form.SLICED,)), pass_sliced),
    Pass("fault-lowering", _ALL, pass_fault_lowering),
)
"""All passes, in the order in which they run."""


def rewrite(
    module: Module,
    plan: Plan,
    *,
    sites: SiteTable | None = None,
    bounds_checks: bool = False,
    kill: bool = False,
    check: bool = False,
    arena_variables: bool = False,
    after: Callable[[str, Module], None] | None = None,
) -> Module:
    """Bring every entry of ``plan`` into its form; other entries stay as they are.

    Args:
        module: a flat module; not changed.
        plan: the decision for each entry.
        sites: the table to which the sites of all inserted fault reports are added.
        bounds_checks: insert a check before every memory access.
        kill: insert kill polls into killable variants
            (`gpud.compiler.abi.reserved_names.killable_variant`).
        check: announce accesses to the checking mode.
        arena_variables: have the program's variables lie in its session's arena.
        after: called with each pass's name and result, to dump stages.

    Raises:
        KernelRejected: the plan holds a rejected entry, or the module defines one of gpud's names.
    """
    for decision in plan.values():
        decision.require()
    if plan:
        check_names(call_graph(module))
    options = {
        "arena_variables": arena_variables,
        "bounds_checks": bounds_checks,
        "check": check,
        "kill": kill,
    }
    chosen = {None, *(name for name, wanted in options.items() if wanted)}
    sites = SiteTable(module) if sites is None else sites
    for one in PASSES:
        share = {name: d for name, d in plan.items() if d.form in one.forms}
        if share and one.only in chosen:
            module = one.run(module, share, *([sites] if one.reports else []))
            if after is not None:
                after(one.name, module)
    return module
