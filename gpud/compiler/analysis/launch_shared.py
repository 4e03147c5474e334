"""Which kernels use shared memory of which the launch gives the size (``extern __shared__``)."""

from __future__ import annotations

from collections.abc import Iterator

from gpud.compiler.analysis.call_graph import call_graph
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Operand,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
)

__all__ = ["with_launch_shared"]


def with_launch_shared(module: Module) -> frozenset[str]:
    """Return the names of the entries of a flat module that name such memory, or call who does."""
    graph = call_graph(module)
    inside = (one for uses in graph.uses.values() for one in uses.declared)
    sized = {
        one.name
        for one in (*module.items, *inside)
        if type(one) is Variable and one.space == "shared" and one.linkage == "extern"
    }
    if not sized:
        return frozenset()
    naming = {name for name, uses in graph.uses.items() if _names(uses.function, sized)}
    return frozenset(
        entry
        for entry in module.entries()
        if any(uses.function.name in naming for uses in graph.closure(entry))
    )


def _names(function: Function, names: set[str]) -> bool:
    """Return whether an instruction of the function has one of the names among its operands."""
    return any(
        name in names
        for statement in function.body or ()
        if type(statement) is Instruction
        for operand in statement.operands
        for name in _symbols(operand)
    )


def _symbols(operand: Operand) -> Iterator[str]:
    if type(operand) is Address:
        if type(operand.base) is Symbol:
            yield operand.base.name
    elif type(operand) is Symbol:
        yield operand.name
    elif type(operand) is SymbolOffset:
        yield operand.symbol.name
    elif type(operand) is Vector or type(operand) is Tuple:
        for item in operand.items:
            yield from _symbols(item)
