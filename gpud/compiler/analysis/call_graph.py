"""The call graph of a module, with a summary of what each function uses.

Problem: whether a kernel can be resized depends on all the code that it can reach, function
pointers included, and for most kernels it is decided by what they do *not* use.

Approach: one pass over each function collects the union of its instructions' properties, its
special registers, its calls and its declarations; queries about a kernel use the closure of its
call graph. Control-flow graphs are built only for functions that need them. A pass that adds to a
body gives the summary of what it adds (`CallGraph.extend`); the rest is not summarised again.

Terms: an *addressed* function is one whose address is taken, in code or in an initialiser; an
indirect call may reach every addressed function of the module (or, with ``.calltargets``, those
listed, which are addressed too); an *external* is called but has no body in the module.

Properties:
* a function is in the closure of an entry if some sequence of calls can reach it;
* each function is summarised once, however many entries reach it;
* the summary of a function that a pass has extended includes that of its body; its instructions may
  be equivalent ones of the function before the pass;
* equal modules give equal results in equal order.

Source: PTX ISA 9.0, sections 7.1 (functions) and 9.7.13 (``call``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpud.compiler.analysis.cfg import ControlFlow
from gpud.compiler.analysis.definitions import Definitions
from gpud.compiler.analysis.effects import (
    BARRIER,
    BRANCH,
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
    BranchTargets,
    CallPrototype,
    CallTargets,
    Function,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Module,
    Opcode,
    Register,
    RegisterDeclaration,
    SpecialRegister,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
)

__all__ = ["CallGraph", "FunctionSummary", "call_graph", "summarize"]

_NOTED = BARRIER | COLLECTIVE | EXIT | CALL | TENSOR | TEXTURE | SURFACE | CLUSTER
_DECLARING = (RegisterDeclaration, Label, Variable, BranchTargets, CallTargets, CallPrototype)

Declaring = RegisterDeclaration | Label | Variable | BranchTargets | CallTargets | CallPrototype
"""Statements that give something its name."""
_NO_FUNCTION = Function("func", "")


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
    opcodes: dict[str, Opcode] = field(default_factory=dict)
    """All that there are, by their texts."""
    calls: dict[str, Instruction] = field(default_factory=dict)
    """Directly called functions, each with the first call."""
    indirect: Instruction | None = None
    """The first call through a register."""
    named: dict[str, None] = field(default_factory=dict)
    """The symbols among operands and call arguments, except callees: addressed functions and
    variables, too."""
    declared: list[Declaring] = field(default_factory=list)
    """The declarations of the body, in order."""
    may_cycle: bool = False
    """Whether the control flow may have a cycle: some branch goes to a preceding label."""
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
        known = {} if before is None else before._summaries()
        self.named: dict[str, None] = {}
        """What code and initialisers name (`FunctionSummary.named`), in order of discovery."""
        named = self.named
        self.uses: dict[str, FunctionSummary] = {}
        for function in self.functions.values():
            if function.body is not None:
                summary = known.get(id(function.body))
                if summary is None:
                    uses = summarize(function.body, function)
                else:
                    uses = replace(summary, function=function)
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
        self._extended: list[FunctionSummary] = []

    def extend(self, function: Function, made: Function, new: FunctionSummary) -> Function:
        """Record that a pass has made ``made`` of ``function``, so that it need not be summarised.

        Args:
            function: One of the module's, with a body.
            made: Its body has the statements of the other's, or equivalent ones, and more.
            new: The summary of what was added; see `summarize`.

        Returns:
            ``made``.
        """
        old = self.uses[function.name]
        self._extended.append(
            FunctionSummary(
                made,
                old.bits | new.bits,
                [*old.noted, *new.noted],
                new.specials | old.specials,
                new.bases | old.bases,
                new.opcodes | old.opcodes,
                new.calls | old.calls,
                old.indirect or new.indirect,
                old.named | new.named,
                [*old.declared, *new.declared],
                old.may_cycle or new.may_cycle,
            )
        )
        return made

    def declared_names(self) -> Iterator[tuple[str, int]]:
        """Return all names that the module declares, in functions too, each with its line."""
        for item in self.module.items:
            if isinstance(item, Variable):
                yield item.name, item.line
            elif isinstance(item, Function):
                yield item.name, item.line
                for parameter in (*item.parameters, *item.returns):
                    yield parameter.name, item.line
                uses = self.uses.get(item.name)
                for statement in () if uses is None else uses.declared:
                    yield statement.name, statement.line

    def _summaries(self) -> dict[int, FunctionSummary]:
        """Return the known summaries by the identity of their bodies."""
        return {id(uses.function.body): uses for uses in (*self.uses.values(), *self._extended)}

    def flow(self, name: str) -> ControlFlow:
        """Return the control-flow graph of a function with a body, computed once."""
        flow = self._flows.get(name)
        if flow is None:
            flow = ControlFlow(self.functions[name], self._noreturn)
            self._flows[name] = flow
        return flow

    @property
    def addressed(self) -> tuple[str, ...]:
        """The functions whose address is taken, in order of discovery."""
        return self._addressed

    def targets(self, uses: FunctionSummary) -> Iterable[str]:
        """Return the functions that ``uses`` may call, directly or through pointers."""
        yield from uses.calls
        if uses.indirect is not None:
            yield from self._addressed

    def closure(self, *roots: str) -> list[FunctionSummary]:
        """Return the functions with bodies that ``roots`` can reach, themselves included."""
        reached: dict[str, FunctionSummary] = {}
        stack = [name for name in reversed(roots) if name in self.uses]
        while stack:
            name = stack.pop()
            if name in reached:
                continue
            uses = reached[name] = self.uses[name]
            stack.extend(t for t in self.targets(uses) if t in self.uses and t not in reached)
        return list(reached.values())

    def call_closure(self, ins: Instruction) -> list[FunctionSummary]:
        """Return the functions with bodies that the call ``ins`` can reach."""
        target = callee(ins)
        if isinstance(target, Symbol):
            return self.closure(target.name)
        return self.closure(*self._addressed)

    def barrier(self, ins: Instruction, uses: FunctionSummary) -> Barrier:
        """Return the parts of a barrier of ``uses``; resolve a number in a constant register."""
        parts = barrier(ins)
        if isinstance(parts.id, Register):
            if uses.definitions is None:
                uses.definitions = Definitions(uses.function.body or ())
            number = uses.definitions.constant(parts.id)
            if number is not None:
                return replace(parts, id=Immediate(str(number), number))
        return parts

    def externals(self, entry: str) -> dict[str, Instruction]:
        """Return the called functions without a body that ``entry`` can reach, with first calls."""
        first_calls: dict[str, Instruction] = {}
        for uses in self.closure(entry):
            for name, ins in uses.calls.items():
                if name not in self.uses:
                    first_calls.setdefault(name, ins)
        if any(uses.indirect is not None for uses in self.closure(entry)):
            for uses in self.closure(entry):
                if uses.indirect is not None:
                    for name in self._addressed:
                        if name not in self.uses:
                            first_calls.setdefault(name, uses.indirect)
        return first_calls


_last: list[CallGraph] = []


def call_graph(module: Module) -> CallGraph:
    """Return the call graph of ``module``, whose functions are flat; the last one is cached.

    Consecutive passes use the same module, or one of which most functions are the same.
    """
    graph = _last[0] if _last else None
    if graph is None or graph.module is not module:
        graph = CallGraph(module, graph)
        _last[:] = [graph]
    return graph


def summarize(body: Iterable[Statement], function: Function = _NO_FUNCTION) -> FunctionSummary:
    """Return what ``body``, all of that of ``function`` or some statements, uses."""
    uses = FunctionSummary(function)
    specials, bases, named, noted = uses.specials, uses.bases, uses.named, uses.noted
    opcodes = uses.opcodes
    known: dict[str, int] = {}
    above: set[str] = set()  # labels
    for statement in body:
        if type(statement) is not Instruction:
            if isinstance(statement, _DECLARING):
                uses.declared.append(statement)
                if type(statement) is Label:
                    above.add(statement.name)
                elif type(statement) is CallTargets:
                    named.update(dict.fromkeys(statement.targets))
                elif type(statement) is Variable:
                    named |= _named(statement.init)
            continue
        op = statement.opcode
        bits = known.get(op.text)
        if bits is None:
            bits = known[op.text] = FLAGS[op.text] & (_NOTED | BRANCH)
            uses.bits |= FLAGS[op.text]
            opcodes[op.text] = op
            bases.setdefault(op.base, statement)
        if bits & BRANCH:
            target = statement.operands[0]  # an indexed branch may go anywhere
            uses.may_cycle |= not isinstance(target, Symbol) or target.name in above
        elif bits:
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
            elif type(operand) is SymbolOffset:
                named[operand.symbol.name] = None
            elif type(operand) is Vector:
                for item in operand.items:
                    if type(item) is SpecialRegister:
                        specials.setdefault(item.name, statement)
                    elif type(item) is Symbol:
                        named[item.name] = None
    return uses


# -- helpers -----------------------------------------------------------------------------------


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
    """Return the variables and functions that an initialiser names, in order."""
    names: dict[str, None] = {}
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, tuple):
            stack += reversed(one)
        elif isinstance(one, Initializer):
            names[one.name] = None
    return names
