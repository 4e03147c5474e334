"""Gives module-level names of a PTX program others, within functions and initial values, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.ptx.model import (
    CallTargets,
    Function,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Operand,
    Register,
    Statement,
    Symbol,
    Variable,
)
from gpud.compiler.ptx.renaming import replace_names

__all__ = ["renamed"]


def renamed(item: Function | Variable, new: Mapping[str, str]) -> Function | Variable:
    """Return an item in which module-level names are others, except those that it hides."""
    name = new.get(item.name, item.name)
    if isinstance(item, Variable):
        return replace(item, name=name, init=_renamed_value(item.init, new))
    body = item.body
    if body is None:
        return replace(item, name=name)
    hidden = {p.name for p in (*item.parameters, *item.returns)}
    hidden |= {one.name for one in body if isinstance(one, Variable | Label)}
    seen = {old: other for old, other in new.items() if old not in hidden}
    return replace(item, name=name, body=[_renamed_statement(one, seen) for one in body])


def _renamed_statement(statement: Statement, new: Mapping[str, str]) -> Statement:
    def other(name: Register | Symbol) -> Operand:
        return Symbol(new[name.name]) if isinstance(name, Symbol) and name.name in new else name

    if isinstance(statement, Instruction):
        operands = tuple(replace_names(one, other) for one in statement.operands)
        same = all(a is b for a, b in zip(operands, statement.operands, strict=True))
        return statement if same else replace(statement, operands=operands)
    if isinstance(statement, CallTargets):
        return replace(statement, targets=tuple(new.get(one, one) for one in statement.targets))
    if isinstance(statement, Variable):
        return replace(statement, init=_renamed_value(statement.init, new))
    return statement


def _renamed_value(value: InitialValue | None, new: Mapping[str, str]) -> InitialValue | None:
    if isinstance(value, tuple):
        made = tuple(_renamed_value(one, new) for one in value)
        return tuple(one for one in made if one is not None)
    if isinstance(value, Initializer) and value.name in new:
        return replace(value, name=new[value.name])
    return value
