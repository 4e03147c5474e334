"""The fault-lowering pass: completes fault reports and kill polls with what the form knows.

Problem: a bounds check, a trap or a kill poll knows the fault and its site; to record it takes the
address of the control words, the number of the task block and the loop's slots, which depend on the
entry's form. Passing them must cost code without faults nothing.

Approach: this is the last pass. It adds the context to the calls of the three functions of
`gpud.compiler.passes.runtime.fault_functions`, passes the context as hidden parameters to functions
(``.func``) with such calls, and adds the functions themselves. Functions that only need the address
of the job record get ``ctl``.

Terms: the *context* is the control words' address (``ctl``), the running task block's number
(``claim``) and an address in the loop's slots (``slots``); `NOTHING` stands for an absent one.

Algorithm. ``call gpud_fault, (kind, site, address)`` becomes ``call gpud_fault, (ctl, claim, slots,
kind, site, address)``, the other two likewise, and the calls of each function are merged
(`gpud.compiler.instrumentation.fault_reports`). ``ctl`` is loaded from its parameter at the start
of the function: in an entry that is a constant, which takes no register until it is used. In
persistent form ``claim`` and ``slots`` are the loop's own registers; otherwise both are `NOTHING`,
and the called function computes the number. In a function that declares `JOB_REGISTER` (for kill
polls, ``printf`` or ``grid.sync()``), that register is set to the address of the job record.

Properties:
* only functions that have such calls, or call functions that do, are changed;
* an entry in form whole gets the hidden parameter, which entries in other forms already have;
* a module without such calls, all of whose entries have the parameter, is returned as the same
  object;
* the instructions between the calls are not changed.

Source: docs/explanation/decisions.md, "A fault ends one block, not the context".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi import control_words as words
from gpud.compiler.abi.reserved_names import LEAVE, NORETURN
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.data_layout import layout_bytes
from gpud.compiler.forms.classifier import Decision, Form
from gpud.compiler.forms.rules import PARAMETER_BYTES
from gpud.compiler.instrumentation.fault_reports import CONTEXT, merge_tails
from gpud.compiler.instrumentation.kill_polls import JOB_REGISTER, has_job
from gpud.compiler.passes.builder import (
    CodeBuilder,
    fresh_stem,
    map_functions,
    split_declarations,
)
from gpud.compiler.passes.forms.hidden_parameters import HiddenParameters, propagate_needs
from gpud.compiler.passes.forms.persistent import claim_and_slot
from gpud.compiler.passes.runtime.fault_functions import VERSION, fault_functions
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Module,
    Operand,
    Parameter,
    Register,
    Statement,
    Symbol,
    immediate,
)

__all__ = ["pass_fault_lowering"]

_CONTROL = "gpud_control"
_LARGE_PARAMETERS = (8, 1)  # more than `PARAMETER_BYTES` are allowed from PTX 8.1 on


def pass_fault_lowering(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Complete the fault reports in a module whose entries are in their forms.

    Args:
        module: flat; entries of ``plan`` in persistent and sliced form have their hidden parameter.
            Not changed.
        plan: the decision for each entry that the passes have rewritten.
    """
    module = _with_control(module, plan)
    call_graph = call_graph_of(module)
    own: dict[str, tuple[str, ...]] = {}
    for name, uses in call_graph.uses.items():
        if _reports(uses.function, call_graph):
            own[name] = CONTEXT
        elif has_job(uses.function.body or ()):
            own[name] = CONTEXT[:1]
    if not own:
        return module
    writer = _Context(fresh_stem(call_graph, "gpud_context"), call_graph, own, plan)
    changed = map_functions(module, writer.rewrite)
    called = {name for uses in call_graph.uses.values() for name in uses.calls}
    return _with_functions(replace(changed, version=max(changed.version, VERSION)), called)


class _Context(HiddenParameters):
    """Passes the context as hidden parameters, and adds it to calls."""

    def __init__(
        self,
        stem: str,
        call_graph: CallGraph,
        own: Mapping[str, tuple[str, ...]],
        plan: Mapping[str, Decision],
    ) -> None:
        super().__init__(stem, call_graph, propagate_needs(call_graph, own, CONTEXT), wide=("ctl",))
        self._own = own
        self._plan = plan

    def is_concerned(self, function: Function) -> bool:
        return function.name in self._own

    def offered(self, function: Function, code: CodeBuilder) -> dict[str, Operand]:
        nothing = immediate(words.NOTHING)
        values: dict[str, Operand] = dict.fromkeys(CONTEXT, nothing)
        decision = self._plan.get(function.name)
        if decision is None or function.kind != "entry":
            return {**values, "ctl": immediate(0)}  # a function's are its parameters
        control = Symbol(function.parameters[-1].name)
        values["ctl"] = ctl = code.register("ctl", "b64")
        code("ld.param.u64", ctl, Address(control))
        if decision.form is Form.PERSISTENT:
            values["claim"], values["slots"] = claim_and_slot(function)
        return values

    def changed(self, function: Function, here: Mapping[str, Operand]) -> list[Statement]:
        body = merge_tails(function.body or (), tuple(here[key] for key in CONTEXT))
        if has_job(body):
            code = CodeBuilder(self._stem)
            ctl = here["ctl"]
            if not isinstance(ctl, Register):
                ctl = code.register("ctl", "b64")
                code("mov.u64", ctl, here["ctl"])
            code("ld.global.nc.u64", JOB_REGISTER, Address(ctl, words.JOB))
            declarations, rest = split_declarations(body)
            body = [*code.declarations, *declarations, *code.body, *rest]
        return body


# -- helpers -----------------------------------------------------------------------------------


def _reports(function: Function, call_graph: CallGraph) -> bool:
    return any(name in NORETURN for name in call_graph.uses[function.name].calls)


def _with_control(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Return ``module`` with the hidden parameter added to entries in form whole."""
    large = False

    def change(function: Function) -> Function:
        nonlocal large
        decision = plan.get(function.name)
        if decision is None or decision.form is not Form.WHOLE or function.kind != "entry":
            return function
        taken = {parameter.name for parameter in function.parameters}
        name = _CONTROL
        while name in taken:
            name += "_"
        parameters = (*function.parameters, Parameter("u64", name))
        large = large or layout_bytes(parameters) > PARAMETER_BYTES
        return replace(function, parameters=parameters)

    changed = map_functions(module, change)
    if large and changed.version < _LARGE_PARAMETERS:
        changed = replace(changed, version=_LARGE_PARAMETERS)
    return changed


def _with_functions(module: Module, called: set[str]) -> Module:
    """Return ``module`` with the reporting functions that are ``called``, before all others."""
    first = next(n for n, item in enumerate(module.items) if isinstance(item, Function))
    if not called.isdisjoint(NORETURN):
        called.add(LEAVE)  # the others call it
    added = [replace(f) for name, f in fault_functions().items() if name in called]
    return replace(module, items=[*module.items[:first], *added, *module.items[first:]])
