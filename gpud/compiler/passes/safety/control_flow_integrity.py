"""Control-flow integrity: indirect jumps and calls only reach targets that the program names.

Problem: ``brx.idx`` with an index outside its table, and a call through a pointer that is not a
function's, can jump anywhere: past every check, with other users' memory in reach.

Approach: before every ``brx.idx`` its index is compared with the length of its table, before every
indirect call its pointer with the functions that it may call; a mismatch is recorded as a fault,
and ends the block. Both checks are plain PTX, the same on every device: see
`gpud.compiler.instrumentation.target_checks`.

Terms: an indirect call *may call* the functions of its ``.calltargets``, or else those whose
address the program takes, if they have the signature of its prototype.

Functions with which a check compares are declared before all functions.

Properties:
* ``guards``: a thread that does not execute the jump or call is not checked;
* ``exact``: with a legal index or pointer nothing changes; with any other the instruction is not
  reached, and the fault names it;
* a module without indirect jumps and calls is returned as the same object.

Source: docs/explanation/decisions.md, "A fault ends one block, not the context";
PTX ISA 9.0, section 9.7.13 (``brx.idx``, ``call``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.analysis.bodies import ends_in_terminator
from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.analysis.signatures import IndirectCalls
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.instrumentation import target_checks
from gpud.compiler.passes.builder import map_functions
from gpud.compiler.ptx.model import (
    BranchTargets,
    Function,
    Instruction,
    Module,
    Operand,
    Register,
    Statement,
    Symbol,
    opcode,
)

__all__ = ["pass_control_flow_integrity"]


def pass_control_flow_integrity(
    module: Module, plan: Mapping[str, Decision], sites: SiteTable
) -> Module:
    """Insert checks of the indirect jumps and calls that the entries of ``plan`` can reach.

    Args:
        module: flat, calls without hidden parameters; not changed.
        plan: the entries that will run.
        sites: the table to which the site of each check is added.
    """
    call_graph = call_graph_of(module)
    concerned = {
        uses.function.name
        for uses in call_graph.closure(*plan)
        if "brx" in uses.bases or uses.indirect is not None
    }
    if not concerned:
        return module
    named: dict[str, None] = {}

    def change(function: Function) -> Function:
        if function.name not in concerned or function.body is None:
            return function
        return _Rewriter(function, call_graph, sites, named).rewritten()

    return _declared(map_functions(module, change), call_graph, named)


class _Rewriter:
    """Rewrites one function; adds to ``named`` the functions with which its checks compare."""

    def __init__(
        self, function: Function, call_graph: CallGraph, sites: SiteTable, named: dict[str, None]
    ) -> None:
        self._function = function
        self._call_graph = call_graph
        self._sites = sites
        self._named = named
        self._body: list[Statement] = []
        self._cold: list[Statement] = []
        body = function.body or []
        self._tables = {one.name: len(one.targets) for one in body if type(one) is BranchTargets}
        self._calls = IndirectCalls(body)
        self._count = 0

    def rewritten(self) -> Function:
        """Return the function with its checks."""
        for statement in self._function.body or ():
            if isinstance(statement, Instruction):
                if statement.opcode.base == "brx":
                    index, table = statement.operands[0], statement.operands[-1]
                    assert isinstance(table, Symbol)
                    self._check(statement, index, length=self._tables[table.name])
                elif is_call(statement):
                    pointer = callee(statement)
                    if isinstance(pointer, Register):
                        graph = self._call_graph
                        legal = self._calls.candidates(statement, graph.functions, graph.addressed)
                        self._check(statement, pointer, tuple(legal))
            self._body.append(statement)
        if not ends_in_terminator(self._body):
            self._body.append(Instruction(opcode("ret")))
        body = [*target_checks.declarations(), *self._body, *self._cold]
        return replace(self._function, body=body)

    def _check(
        self,
        ins: Instruction,
        value: Operand,
        functions: tuple[str, ...] = (),
        length: int | None = None,
    ) -> None:
        """Append the check that branches to the cold part if ``ins`` has no legal target."""
        self._named.update(dict.fromkeys(functions))
        self._count += 1
        site = self._sites.add(self._function.name, ins)
        check = target_checks.TargetCheck(self._count, value, site, functions, length, ins.guard)
        hot, cold = target_checks.emit(check, ins.line)
        self._body += hot
        self._cold += cold


def _declared(module: Module, call_graph: CallGraph, named: Mapping[str, None]) -> Module:
    """Return ``module`` with a declaration of each of ``named`` before all functions."""
    if not named:
        return module
    first = next(n for n, item in enumerate(module.items) if isinstance(item, Function))
    declared = [replace(call_graph.functions[name], body=None) for name in named]
    return replace(module, items=[*module.items[:first], *declared, *module.items[first:]])
