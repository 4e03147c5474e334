"""Helpers of the passes: building statements, finding unused names, mapping functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpud.compiler.analysis.call_graph import CallGraph
from gpud.compiler.analysis.effects import callee
from gpud.compiler.ptx.model import (
    Function,
    Guard,
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
    immediate,
    opcode,
)

__all__ = [
    "CodeBuilder",
    "call_of_copy",
    "fresh_stem",
    "map_functions",
    "split_declarations",
]


class CodeBuilder:
    """Builds a list of statements: ``code("add.u32", a, b, 1, when=p)`` appends one.

    ``stem`` is the prefix of the names of all its registers and labels.
    """

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.body: list[Statement] = []
        self.declarations: list[Statement] = []
        self._names: dict[str, Register] = {}

    def register(self, name: str, kind: str = "b32") -> Register:
        """Return the register ``%<stem>_<name>`` of type ``.<kind>``, declared at its first use."""
        register = self._names.get(name)
        if register is None:
            register = self._names[name] = Register(f"%{self.stem}_{name}")
            self.declarations.append(RegisterDeclaration(kind, register.name))
        return register

    def label(self, name: str) -> Symbol:
        """Return the label ``$<stem>_<name>`` as an operand; `place` defines it."""
        return Symbol(f"${self.stem}_{name}")

    def place(self, label: Symbol) -> None:
        """Append the definition of ``label``."""
        self.body.append(Label(label.name))

    def __call__(
        self,
        text: str,
        *operands: Operand | int,
        when: Register | None = None,
        unless: Register | None = None,
    ) -> None:
        """Append an instruction, predicated by ``when`` or by the negation of ``unless``."""
        guard = None
        if when is not None:
            guard = Guard(when)
        elif unless is not None:
            guard = Guard(unless, negated=True)
        made = tuple(immediate(o) if isinstance(o, int) else o for o in operands)
        self.body.append(Instruction(opcode(text), made, guard))


def fresh_stem(call_graph: CallGraph, wanted: str) -> str:
    """Return a prefix of new names: ``wanted``, with a number if a declared name begins with it.

    Leading ``%``, ``$`` and ``_`` are ignored, so that all names made from the prefix are new in
    the module of the call graph.
    """
    names = {name.lstrip("%$_") for name, _ in call_graph.declared_names() if wanted in name}
    stem, number = wanted, 1
    while any(name.startswith(stem) for name in names):
        number += 1
        stem = f"{wanted}{number}"
    return stem


def split_declarations(body: list[Statement]) -> tuple[list[Statement], list[Statement]]:
    """Return (the declarations that a flat body begins with, the rest)."""
    declaring = (RegisterDeclaration, Variable)
    start = next((n for n, s in enumerate(body) if not isinstance(s, declaring)), len(body))
    return body[:start], body[start:]


def call_of_copy(call: Instruction, copies: Mapping[str, str]) -> Instruction:
    """Return ``call``, redirected to the copy of its callee if ``copies`` (by name) has one."""
    target = callee(call)
    copy = copies.get(target.name) if isinstance(target, Symbol) else None
    if copy is None:
        return call
    at = 1 if isinstance(call.operands[0], Tuple) else 0
    return replace(call, operands=(*call.operands[:at], Symbol(copy), *call.operands[at + 1 :]))


def map_functions(module: Module, change: Callable[[Function], Function]) -> Module:
    """Return ``module`` with ``change`` applied to its functions, itself if none changed."""
    items = [change(item) if isinstance(item, Function) else item for item in module.items]
    if all(new is old for new, old in zip(items, module.items, strict=True)):
        return module
    return Module(module.version, module.target, module.address_size, items)
