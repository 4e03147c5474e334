"""The kill pass: inserts kill polls into the killable variants of kernels.

Problem: an endless kernel must end when its job is cancelled or times out, without ending the
context in which other clients' kernels run. Kernels that need not be ended that way should not pay
for it.

Approach: kernels with loops have a killable variant
(`gpud.compiler.abi.reserved_names.killable_variant`), in which every cycle polls the job's kill
flag (`gpud.compiler.instrumentation.kill_polls`) and leaves if it is set. Functions that the
variant calls and that contain cycles, or call some that do, are copied for it.

Algorithm: polls stand at the end of every basic block with a retreating edge
(`gpud.compiler.analysis.cycles`), and at the start of recursive functions. A loop with a small
constant trip count (`gpud.compiler.analysis.trip_count`) counts as straight-line code, unless the
function is long (`gpud.compiler.analysis.work`); then polls also stand before what is costly.

Properties:
* ``every_cycle``: a thread of a killable entry passes a poll in every iteration of every cycle of
  its control flow, natural loop or not, in the entry and in all functions that it reaches by direct
  calls, except loops of bounds checks, and those with a small constant trip count in functions
  that are not long;
* ``work``: between two polls it does no more than `gpud.compiler.analysis.work` bounds;
* ``others stay``: other entries, and functions as other entries call them, are not changed;
* functions called through pointers have no polls; their callers do, if they call them in a cycle.

Source: docs/explanation/decisions.md, "Loops poll a kill flag".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache

from gpud.compiler.abi.reserved_names import is_killable, killable_variant
from gpud.compiler.analysis.bodies import ends_in_terminator
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary, summarize
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.cycles import has_cycle, recursive, retreating_edges
from gpud.compiler.analysis.effects import TERMINATOR, flags
from gpud.compiler.analysis.trip_count import bounded_loops
from gpud.compiler.analysis.work import Work
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.instrumentation.bounds_checks.emitter import is_of_a_check
from gpud.compiler.instrumentation.kill_polls import declarations, emit, leave, with_job
from gpud.compiler.passes.builder import call_of_copy
from gpud.compiler.ptx.model import (
    Directive,
    Function,
    Instruction,
    Module,
    RegisterDeclaration,
    Statement,
    Variable,
    opcode,
)

__all__ = ["may_run_long", "pass_kill"]


def may_run_long(call_graph: CallGraph, entries: Iterable[str]) -> frozenset[str]:
    """Return those of ``entries`` that need polls, or directly call a function that does."""
    cycles = _Cycles(call_graph)
    return frozenset(entry for entry in entries if cycles.within(entry))


def pass_kill(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Insert polls into the killable variants among the entries of ``plan``.

    Args:
        module: flat; not changed.
        plan: the decision for each entry; other entries than killable variants are not changed.
    """
    chosen = [name for name in plan if is_killable(name)]
    if not chosen:
        return module
    call_graph = call_graph_of(module)
    cycles = _Cycles(call_graph)
    copies: dict[str, str] = {}
    for entry in chosen:
        for name in cycles.within(entry):
            if call_graph.functions[name].kind == "func":
                copies.setdefault(name, killable_variant(name))
    writer = _Writer(call_graph, cycles, copies)
    items: list[Function | Variable | Directive] = []
    made = [
        replace(writer.rewrite(call_graph.functions[name]), name=copy, linkage=None)
        for name, copy in copies.items()
    ]
    declared = False
    for item in module.items:
        if isinstance(item, Function) and item.name in chosen and item.body is not None:
            if not declared:
                items += [replace(copy, body=None, line=0) for copy in made]
                declared = True
            items.append(writer.rewrite(item))
        else:
            items.append(item)
    # At the end, where everything that they call has been declared.
    return replace(module, items=[*items, *made])


