"""Fences for control flow: no jump or call goes where the program does not name a target.

Problem: ``brx.idx`` with an index outside its table, and a call through a pointer that is no
function's, go anywhere at all: behind every check, with other users' memory in reach.

Approach: in front of every ``brx.idx`` its index is compared with the length of its table, in front
of every indirect call its pointer with the functions that it may mean; what fits none is recorded,
and ends the block. Both are plain PTX, the same on every device.

Terms: an indirect call *may mean* the functions of its ``.calltargets``, or else those whose
address the program takes, as far as they have as many parameters and results as the call.

Algorithm::

    brx.idx i, table        ->  setp.ge.u32 bad, i, length;      @bad bra cold;  brx.idx i, table
    call (r), p, (a), proto ->  mov t, f1; setp.ne bad, p, t;
                                mov t, f2; setp.ne.and bad, p, t, bad; ...
                                @bad bra cold;                   call (r), p, (a), proto
    cold, at the end:           call gpud_fault, (TARGET, site, index or pointer); trap

Functions that follow code that compares with them are declared before it.

Properties:
* ``guards``: a thread that does not jump or call is not checked;
* ``exact``: with a legal index or pointer nothing changes, with any other the instruction is not
  reached, and the fault names it;
* a module without either comes out as the same object.

Source: design, section 4.3; PTX ISA 9.0, section 9.7.13 (``brx.idx``, ``call``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.analysis.survey import Survey
from gpud.compiler.analysis.survey import survey as survey_of
from gpud.compiler.control_words import FaultKind
from gpud.compiler.forms import Decision
from gpud.compiler.names import FAULT
from gpud.compiler.passes.build import Code, change_functions, fresh_stem, immediate
from gpud.compiler.ptx.model import (
    BranchTargets,
    CallTargets,
    Function,
    Instruction,
    Module,
    Not,
    Operand,
    Register,
    Statement,
    Symbol,
    Tuple,
    opcode,
)
from gpud.compiler.reports import ends
from gpud.compiler.sites import SiteTable

__all__ = ["pass_targets"]


def pass_targets(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """Check the indirect jumps and calls of all that the entries of ``plan`` can reach.

    Args:
        module: flat, calls without hidden parameters; not changed.
        plan: the entries that will run.
        sites: gets a site for each.
    """
    survey = survey_of(module)
    concerned = {
        uses.function.name
        for uses in survey.closure(*plan)
        if "brx" in uses.bases or uses.indirect is not None
    }
    if not concerned:
        return module
    stem = fresh_stem(module, "gpud_target")
    named: dict[str, None] = {}

    def change(function: Function) -> Function:
        if function.name not in concerned or function.body is None:
            return function
        return _Checked(function, survey, sites, stem, named).rewritten()

    return _declared(change_functions(module, change), survey, named)


class _Checked:
    """Rewrites one function; ``named`` gets the functions that it compares with."""

    def __init__(
        self,
        function: Function,
        survey: Survey,
        sites: SiteTable,
        stem: str,
        named: dict[str, None],
    ) -> None:
        self._function = function
        self._survey = survey
        self._sites = sites
        self._named = named
        self._code = Code(stem)
        self._cold = Code(stem)
        body = function.body or []
        self._tables = {one.name: len(one.targets) for one in body if type(one) is BranchTargets}
        self._listed = {one.name: one.targets for one in body if type(one) is CallTargets}
        self._count = 0

    def rewritten(self) -> Function:
        """The function with its checks."""
        code = self._code
        for statement in self._function.body or ():
            if isinstance(statement, Instruction):
                if statement.opcode.base == "brx":
                    self._jump(statement)
                elif is_call(statement) and isinstance(callee(statement), Register):
                    self._call(statement)
            code.body.append(statement)
        if not ends(code.body):
            code("ret")
        body: list[Statement] = [*code.declarations, *code.body, *self._cold.body]
        return replace(self._function, body=body)

    def _jump(self, ins: Instruction) -> None:
        index, table = ins.operands[0], ins.operands[-1]
        assert isinstance(table, Symbol)
        wide = self._code.register("value", "b64")
        self._code("cvt.u64.u32", wide, index)
        self._check(ins, index, "u32", [immediate(self._tables[table.name])], "ge", wide)

    def _call(self, ins: Instruction) -> None:
        pointer = callee(ins)
        assert isinstance(pointer, Register)
        names = self._callees(ins)
        self._named.update(dict.fromkeys(names))
        self._check(ins, pointer, "u64", [Symbol(name) for name in names], "ne", pointer)

    def _check(
        self,
        ins: Instruction,
        value: Operand,
        kind: str,
        others: list[Operand],
        relation: str,
        reported: Register,
    ) -> None:
        """Leave for the cold part if ``value`` has ``relation`` to all of ``others``."""
        code = self._code
        bad = code.register("bad", "pred")
        held: Operand | None = None
        if ins.guard is not None:
            held = Not(ins.guard.register) if ins.guard.negated else ins.guard.register
        if not others:
            others = [value]
            relation = "eq"
        for other in others:
            if isinstance(other, Symbol):
                code("mov.u64", code.register("function", "b64"), other)
                other = code.register("function", "b64")  # noqa: PLW2901
            combined = "" if held is None else ".and"
            rest = () if held is None else (held,)
            code(f"setp.{relation}{combined}.{kind}", bad, value, other, *rest)
            held = bad
        self._count += 1
        label = code.label(f"miss_{self._count}")
        code("bra", label, when=bad)
        cold = self._cold
        cold.place(label)
        site = self._sites.add(self._function.name, ins)
        arguments = Tuple((immediate(FaultKind.TARGET), immediate(site), reported))
        cold.body.append(Instruction(opcode("call"), (Symbol(FAULT), arguments), None, ins.line))
        cold.body.append(Instruction(opcode("trap"), (), None, ins.line))

    def _callees(self, ins: Instruction) -> list[str]:
        last = ins.operands[-1]
        listed = self._listed.get(last.name) if isinstance(last, Symbol) else None
        tuples = [one for one in ins.operands if isinstance(one, Tuple)]
        results = ins.operands[0].items if isinstance(ins.operands[0], Tuple) else ()
        arguments = tuples[-1].items if len(tuples) > bool(results) else ()
        found = self._survey.functions
        return [
            name
            for name in (self._survey.addressed if listed is None else listed)
            if name in found
            and len(found[name].parameters) == len(arguments)
            and len(found[name].returns) == len(results)
        ]


def _declared(module: Module, survey: Survey, named: Mapping[str, None]) -> Module:
    """``module`` with a declaration of each of ``named`` before all functions."""
    if not named:
        return module
    first = next(n for n, item in enumerate(module.items) if isinstance(item, Function))
    declared = [replace(survey.functions[name], body=None) for name in named]
    return replace(module, items=[*module.items[:first], *declared, *module.items[first:]])
