"""Renames registers, symbols and labels in statements, for inlining and splitting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpud.compiler.ptx import model as ptx
from gpud.compiler.ptx.renaming import replace_names

__all__ = ["Rename", "rename", "rename_operand"]

Rename = Callable[[str], str]
"""A new name for a register, symbol or label, or the same one."""


def rename(statement: ptx.Statement, change: Rename) -> ptx.Statement:
    """Return a copy of ``statement`` with every register, symbol and label renamed by ``change``.

    Declarations are renamed too; directives and debug locations are returned as they are.
    """
    match statement:
        case ptx.Instruction():
            guard = statement.guard
            if guard is not None:
                guard = ptx.Guard(ptx.Register(change(guard.register.name)), guard.negated)
            operands = tuple(rename_operand(o, change) for o in statement.operands)
            return ptx.Instruction(statement.opcode, operands, guard, statement.line)
        case ptx.Label() | ptx.RegisterDeclaration() | ptx.Variable() | ptx.CallPrototype():
            return replace(statement, name=change(statement.name))
        case ptx.BranchTargets() | ptx.CallTargets():
            targets = tuple(change(t) for t in statement.targets)
            return replace(statement, name=change(statement.name), targets=targets)
    return statement


def rename_operand(operand: ptx.Operand, change: Rename) -> ptx.Operand:
    """Return a copy of ``operand`` with all register and symbol names passed through ``change``."""
    return replace_names(operand, lambda named: type(named)(change(named.name)))
