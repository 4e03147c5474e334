"""Passes values that only the entry knows, such as block coordinates, as hidden parameters.

Problem: in a persistent or sliced kernel the special registers no longer hold ``%ctaid`` and
``%nctaid`` of the user's grid. Entries keep them in registers, which functions (``.func``) cannot
access. The same holds for the address of the control words.

Approach: every function that needs a value, itself or for a function that it calls, gets one
parameter for each value, after its own. Calls pass them on; entries pass what they have: for
coordinates the special registers, which later passes replace according to the entry's form. So one
version of a function serves entries of every form.

Terms: a *key* names a value, such as the coordinates of `gpud.compiler.passes.forms.coordinates`;
an *addressed* function may be called through a pointer, so all addressed functions, all prototypes
and all indirect calls of a module get the same parameters: what any addressed function needs.

Algorithm: needs are propagated from callees to callers until nothing changes.

Properties:
* afterwards no function but entries reads a coordinate's special register;
* a module whose functions need no coordinates is returned as the same object;
* an entry that no later pass rewrites works as before;
* arguments are stored immediately before their call, in one basic block, as the ISA requires.

Source: docs/explanation/persistent-form.md; PTX ISA 9.0, sections 7.1 and 9.7.13 (``call``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.call_graph import call_graph as call_graph_of
from gpud.compiler.analysis.effects import callee
from gpud.compiler.forms.classifier import Decision
from gpud.compiler.passes.builder import CodeBuilder, fresh_stem, map_functions, split_declarations
from gpud.compiler.passes.forms.coordinates import COORDINATES, replace_specials, used_coordinates
from gpud.compiler.ptx.model import (
    Address,
    CallPrototype,
    Function,
    Instruction,
    Module,
    Operand,
    Parameter,
    Register,
    SpecialRegister,
    Statement,
    Symbol,
    Tuple,
    Variable,
)

__all__ = ["HiddenParameters", "needs_of", "pass_coordinates", "propagate_needs"]

_PARAMETER_SPACE = "param"


def pass_coordinates(module: Module, plan: Mapping[str, Decision]) -> Module:
    """Pass block coordinates to functions as parameters.

    Args:
        module: flat; not changed.
        plan: only whether it is empty matters: functions serve entries of every form.
    """
    if not plan:
        return module
    call_graph = call_graph_of(module)
    needs = needs_of(call_graph)
    if not any(needs.values()):
        return module
    writer = _Coordinates(fresh_stem(call_graph, "gpud_place"), call_graph, needs)
    return map_functions(module, writer.rewrite)


def needs_of(call_graph: CallGraph) -> dict[str, tuple[str, ...]]:
    """Return the coordinates that each ``.func`` needs from its caller, by function name."""
    own = {name: used_coordinates(uses.specials) for name, uses in call_graph.uses.items()}
    return propagate_needs(call_graph, own, COORDINATES)


def propagate_needs(
    call_graph: CallGraph, own: Mapping[str, Iterable[str]], order: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the keys that each ``.func`` with a body needs from its caller, by function name.

    Args:
        call_graph: the call graph of the module.
        own: the keys that functions need themselves, by function name.
        order: all keys, in the order of the hidden parameters.
    """
    functions = [uses for uses in call_graph.uses.values() if uses.function.kind == "func"]
    needs = {uses.function.name: set(own.get(uses.function.name, ())) for uses in functions}
    addressed = [name for name in call_graph.addressed if name in needs]
    changed = True
    while changed:
        changed = False
        shared = {key for name in addressed for key in needs[name]}
        for uses in functions:
            name = uses.function.name
            wanted = {key for target in call_graph.targets(uses) for key in needs.get(target, ())}
            if name in addressed:
                wanted |= shared
            if not wanted <= needs[name]:
                needs[name] |= wanted
                changed = True
    return {name: tuple(key for key in order if key in wanted) for name, wanted in needs.items()}


