"""Classifies kernels by form, that is by how they can be resized while they run, with reasons.

Problem: most kernels can loop over task blocks; some cannot, because of single instructions. A
wrong choice means a hang or wrong results, so a form is used only where it is shown to be safe.

Approach: a table of rules (`gpud.compiler.forms.rules`). Each rule looks for one reason against a
form; the kernel gets the least restricted form that no rule excludes.

Terms, from least to most restricted:

* *persistent*: blocks loop over task blocks; resized at the next task block. With *exit-aware*
  barriers if threads can leave before a full-block barrier that others still reach;
* *sliced*: launched as sub-grids; resized between them;
* *whole*: launched unchanged; not resizable;
* *rejected*: gpud cannot run it.

The persistent form may be legal for some block shapes only (`Decision.shape`): rows of whole warps,
for instance, if ``threadIdx.x < 32`` decides which threads take part in a shuffle. Other blocks are
launched in sliced form (`gpud.compiler.program.KernelInfo.form_for`).

Properties:
* every decision has a reason; a reason that lies in one instruction names it and its line;
* sliced is legal wherever persistent is, whole wherever either is;
* a forced form that is not legal is refused, never silently replaced;
* equal modules give equal decisions.

Source: docs/explanation/forms.md; PTX ISA 9.0, section 9.7.13.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpud.compiler.analysis.barrier_divergence import SyncKind
from gpud.compiler.analysis.block_shape import ShapeRule
from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.forms.form import Form, Reason
from gpud.compiler.forms.rules import RULES, Case, reason, tensor_core_uses
from gpud.compiler.ptx.model import Module
from gpud.errors import KernelNotFound, KernelRejected

__all__ = ["Decision", "Form", "Reason", "check_target", "classify"]

_ORDER = (Form.PERSISTENT, Form.SLICED, Form.WHOLE, Form.REJECTED)


@dataclass(frozen=True, slots=True)
class Decision:
    """The form of one kernel, and what passes and launches need to know about it.

    Attributes:
        entry: the kernel's name in the PTX.
        form: its form; if persistent, launches of block shapes outside ``shape`` are sliced.
        exit_aware: whether the persistent form has exit-aware barriers.
        why: the reasons, the decisive ones first.
        capabilities: device features beyond the usual that it needs: code ``tensor-core``.
        waits_on_blocks: whether its blocks wait for others, so that they claim one task block at a
            time, none in advance.
        shape: block shapes for which the persistent form is legal.
        barrier: the barrier number of the persistent loop, else ``None``.
        legal: the forms that may be forced, least restricted first.
    """

    entry: str
    form: Form
    exit_aware: bool
    why: tuple[Reason, ...]
    capabilities: tuple[Reason, ...]
    waits_on_blocks: bool
    shape: ShapeRule
    barrier: int | None
    legal: tuple[Form, ...]

    def require(self) -> None:
        """Check that the kernel can run.

        Raises:
            KernelRejected: it cannot; with the reason, the instruction and its line.
        """
        if self.form is Form.REJECTED:
            first = self.why[0]
            message = f"{self.entry} {first.text}"
            raise KernelRejected(first.code, message, first.instruction, first.line)


def classify(
    module: Module, entry: str, *, force: Form | None = None, progress: str | None = None
) -> Decision:
    """Decide the form of a kernel.

    Args:
        module: a flat module.
        entry: the kernel's name.
        force: use this form if it is legal.
        progress: what the program says of its blocks, one of `gpud.compiler.forms.rules.PROGRESS`.

    Raises:
        KernelNotFound: the module defines no such kernel.
        KernelRejected: ``force`` is not legal; reason code ``form-not-legal``.
    """
    if entry not in module.entries():
        raise KernelNotFound(entry, tuple(module.entries()))
    decision = _decide(Case(call_graph(module), entry, progress))
    return decision if force is None or force is decision.form else _forced(decision, force)


def check_target(module: Module, sm: int) -> None:
    """Check that a device of compute capability ``sm`` (75 for 7.5) can run ``module``.

    Raises:
        KernelRejected: reason code ``target-too-new``.
    """
    for target in module.target:
        match = re.fullmatch(r"(?:sm|compute)_(\d+)([af]?)", target)
        if match is None:
            continue
        wanted, suffix = int(match[1]), match[2]
        fits = wanted <= sm
        if suffix == "a":  # architecture-specific features: that architecture only
            fits = wanted == sm
        elif suffix == "f":  # family-specific features: the same major version
            fits = wanted <= sm and wanted // 10 == sm // 10
        if not fits:
            message = f"the program is written for {target}, the device is sm_{sm}"
            raise KernelRejected("target-too-new", message)


# -- helpers -----------------------------------------------------------------------------------


def _decide(case: Case) -> Decision:
    form = Form.PERSISTENT
    reasons: list[tuple[Form, Reason]] = []
    for restricted, rule in RULES:
        # The barriers of kernels that are rejected or whole already need no analysis.
        if form in (Form.REJECTED, Form.WHOLE) and restricted is not form:
            break
        violation = rule(case)
        if violation is not None:
            reasons.append((restricted, violation))
            if _ORDER.index(restricted) > _ORDER.index(form):
                form = restricted
    why = tuple(violation for restricted, violation in reasons if restricted is form)
    persistent = form is Form.PERSISTENT
    if persistent:
        why = (_why_persistent(case),)
    waits = form is not Form.REJECTED and bool(case.spin_loops)
    if waits and form is not Form.WHOLE:
        text = (
            "waits in a loop for other blocks, so claims are of one task block, none in advance; "
            "if it waits for later ones, say progress='blocks'"
        )
        why += (reason("waits-on-blocks", text, case.spin_loops[0].read),)
    shape = case.hazards.shape if persistent else ShapeRule.ANY
    if shape:
        rows = "rows of whole warps" + ("" if shape & ShapeRule.WHOLE else ", or a single row")
        why += (reason("block-shape", f"needs blocks of {rows}: sliced for others"),)
    capability = tensor_core_uses(case)
    return Decision(
        entry=case.entry,
        form=form,
        exit_aware=persistent and case.needs_exit_aware,
        why=why,
        capabilities=() if capability is None else (capability,),
        waits_on_blocks=waits,
        shape=shape,
        barrier=case.barrier if persistent else None,
        legal=() if form is Form.REJECTED else _ORDER[_ORDER.index(form) : 3],
    )


def _why_persistent(case: Case) -> Reason:
    hazard = case.hazards.first(SyncKind.FULL_BARRIER)
    if hazard is not None:
        text = "threads can leave before a barrier that others reach, so barriers are exit-aware"
        return reason("exit-aware", text, hazard.instruction)
    return reason("persistent", "no thread can leave before a barrier or collective of others")


def _forced(decision: Decision, form: Form) -> Decision:
    decision.require()
    if form not in decision.legal:
        first = decision.why[0]
        message = f"{decision.entry} cannot run in {form} form: it {first.text}"
        raise KernelRejected("form-not-legal", message, first.instruction, first.line)
    return replace(
        decision,
        form=form,
        exit_aware=False,
        why=(reason("forced", f"{form} form was asked for"), *decision.why),
        shape=ShapeRule.ANY,
        barrier=None,
    )
