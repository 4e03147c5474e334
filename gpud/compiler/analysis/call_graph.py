"""The call graph of a module, with a summary of what each function uses.

Problem: whether a kernel can be resized depends on all the code that it can reach, function
pointers included, and for most kernels it is decided by what they do *not* use.

Approach: one pass over each function collects the union of its instructions' properties, its
special registers and its calls; queries about a kernel use the closure of its call graph.
Control-flow graphs are built only for functions that need them.

Terms: an *addressed* function is one whose address is taken, in code or in an initialiser; an
indirect call may reach every addressed function of the module (or, with ``.calltargets``, those
listed, which are addressed too); an *external* is called but has no body in the module.

Properties:
* a function is in the closure of an entry if some sequence of calls can reach it;
* each function is summarised once, however many entries reach it;
* equal modules give equal results in equal order.

Source: PTX ISA 9.0, sections 7.1 (functions) and 9.7.13 (``call``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.analysis.effects import (
    BARRIER,
    CALL,
    CLUSTER,
    COLLECTIVE,
    EXIT,
    FLAGS,
    SURFACE,
    TENSOR,
    TEXTURE,
    Barrier,
    barrier,
    callee,
)
from gpud.compiler.ptx.model import (
    Address,
    CallTargets,
    Function,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Module,
    Register,
    SpecialRegister,
    Symbol,
    Tuple,
    Variable,
    Vector,
)

__all__ = ["CallGraph", "FunctionSummary", "call_graph"]

_NOTED = BARRIER | COLLECTIVE | EXIT | CALL | TENSOR | TEXTURE | SURFACE | CLUSTER


@dataclass(slots=True)
class FunctionSummary:
    """A summary of one function's body.

    ``bits`` is the union of `gpud.compiler.analysis.effects.flags` over its instructions; ``noted``
    are the barriers, collectives, ``exit``s, calls, and tensor, texture, surface and cluster
    instructions in body order; ``specials`` are the special registers in order of first use, each
    with the first instruction that reads it; ``bases`` are the first words of opcodes, each with
    the first such instruction.
    """

    function: Function
    bits: int = 0
    noted: list[Instruction] = field(default_factory=list)
    specials: dict[str, Instruction] = field(default_factory=dict)
    bases: dict[str, Instruction] = field(default_factory=dict)
    calls: dict[str, Instruction] = field(default_factory=dict)
    """Directly called functions, each with the first call."""
    indirect: Instruction | None = None
    """The first call through a register."""
    named: dict[str, None] = field(default_factory=dict)
    """The symbols among operands and call arguments, except callees: addressed functions, too."""
    definitions: Definitions | None = None
    """The definitions of its registers, computed on demand."""


class CallGraph:
    """The call graph of ``module``, whose bodies are flat, with a summary of each function.

    Args:
        module: Not changed, and must not change while the graph is in use.
        before: The call graph of the module from which this one was made: the summaries of bodies
            that are the same object are reused.
    """

    def __init__(self, module: Module, before: CallGraph | None = None) -> None:
        self.module = module
        self.functions: dict[str, Function] = {}
        for function in module.functions():
            # There may be declarations before and after the definition, which has the body.
            if function.body is not None or function.name not in self.functions:
                self.functions[function.name] = function
        looked_at = {} if before is None else {id(u.function.body): u for u in before.uses.values()}
        named: dict[str, None] = {}
        self.uses: dict[str, FunctionSummary] = {}
        for function in self.functions.values():
            if function.body is not None:
                found = looked_at.get(id(function.body))
                uses = _summarize(function) if found is None else replace(found, function=function)
                self.uses[function.name] = uses
                named |= uses.named
        for item in module.items:
            if isinstance(item, Variable):
                named |= _named(item.init)
        self._addressed = tuple(name for name in named if name in self.functions)

        self._noreturn = frozenset(
            f.name for f in self.functions.values() if ".noreturn" in f.attributes
        )
        self._flows: dict[str, ControlFlow] = {}

    def flow(self, name: str) -> ControlFlow:
        """The control-flow graph of a function with a body, computed once."""
        found = self._flows.get(name)
        if found is None:
            found = ControlFlow(self.functions[name], self._noreturn)
            self._flows[name] = found
        return found

    @property
    def addressed(self) -> tuple[str, ...]:
        """The functions whose address is taken, in order of discovery."""
        return self._addressed

    def targets(self, uses: FunctionSummary) -> Iterable[str]:
        """The functions that ``uses`` may call, directly or through pointers."""
        yield from uses.calls
        if uses.indirect is not None:
            yield from self._addressed

    def closure(self, *roots: str) -> list[FunctionSummary]:
        """The functions with bodies that ``roots`` can reach, themselves included."""
        found: dict[str, FunctionSummary] = {}
        stack = [name for name in reversed(roots) if name in self.uses]
        while stack:
            name = stack.pop()
            if name in found:
                continue
            uses = found[name] = self.uses[name]
            stack.extend(t for t in self.targets(uses) if t in self.uses and t not in found)
        return list(found.values())

    def call_closure(self, ins: Instruction) -> list[FunctionSummary]:
        """The functions with bodies that the call ``ins`` can reach."""
        target = callee(ins)
        if isinstance(target, Symbol):
            return self.closure(target.name)
        return self.closure(*self._addressed)

    def barrier(self, ins: Instruction, uses: FunctionSummary) -> Barrier:
        """The parts of a barrier of ``uses``; a number in a constant register is resolved."""
        parts = barrier(ins)
        if isinstance(parts.id, Register):
            if uses.definitions is None:
                uses.definitions = Definitions(uses.function.body or ())
            number = uses.definitions.constant(parts.id)
            if number is not None:
                return replace(parts, id=Immediate(str(number), number))
        return parts

    def externals(self, entry: str) -> dict[str, Instruction]:
        """Called functions without a body that ``entry`` can reach, each with its first call."""
        found: dict[str, Instruction] = {}
        for uses in self.closure(entry):
            for name, ins in uses.calls.items():
                if name not in self.uses:
                    found.setdefault(name, ins)
        if any(uses.indirect is not None for uses in self.closure(entry)):
            for uses in self.closure(entry):
                if uses.indirect is not None:
                    for name in self._addressed:
                        if name not in self.uses:
                            found.setdefault(name, uses.indirect)
        return found


_last: list[CallGraph] = []


def call_graph(module: Module) -> CallGraph:
    """The call graph of ``module``, whose functions are flat; that of the last module is cached.

    Consecutive passes use the same module, or one of which most functions are the same.
    """
    found = _last[0] if _last else None
    if found is None or found.module is not module:
        found = CallGraph(module, found)
        _last[:] = [found]
    return found


# -- helpers -----------------------------------------------------------------------------------


def _summarize(function: Function) -> FunctionSummary:
    uses = FunctionSummary(function)
    specials, bases, named, noted = uses.specials, uses.bases, uses.named, uses.noted
    known: dict[str, int] = {}
    for statement in function.body or ():
        if type(statement) is not Instruction:
            if type(statement) is CallTargets:
                named.update(dict.fromkeys(statement.targets))
            elif type(statement) is Variable:
                named |= _named(statement.init)
            continue
        op = statement.opcode
        bits = known.get(op.text)
        if bits is None:
            bits = known[op.text] = FLAGS[op.text] & _NOTED
            uses.bits |= FLAGS[op.text]
            bases.setdefault(op.base, statement)
        if bits:
            noted.append(statement)
            if bits & CALL:
                _add_call(statement, uses)
                continue
        for operand in statement.operands:
            sort = type(operand)
            if sort is Register or sort is Immediate or sort is Address:  # most are
                continue
            if type(operand) is SpecialRegister:
                specials.setdefault(operand.name, statement)
            elif type(operand) is Symbol:
                named[operand.name] = None
            elif type(operand) is Vector:
                for item in operand.items:
                    if type(item) is SpecialRegister:
                        specials.setdefault(item.name, statement)
    return uses


def _add_call(ins: Instruction, uses: FunctionSummary) -> None:
    target = callee(ins)
    if isinstance(target, Symbol):
        uses.calls.setdefault(target.name, ins)
    elif uses.indirect is None:
        uses.indirect = ins
    for operand in ins.operands:
        if isinstance(operand, Tuple):
            for item in operand.items:
                if isinstance(item, SpecialRegister):
                    uses.specials.setdefault(item.name, ins)
                elif isinstance(item, Symbol):
                    uses.named[item.name] = None


def _named(value: InitialValue | None) -> dict[str, None]:
    """The variables and functions that an initialiser names, in order."""
    found: dict[str, None] = {}
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, tuple):
            stack += reversed(one)
        elif isinstance(one, Initializer):
            found[one.name] = None
    return found