class HiddenParameters:
    """Adds hidden parameters to the functions of a module, one function at a time.

    Subclasses define what entries pass (`offered`) and how bodies are rewritten (`changed`).

    Args:
        stem: prefix of all new names.
        call_graph: the call graph of the module.
        needs: the keys that each ``.func`` gets from its caller, from `propagate_needs`.
        wide: keys whose values have 64 bits; all others have 32.
    """

    def __init__(
        self,
        stem: str,
        call_graph: CallGraph,
        needs: Mapping[str, tuple[str, ...]],
        wide: Iterable[str] = (),
    ) -> None:
        self._stem = stem
        self._call_graph = call_graph
        self._needs = needs
        self._pointed = next((needs[name] for name in call_graph.addressed if name in needs), ())
        self._wide = frozenset(wide)
        self._calls = 0

    def offered(self, function: Function, code: CodeBuilder) -> dict[str, Operand]:
        """Return the values that ``function`` has anyway, by key; may append to ``code``."""
        raise NotImplementedError

    def changed(self, function: Function, here: Mapping[str, Operand]) -> list[Statement]:
        """Return the rewritten body of ``function``, in which keys have the values in ``here``."""
        raise NotImplementedError

    def is_concerned(self, function: Function) -> bool:
        """Return whether to rewrite ``function`` even if it neither gets nor passes parameters."""
        return False

    def rewrite(self, function: Function) -> Function:
        """Return ``function`` with hidden parameters, passing on what its callees need."""
        own = self._needs.get(function.name, ()) if function.kind == "func" else ()
        uses = self._call_graph.uses.get(function.name)
        passes_on = uses is not None and (
            uses.indirect is not None or any(self._needs.get(name) for name in uses.calls)
        )
        if not own and not passes_on and not self.is_concerned(function):
            return function
        in_registers = _in_registers(function.parameters)
        hidden = self._hidden(own, in_registers)
        parameters = (*function.parameters, *hidden)
        if function.body is None:
            return replace(function, parameters=parameters)
        code = CodeBuilder(self._stem)
        here = self.offered(function, code)
        for name, parameter in zip(own, hidden, strict=True):
            if in_registers:
                here[name] = Register(parameter.name)
            else:
                register = code.register(_suffix(name), self._kind(name))
                here[name] = register
                load = f"ld.param.{self._kind(name)}"
                code(load, register, Address(Symbol(parameter.name)))
        declarations, body = split_declarations(self.changed(function, here))
        prologue, code.body = code.body, []
        if passes_on:
            self._walk(body, here, code)
            body = code.body
        made = [*declarations, *code.declarations, *prologue, *body]
        return replace(function, parameters=parameters, body=made)

    def _kind(self, name: str) -> str:
        return "b64" if name in self._wide else "b32"

    def _hidden(self, names: tuple[str, ...], in_registers: bool) -> tuple[Parameter, ...]:
        space = "reg" if in_registers else _PARAMETER_SPACE
        sign = "%" if in_registers else ""
        return tuple(
            Parameter(self._kind(name), f"{sign}{self._stem}_in_{_suffix(name)}", space=space)
            for name in names
        )

    def _walk(
        self, body: Iterable[Statement], here: Mapping[str, Operand], code: CodeBuilder
    ) -> None:
        for statement in body:
            if type(statement) is Instruction:
                if statement.opcode.base == "call":
                    self._call(statement, here, code)
                    continue
            elif isinstance(statement, CallPrototype):
                added = self._hidden(self._pointed, _in_registers(statement.parameters))
                parameters = (*statement.parameters, *added)
                code.body.append(replace(statement, parameters=parameters))
                continue
            code.body.append(statement)

    def _call(self, ins: Instruction, here: Mapping[str, Operand], code: CodeBuilder) -> None:
        target = callee(ins)
        names = self._needs.get(target.name, ()) if isinstance(target, Symbol) else self._pointed
        if not names:
            code.body.append(ins)
            return
        at = 2 if isinstance(ins.operands[0], Tuple) else 1
        given = ins.operands[at] if len(ins.operands) > at else None
        arguments = list(given.items) if isinstance(given, Tuple) else []
        rest = ins.operands[at + 1 :] if isinstance(given, Tuple) else ins.operands[at:]
        in_registers = isinstance(target, Symbol) and _in_registers(
            self._call_graph.functions[target.name].parameters
        )
        self._calls += 1
        for name in names:
            value, kind = here[name], self._kind(name)
            if not isinstance(value, Register):
                register = code.register(f"out_{_suffix(name)}", kind)
                code(f"mov.u{kind[1:]}", register, value)
                value = register
            if in_registers:
                arguments.append(value)
                continue
            variable = f"{self._stem}_out{self._calls}_{_suffix(name)}"
            code.declarations.append(Variable(_PARAMETER_SPACE, kind, variable))
            code(f"st.param.{kind}", Address(Symbol(variable)), value)
            arguments.append(Symbol(variable))
        operands = (*ins.operands[:at], Tuple(tuple(arguments)), *rest)
        code.body.append(Instruction(ins.opcode, operands, ins.guard, ins.line))


class _Coordinates(HiddenParameters):
    """Block coordinates: entries pass the special registers."""

    def offered(self, function: Function, code: CodeBuilder) -> dict[str, Operand]:
        return {name: SpecialRegister(name) for name in COORDINATES}

    def changed(self, function: Function, here: Mapping[str, Operand]) -> list[Statement]:
        own = self._needs.get(function.name, ()) if function.kind == "func" else ()
        return replace_specials(function.body or (), {name: here[name] for name in own})


def _suffix(name: str) -> str:
    """Return a special register as a part of a name: ``nctaid_x`` for ``%nctaid.x``."""
    return name.lstrip("%").replace(".", "_")


def _in_registers(parameters: tuple[Parameter, ...]) -> bool:
    return bool(parameters) and parameters[0].space == "reg"
