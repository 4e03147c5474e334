"""The trap pass: traps, breakpoints and failed assertions record a fault and end only their job.

Problem: ``trap`` ends the whole context on a GPU, with every client's work, and reports neither the
instruction nor the thread. So do ``brkpt`` without a debugger and ``__assertfail``.

Approach: each becomes a call, with its site number, of a function of gpud's that writes the fault
to the job record and ends the thread (`gpud.compiler.passes.runtime.fault_lowering`). The ``trap``
after the call is never reached; it marks for analyses that the call does not return.

Algorithm::

    trap                  ->  call gpud_fault, (TRAP, site, 0); trap
    brkpt                 ->  call gpud_fault, (BREAKPOINT, site, 0); trap
    call __assertfail, (message, file, line, function, size)
                          ->  call gpud_assert, (site, message, file, line, function); trap

A guard becomes a branch around the call. The values stored to the ``.param`` variables of an
``__assertfail`` are passed in registers; if the stores are not found before the call in its basic
block, the assertion becomes a trap.

Properties:
* ``guards``: a thread that did not trap before does not trap now;
* ``all``: none of the program's ``trap``, ``brkpt`` and calls of ``__assertfail`` is left;
* a module without any is returned as the same object.

Source: PTX ISA 9.0, sections 9.7.19 (``trap``, ``brkpt``) and 7.1; CUDA C++ Programming Guide,
section on assertions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.abi.fault_record import FaultKind
from gpud.compiler.abi.fault_sites import SiteTable
from gpud.compiler.abi.reserved_names import ASSERT, FAULT
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import CALL, FLAGS, TERMINATOR, TRAP, callee, written
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import fresh_stem, map_functions
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Tuple,
    Variable,
    immediate,
    opcode,
)

__all__ = ["pass_traps"]

_ASSERTFAIL = "__assertfail"
_ARGUMENTS = 5


def pass_traps(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """Replace the traps of the entries of ``plan``, and of all functions, by fault reports.

    Args:
        module: flat; not changed.
        plan: the entries to rewrite.
        sites: the table to which the site of each is added.
    """
    call_graph = call_graph_of(module)
    concerned = {
        name
        for name, uses in call_graph.uses.items()
        if (uses.function.kind == "func" or name in plan)
        and (uses.bits & TRAP or "brkpt" in uses.bases or _ASSERTFAIL in uses.calls)
    }
    if not concerned:
        return module
    stem = fresh_stem(call_graph, "gpud_trap")

    def change(function: Function) -> Function:
        if function.name not in concerned or function.body is None:
            return function
        return _Traps(function, sites, stem).rewritten()

    return map_functions(module, change)


class _Traps:
    """Rewrites one function."""

    def __init__(self, function: Function, sites: SiteTable, stem: str) -> None:
        self._function = function
        self._sites = sites
        self._stem = stem
        self._made: list[Statement] = []
        self._declarations: list[Statement] = []
        self._count = 0

    def rewritten(self) -> Function:
        """Return the function with fault reports in place of traps."""
        for statement in self._function.body or ():
            if isinstance(statement, Instruction):
                base = statement.opcode.base
                if base == "trap":
                    self._report(statement, self._fault(statement, FaultKind.TRAP))
                    continue
                if base == "brkpt":
                    self._report(statement, self._fault(statement, FaultKind.BREAKPOINT))
                    continue
                if base == "call" and callee(statement) == Symbol(_ASSERTFAIL):
                    self._assertion(statement)
                    continue
            self._made.append(statement)
        return replace(self._function, body=[*self._declarations, *self._without_unused()])

    def _fault(self, ins: Instruction, kind: FaultKind) -> Instruction:
        site = self._sites.add(self._function.name, ins)
        arguments = tuple(map(immediate, (kind, site, 0)))
        return Instruction(opcode("call"), (Symbol(FAULT), Tuple(arguments)), None, ins.line)

    def _report(self, ins: Instruction, call: Instruction) -> None:
        """Append ``call`` and a trap, under the guard of ``ins``."""
        made: list[Statement] = [call, Instruction(opcode("trap"), (), None, ins.line)]
        if ins.guard is not None:
            self._count += 1
            around = Label(f"${self._stem}_{self._count}", ins.line)
            opposite = Guard(ins.guard.register, not ins.guard.negated)
            jump = Instruction(opcode("bra"), (Symbol(around.name),), opposite, ins.line)
            made = [jump, *made, around]
        self._made += made

    # -- assertions ----------------------------------------------------------------------------

    def _assertion(self, ins: Instruction) -> None:
        last = ins.operands[-1]
        given = last.items if isinstance(last, Tuple) else ()
        values = [self._value(item) for item in given]
        if len(values) != _ARGUMENTS or None in values:
            self._report(ins, self._fault(ins, FaultKind.TRAP))
            return
        site = self._sites.add(self._function.name, ins)
        passed = tuple(value for value in values[:-1] if value is not None)
        arguments = Tuple((immediate(site), *passed))
        self._report(ins, Instruction(opcode("call"), (Symbol(ASSERT), arguments), None, ins.line))

    def _value(self, argument: Operand) -> Operand | None:
        """Return the value of an argument of the next call, removing its store; None if unknown."""
        if isinstance(argument, Register | Immediate):
            return argument
        if not isinstance(argument, Symbol):
            return None
        overwritten: set[str] = set()
        for at in range(len(self._made) - 1, -1, -1):
            statement = self._made[at]
            if isinstance(statement, Label):
                return None
            if not isinstance(statement, Instruction):
                continue
            if FLAGS[statement.opcode.text] & (TERMINATOR | CALL):
                return None
            if _stores_to(statement, argument):
                return self._captured(at, statement, overwritten)
            overwritten.update(register.name for register in written(statement))
        return None

    def _captured(self, at: int, store: Instruction, overwritten: set[str]) -> Operand | None:
        """Return the value of the store at ``at``, removing it; None if it cannot be passed on."""
        value = store.operands[1]
        if not isinstance(value, Register | Immediate) or store.guard is not None:
            return None
        del self._made[at]
        if isinstance(value, Register) and value.name in overwritten:
            self._count += 1
            kind = f"b{store.opcode.modifiers[-1][1:]}"
            copy = Register(f"%{self._stem}_{self._count}")
            self._declarations.append(RegisterDeclaration(kind, copy.name))
            move = Instruction(opcode(f"mov.{kind}"), (copy, value), None, store.line)
            self._made.insert(at, move)
            return copy
        return value

    def _without_unused(self) -> list[Statement]:
        """Return the body without ``.param`` variables that have become unused."""
        used: set[str] = set()
        for statement in self._made:
            if isinstance(statement, Instruction):
                for operand in statement.operands:
                    items = operand.items if isinstance(operand, Tuple) else (operand,)
                    for item in items:
                        base = item.base if isinstance(item, Address) else item
                        if isinstance(base, Symbol):
                            used.add(base.name)
        return [
            s
            for s in self._made
            if not (isinstance(s, Variable) and s.space == "param" and s.name not in used)
        ]


def _stores_to(ins: Instruction, variable: Symbol) -> bool:
    target = ins.operands[0] if ins.operands else None
    return (
        ins.opcode.base == "st"
        and ins.opcode.has("param")
        and isinstance(target, Address)
        and target.base == variable
    )
