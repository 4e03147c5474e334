"""Exit-aware barriers, for persistent kernels whose threads may exit before others' barriers.

Problem: on hardware, barriers do not wait for threads that have exited. In persistent form a thread
that has finished its task block waits at the loop's head instead of exiting, so the other threads
would wait for it at their barrier forever.

Approach: every full-block barrier becomes a reducing barrier that also computes whether any thread
is still in the body. A thread in the body contributes true. A thread that has left it contributes
false to every barrier that the others reach, until the result is false: then all threads have left,
and that last reduction has served as the barrier at the loop's head.

Terms: a thread is *in the body* from the loop's head to its next exit from the task block.

Algorithm: ``bar.sync n`` becomes ``barrier.red.or.pred any, B, true`` and the head's barrier
``again: barrier.red.or.pred any, B, false; if any goto again``, with one number B for all of them.
All threads of a block run the same sequence of full-block barriers while they are in the body
(otherwise the original kernel would hang), so threads never wait at two barrier numbers at the same
time, and one number is enough. Functions that contain such barriers are copied, so that kernels in
other forms keep the original functions.

Properties:
* ``numbers``: afterwards all full-block barriers that the entry reaches have the loop's number;
* ``others stay``: counted and reducing barriers, and functions as other entries call them, are not
  changed;
* every thread of the block, in the body or not, arrives at every full-block barrier.

Source: docs/explanation/decisions.md, "What cannot loop is sliced, what cannot be sliced runs
whole"; PTX ISA 9.0, section 9.7.13.1 (``barrier.red``; reductions and plain barriers must not be
mixed on one number).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.analysis.barrier_ids import full_barrier_id
from gpud.compiler.analysis.call_graph import CallGraph, FunctionSummary
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import BARRIER, flags, is_call
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import CodeBuilder, call_of_copy, fresh_stem
from gpud.compiler.ptx.model import (
    Directive,
    Function,
    Instruction,
    Module,
    RegisterDeclaration,
    Statement,
    Variable,
    immediate,
)

__all__ = ["loop_head_barrier", "pass_exit_aware"]


def loop_head_barrier(code: CodeBuilder, number: int) -> None:
    """Append the barrier at the loop's head, which threads pass when all have left the body."""
    again = code.label("drain")
    anyone, left = code.register("anyone", "pred"), code.register("left", "pred")
    code("mov.pred", left, 0)
    code.place(again)
    code("barrier.red.or.pred", anyone, immediate(number), left)
    code("bra", again, when=anyone)


def pass_exit_aware(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Make the full-block barriers of the entries of ``plan`` exit-aware.

    Args:
        module: flat; not changed.
        plan: the decision for each entry; entries without ``exit_aware`` are not changed.
    """
    chosen = {name: decision for name, decision in plan.items() if decision.exit_aware}
    if not chosen:
        return module
    call_graph = call_graph_of(module)
    stem = fresh_stem(call_graph, "gpud_body")
    items: list[Function | Variable | Directive] = []
    copies: list[Function] = []
    for item in module.items:
        if isinstance(item, Function) and item.name in chosen and item.body is not None:
            rewriter = _Rewriter(call_graph, item.name, chosen[item.name], stem)
            made = rewriter.copies()
            copies += made
            items += [replace(copy, body=None, line=0) for copy in made]
            items.append(rewriter.rewrite(item))
        else:
            items.append(item)
    # At the end, where everything that they call has been declared.
    return replace(module, items=[*items, *copies])


class _Rewriter:
    """Rewrites one entry and copies of the functions with barriers that it can reach."""

    def __init__(self, call_graph: CallGraph, entry: str, decision: Decision, stem: str) -> None:
        assert decision.barrier is not None, "exit-aware barriers share the loop's number"
        self._call_graph = call_graph
        self._number = decision.barrier
        self._stem = stem
        self._copies = {
            uses.function.name: f"{stem}_{len(entry)}_{entry}_{uses.function.name}"
            for uses in call_graph.closure(entry)[1:]
            if self._reaches_barrier(uses)
        }

    def copies(self) -> list[Function]:
        """Return the copies, rewritten."""
        return [
            replace(self.rewrite(self._call_graph.functions[name]), name=copy, linkage=None)
            for name, copy in self._copies.items()
        ]

    def _reaches_barrier(self, uses: FunctionSummary) -> bool:
        return any(
            self._is_full(ins, inner)
            for inner in self._call_graph.closure(uses.function.name)
            for ins in inner.noted
        )

    def _is_full(self, ins: Instruction, uses: FunctionSummary) -> bool:
        if not flags(ins.opcode) & BARRIER:
            return False
        return full_barrier_id(self._call_graph.barrier(ins, uses)) is not None

    def rewrite(self, function: Function) -> Function:
        """Return ``function`` with exit-aware barriers; its calls go to the copies."""
        uses = self._call_graph.uses[function.name]
        code = CodeBuilder(self._stem)
        still, anyone = code.register("still", "pred"), code.register("anyone", "pred")
        declarations: list[Statement] = []
        code("mov.pred", still, 1)
        for statement in function.body or ():
            if isinstance(statement, Instruction):
                if self._is_full(statement, uses):
                    made = CodeBuilder(self._stem)
                    made("barrier.red.or.pred", anyone, immediate(self._number), still)
                    new = made.body[0]
                    assert isinstance(new, Instruction)
                    code.body.append(replace(new, guard=statement.guard, line=statement.line))
                    continue
                if is_call(statement):
                    code.body.append(call_of_copy(statement, self._copies))
                    continue
            elif isinstance(statement, (Variable, RegisterDeclaration)):
                declarations.append(statement)
                continue
            code.body.append(statement)
        return replace(function, body=[*declarations, *code.declarations, *code.body])
