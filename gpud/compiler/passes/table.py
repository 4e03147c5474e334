"""All rewrites of PTX programs, one file a pass, in the order of `PASSES`.

A pass is a pure function from a module and a plan (the `Decision` of each entry) to a new module;
its input is not changed. It is given the part of the plan whose forms it applies to, and the table
of sites if it plants reports of faults. A new pass is one file and one row of the table.

The first passes plant what watches over a kernel (traps that tell, fences, kill polls) and what
writes down its output, those in the middle bring it into its form, and the last gives what was
planted what the form knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpud.compiler.forms import Decision, Form
from gpud.compiler.names import check_names
from gpud.compiler.passes.exit_aware import pass_exit_aware
from gpud.compiler.passes.faults import pass_faults
from gpud.compiler.passes.fence import pass_fence
from gpud.compiler.passes.grid_sync import pass_grid_sync
from gpud.compiler.passes.hidden_parameters import pass_coordinates
from gpud.compiler.passes.kill import pass_kill
from gpud.compiler.passes.output import pass_output
from gpud.compiler.passes.persistent import pass_persistent
from gpud.compiler.passes.sliced import pass_sliced
from gpud.compiler.passes.targets import pass_targets
from gpud.compiler.passes.traps import pass_traps
from gpud.compiler.passes.twins import pass_twins
from gpud.compiler.ptx.model import Module
from gpud.compiler.sites import SiteTable

__all__ = ["PASSES", "Pass", "rewrite"]

Plan = Mapping[str, Decision]


@dataclass(frozen=True, slots=True)
class Pass:
    """One rewrite.

    Attributes:
        name: its name.
        forms: the forms whose entries it is given.
        run: what it does; with the sites as third argument if it ``reports``.
        reports: it plants reports of faults.
        only: the option without which it does not run: ``"fence"``, ``"kill"`` or none.
    """

    name: str
    forms: frozenset[Form]
    run: Callable[..., Module]
    reports: bool = False
    only: str | None = None


_RESIZABLE = frozenset((Form.PERSISTENT, Form.SLICED))
_ALL = _RESIZABLE | {Form.WHOLE}

PASSES: tuple[Pass, ...] = (
    Pass("traps", _ALL, pass_traps, reports=True),
    Pass("fence", _ALL, pass_fence, reports=True, only="fence"),
    Pass("targets", _ALL, pass_targets, reports=True, only="fence"),
    Pass("grid-sync", frozenset((Form.WHOLE,)), pass_grid_sync),
    Pass("twins", _ALL, pass_twins),
    Pass("kill", _ALL, pass_kill, only="kill"),
    Pass("output", _ALL, pass_output),
    Pass("hidden-parameters", _RESIZABLE, pass_coordinates),
    Pass("exit-aware", frozenset((Form.PERSISTENT,)), pass_exit_aware),
    Pass("persistent", frozenset((Form.PERSISTENT,)), pass_persistent),
    Pass("sliced", frozenset((Form.SLICED,)), pass_sliced),
    Pass("faults", _ALL, pass_faults),
)
"""All passes, in the order in which they run."""


def rewrite(
    module: Module,
    plan: Plan,
    *,
    sites: SiteTable | None = None,
    fence: bool = False,
    kill: bool = False,
    after: Callable[[str, Module], None] | None = None,
) -> Module:
    """Bring every entry of ``plan`` into its form; other entries stay as they are.

    Args:
        module: a flat module; not changed.
        plan: the decision for each entry.
        sites: gets the sites of all reports of faults that the passes plant.
        fence: plant a check in front of every access to memory.
        kill: plant kill polls in killable twins (`gpud.compiler.names.killable_of`).
        after: called with each pass's name and result, to dump stages.

    Raises:
        KernelRejected: the plan holds a rejected entry, or the module defines a name of gpud's.
    """
    for decision in plan.values():
        decision.require()
    if plan:
        check_names(module)
    chosen = {None} | ({"fence"} if fence else set()) | ({"kill"} if kill else set())
    sites = SiteTable(module) if sites is None else sites
    for one in PASSES:
        share = {name: d for name, d in plan.items() if d.form in one.forms}
        if share and one.only in chosen:
            module = one.run(module, share, *([sites] if one.reports else []))
            if after is not None:
                after(one.name, module)
    return module