class _Cycles:
    """Which functions of a module have cycles, computed on demand."""

    def __init__(self, call_graph: CallGraph) -> None:
        self._call_graph = call_graph
        self._known: dict[str, bool] = {}
        self.recursive = recursive(call_graph)
        self._work = Work(call_graph)

    def has(self, name: str) -> bool:
        """Return whether the function itself needs polls."""
        known = self._known.get(name)
        if known is None:
            known = (
                name in self.recursive
                or (has_cycle(self._call_graph, name) and bool(self.poll_blocks(name)))
                or bool(self.costly(name))
            )
            self._known[name] = known
        return known

    def poll_blocks(self, name: str) -> list[int]:
        """Return the basic blocks of a function at whose ends polls stand."""
        flow = self._call_graph.flow(name)
        edges = retreating_edges(flow)
        simple = len(edges) == len(flow.back_edges) and not self._work.is_long(name)
        soon = bounded_loops(flow) if simple else ()
        return list(
            dict.fromkeys(
                source
                for source, target in edges
                if (source, target) not in soon
                # A check's own loops are short, and known by their code, which polls would change.
                and not any(map(is_of_a_check, flow.blocks[target].labels))
            )
        )

    def costly(self, name: str) -> list[int]:
        """Return the positions of the instructions of a function before which polls stand."""
        if not self._work.is_long(name):
            return []
        return [
            place.position
            for block in self._call_graph.flow(name).blocks
            for place in block.places
            if self._work.is_costly(place.instruction)
        ]

    def within(self, entry: str) -> list[str]:
        """Return the functions, reached by direct calls of ``entry``, that need or reach polls."""
        order = [entry]
        reached = {entry}
        for name in order:  # grows during the iteration
            for target in self._call_graph.uses[name].calls:
                if target in self._call_graph.uses and target not in reached:
                    reached.add(target)
                    order.append(target)
        functions = {name for name in order if self.has(name)}
        changed = True
        while changed:
            changed = False
            for name in order:
                if name not in functions and functions.intersection(
                    self._call_graph.uses[name].calls
                ):
                    functions.add(name)
                    changed = True
        return [name for name in order if name in functions]


@cache
def _uses_of_polls() -> FunctionSummary:
    """Return what any number of polls use."""
    return summarize([*emit(0), *leave()])


class _Writer:
    """Rewrites entries and functions that need polls, or call functions that do."""

    def __init__(self, call_graph: CallGraph, cycles: _Cycles, copies: Mapping[str, str]) -> None:
        self._call_graph = call_graph
        self._cycles = cycles
        self._copies = copies

    def rewrite(self, function: Function) -> Function:
        """Return ``function`` with polls; its calls go to the copies."""
        places = self._places(function)
        head: list[Statement] = []
        body: list[Statement] = []
        polls = 0
        for position, statement in enumerate(function.body or ()):
            if position in places:
                body += emit(polls)
                polls += 1
            kind = type(statement)
            if kind is Variable or kind is RegisterDeclaration:
                head.append(statement)
            elif type(statement) is Instruction and statement.opcode.base == "call":
                body.append(call_of_copy(statement, self._copies))
            else:
                body.append(statement)
        if len(function.body or ()) in places:
            body += emit(polls)
            polls += 1
        if not polls:
            return replace(function, body=[*head, *body])
        if not ends_in_terminator(body):
            body.append(Instruction(opcode("ret")))
        body = with_job([*declarations(polls), *head, *body, *leave()])
        polled = replace(function, body=body)
        if self._copies:  # it calls others than before
            return polled
        return self._call_graph.extend(function, polled, _uses_of_polls())

    def _places(self, function: Function) -> frozenset[int]:
        """Return the positions in the body before which polls stand."""
        if not self._cycles.has(function.name):
            return frozenset()
        places: dict[int, None] = {}
        if function.name in self._cycles.recursive:
            code = (RegisterDeclaration, Variable)
            body = function.body or []
            places[next((n for n, s in enumerate(body) if not isinstance(s, code)), len(body))] = (
                None
            )
        flow = self._call_graph.flow(function.name)
        for source in self._cycles.poll_blocks(function.name):
            block = flow.blocks[source]
            ends = block.last is not None and flags(block.last.opcode) & TERMINATOR
            places[block.places[-1].position if ends else block.stop] = None
        places |= dict.fromkeys(self._cycles.costly(function.name))
        return frozenset(places)
