"""Traps, breakpoints and failed assertions that say where they are, and end their job only.

Problem: ``trap`` ends the whole context on a GPU, with every client's work, and says neither which
instruction it was nor which thread. So do ``brkpt`` without a debugger and ``__assertfail``.

Approach: each becomes a call of gpud's function that records what happened in the job's record and
ends the thread (`gpud.compiler.passes.runtime.fault_lowering`), with the number of its site. The
``trap`` that stands behind the call is never reached; it tells every analysis that nothing returns.

Algorithm::

    trap                  ->  call gpud_fault, (TRAP, site, 0); trap
    brkpt                 ->  call gpud_fault, (BREAKPOINT, site, 0); trap
    call __assertfail, (message, file, line, function, size)
                          ->  call gpud_assert, (site, message, file, line, function); trap

A guard becomes a branch around. What was stored to the ``.param`` variables of an ``__assertfail``
is passed on in registers; where the stores do not stand in front of the call, it becomes a trap.

Properties:
* ``guards``: a thread that did not trap before does not now;
* ``all``: no ``trap`` of the program's, no ``brkpt`` and no call of ``__assertfail`` is left;
* a module without any comes out as the same object.

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
from gpud.compiler.passes.builder import fresh_stem, immediate, map_functions
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
    opcode,
)

__all__ = ["pass_traps"]

_ASSERTFAIL = "__assertfail"
_ARGUMENTS = 5


def pass_traps(module: Module, plan: Mapping[str, Decision], sites: SiteTable) -> Module:
    """Make the traps of the entries of ``plan``, and of all functions, record themselves.

    Args:
        module: flat; not changed.
        plan: the entries to rewrite.
        sites: gets a site for each.
    """
    concerned = {
        name
        for name, uses in call_graph_of(module).uses.items()
        if (uses.function.kind == "func" or name in plan)
        and (uses.bits & TRAP or "brkpt" in uses.bases or _ASSERTFAIL in uses.calls)
    }
    if not concerned:
        return module
    stem = fresh_stem(module, "gpud_trap")

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
        """The function with calls instead of traps."""
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
        """``call`` and a trap, under the guard of ``ins``."""
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
        """What ``argument`` of the call that comes next holds; its store goes."""
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
        """The value that the store at ``at`` stores, which is taken out."""
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
        """The body without the ``.param`` variables that nothing uses any more."""
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
