"""Signatures of functions and calls: which functions a call through a pointer may reach.

Problem: a program may take the addresses of functions of many signatures. A call through a pointer
can only reach those of its own; all others take their arguments from other places.

Terms: a *signature* is what the ABI sees of results and parameters: for each one its size in bytes,
and whether it is an array (a struct by value). Types are not compared: a C++ ``unsigned`` is a
``.u32`` in one place and a ``.b32`` in another.

Properties: a function with the signature of a call's prototype is a candidate; a function with
another number of parameters, another size or a struct in place of a scalar is not.

Source: PTX ISA 9.0, sections 7.1 and 9.7.13 (``call``, ``.callprototype``, ``.calltargets``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpud.compiler.analysis.data_layout import size_and_align
from gpud.compiler.ptx.model import (
    CallPrototype,
    CallTargets,
    Function,
    Instruction,
    Operand,
    Parameter,
    Statement,
    Symbol,
    Tuple,
    Variable,
)

__all__ = ["IndirectCalls", "call_parts", "fits"]


def call_parts(ins: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Return (results, arguments) of a call."""
    first, *others = ins.operands
    results: tuple[Operand, ...] = ()
    if isinstance(first, Tuple):
        results, others = first.items, others[1:]
    given = others[0] if others else None
    return results, given.items if isinstance(given, Tuple) else ()


def fits(
    called: Function | CallPrototype, ins: Instruction, variables: Mapping[str, Variable]
) -> bool:
    """Return whether a call passes what ``called`` declares.

    ``variables``: the ``.param`` variables that the call may name. A register fits any scalar.
    """
    results, arguments = call_parts(ins)
    pairs = ((called.returns, results), (called.parameters, arguments))
    return all(
        len(declared) == len(given)
        and all(map(_fits, declared, (variables.get(getattr(g, "name", "")) for g in given)))
        for declared, given in pairs
    )


class IndirectCalls:
    """The indirect calls of one function.

    Args:
        body: flat.
    """

    def __init__(self, body: Iterable[Statement]) -> None:
        self._prototypes: dict[str, CallPrototype] = {}
        self._listed: dict[str, tuple[str, ...]] = {}
        self._variables: dict[str, Variable] = {}
        for statement in body:
            if type(statement) is CallPrototype:
                self._prototypes[statement.name] = statement
            elif type(statement) is CallTargets:
                self._listed[statement.name] = statement.targets
            elif type(statement) is Variable:
                self._variables[statement.name] = statement

    def candidates(
        self, ins: Instruction, functions: Mapping[str, Function], addressed: Sequence[str]
    ) -> list[str]:
        """Return which ``functions`` the call may reach.

        A call with ``.calltargets`` may reach those, another those of ``addressed`` that have the
        signature of its prototype.
        """
        last = ins.operands[-1]
        name = last.name if isinstance(last, Symbol) else ""
        prototype = self._prototypes.get(name)
        return [
            one
            for one in self._listed.get(name, addressed)
            if one in functions
            and (
                fits(functions[one], ins, self._variables)
                if prototype is None
                else _signature(functions[one]) == _signature(prototype)
            )
        ]


_Shape = tuple[bool, int]


def _signature(declared: Function | CallPrototype) -> tuple[tuple[_Shape, ...], tuple[_Shape, ...]]:
    return tuple(map(_shape, declared.returns)), tuple(map(_shape, declared.parameters))


def _shape(declared: Parameter | Variable) -> _Shape:
    """Return (whether it is an array, size in bytes)."""
    return bool(declared.dims), size_and_align(declared)[0]


def _fits(declared: Parameter, given: Variable | None) -> bool:
    return not declared.dims if given is None else _shape(declared) == _shape(given)
