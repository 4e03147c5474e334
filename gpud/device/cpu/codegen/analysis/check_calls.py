"""Removes the calls of the checking mode, for analyses that ask what the program itself does."""

from __future__ import annotations

from dataclasses import replace

from gpud.compiler.abi.check_calls import ACCESS, CHECK_PREFIX
from gpud.compiler.analysis.effects import callee, is_call
from gpud.compiler.ptx import model as ptx

__all__ = ["without_checks"]


def without_checks(function: ptx.Function) -> ptx.Function:
    """Return ``function`` without them; each access is at the address that was asked about.

    A function without any is returned as it is. The basic blocks are the same.
    """
    body: list[ptx.Statement] = []
    changed = False
    for statement in function.body or ():
        if not isinstance(statement, ptx.Instruction) or not is_call(statement):
            body.append(statement)
            continue
        called = callee(statement)
        if not isinstance(called, ptx.Symbol) or not called.name.startswith(CHECK_PREFIX):
            body.append(statement)
            continue
        changed = True
        if called.name == ACCESS:
            results, _, arguments = statement.operands
            assert isinstance(results, ptx.Tuple)
            assert isinstance(arguments, ptx.Tuple)
            operands = (results.items[0], arguments.items[0])
            body.append(replace(statement, opcode=ptx.opcode("mov.u64"), operands=operands))
    return replace(function, body=body) if changed else function
