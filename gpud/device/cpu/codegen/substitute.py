"""Rename registers and symbols in instructions: the one walk over operands that inlining needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpud.compiler.ptx import model as ptx

__all__ = ["Rename", "rename"]

Rename = Callable[[str], str]
"""A new name for a register, symbol or label, or the same one."""


def rename(statement: ptx.Statement, change: Rename) -> ptx.Statement:
    """A copy of ``statement`` in which every register, symbol and label name went through
    ``change``.

    Declarations are renamed too; directives and debug locations are returned as they are.
    """
    match statement:
        case ptx.Instruction():
            guard = statement.guard
            if guard is not None:
                guard = ptx.Guard(ptx.Register(change(guard.register.name)), guard.negated)
            operands = tuple(_operand(o, change) for o in statement.operands)
            return ptx.Instruction(statement.opcode, operands, guard, statement.line)
        case ptx.Label() | ptx.RegisterDeclaration() | ptx.Variable() | ptx.CallPrototype():
            return replace(statement, name=change(statement.name))
        case ptx.BranchTargets() | ptx.CallTargets():
            targets = tuple(change(t) for t in statement.targets)
            return replace(statement, name=change(statement.name), targets=targets)
    return statement


def _operand(operand: ptx.Operand, change: Rename) -> ptx.Operand:
    match operand:
        case ptx.Register(name):
            return ptx.Register(change(name))
        case ptx.Symbol(name):
            return ptx.Symbol(change(name))
        case ptx.Address(base, offset) if base is not None:
            return ptx.Address(type(base)(change(base.name)), offset)
        case ptx.Vector(items):
            return ptx.Vector(tuple(_operand(i, change) for i in items))
        case ptx.Tuple(items):
            return ptx.Tuple(tuple(_operand(i, change) for i in items))
        case ptx.Pair(first, second):
            return ptx.Pair(_operand(first, change), _operand(second, change))
        case ptx.Not(register):
            return ptx.Not(ptx.Register(change(register.name)))
        case ptx.Conjunction(symbol, offset):
            return ptx.Conjunction(ptx.Symbol(change(symbol.name)), offset)
    return operand
