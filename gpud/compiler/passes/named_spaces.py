"""Names the state space of accesses whose address says it, so that no generic address is needed.

Problem: ``ldmatrix`` and ``stmatrix`` through a generic address, and ``ld.u32 %r, [tile]`` of a
variable in shared memory, are legal PTX. Every later pass would have to know that such an address
is not what it looks like.

Approach: each becomes what NVIDIA's assembler makes of it. A matrix lies in shared memory, or the
instruction has no meaning: the address is converted to one there. An access that names a variable
in shared or local memory gets that space.

Source: PTX ISA 9.0, "ldmatrix", "stmatrix" and section 6.4.1.2; the code of ptxas 13.0 for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpud.compiler.analysis.effects import state_space
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Instruction,
    Module,
    Opcode,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Variable,
    opcode,
)

__all__ = ["name_spaces"]

_MATRICES = frozenset(("ldmatrix", "stmatrix"))
_ACCESSES = frozenset(("ld", "st", "atom", "red")) | _MATRICES
_BEFORE_SPACE = frozenset(
    ("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio", "sc",
     "cta", "cluster", "gpu", "sys")
)  # fmt: skip
_SPACES = ("shared", "local")
_CONVERT = opcode("cvta.to.shared.u64")


def name_spaces(module: Module) -> Module:
    """Return a flat module in which accesses with a known space name it; the same if all do."""
    known = {
        item.name: item.space
        for item in module.items
        if isinstance(item, Variable) and item.space in _SPACES
    }
    items = [
        _named(item, known) if isinstance(item, Function) and item.body is not None else item
        for item in module.items
    ]
    changed = any(new is not old for new, old in zip(items, module.items, strict=True))
    return replace(module, items=items) if changed else module


def _named(function: Function, known: Mapping[str, str]) -> Function:
    body = function.body or []
    found = [
        index
        for index, statement in enumerate(body)
        if type(statement) is Instruction
        and statement.opcode.base in _ACCESSES
        and state_space(statement.opcode) == "generic"
    ]
    if not found:
        return function
    own = {one.name: one.space for one in body if type(one) is Variable}
    spaces = {**known, **dict.fromkeys((p.name for p in function.parameters), ""), **own}
    shared = Register(_free_name(body))
    made: list[Statement] = []
    done, converts = 0, False
    for index in found:
        ins = body[index]
        assert isinstance(ins, Instruction)
        changed = _changed(ins, spaces, shared)
        if changed is not None:
            made += [*body[done:index], *changed]
            converts = converts or len(changed) > 1
            done = index + 1
    if not done:
        return function
    made += body[done:]
    if converts:
        made.insert(0, RegisterDeclaration("b64", shared.name))
    return replace(function, body=made)


def _changed(
    ins: Instruction, spaces: Mapping[str, str], shared: Register
) -> list[Instruction] | None:
    """Return what an access to generic memory becomes; None if its space is not known."""
    index = next((n for n, one in enumerate(ins.operands) if isinstance(one, Address)), None)
    if index is None:
        return None
    address = ins.operands[index]
    assert isinstance(address, Address)
    matrix = ins.opcode.base in _MATRICES
    if isinstance(address.base, Symbol):
        space = spaces.get(address.base.name, "")
        if space not in _SPACES or (matrix and space != "shared"):
            return None
        return [replace(ins, opcode=_with_space(ins.opcode, space))]
    if not matrix or address.base is None:
        return None
    operands = list(ins.operands)
    operands[index] = Address(shared, address.offset)
    return [
        Instruction(_CONVERT, (shared, address.base), ins.guard, ins.line),
        replace(ins, opcode=_with_space(ins.opcode, "shared"), operands=tuple(operands)),
    ]


def _with_space(op: Opcode, space: str) -> Opcode:
    parts = op.text.split(".")
    if op.base in _MATRICES:
        at = len(parts) - 1
    else:
        at = 1
        while at < len(parts) and parts[at] in _BEFORE_SPACE:
            at += 1
    return opcode(".".join((*parts[:at], space, *parts[at:])), op.used_bytes_mask)


def _free_name(body: list[Statement]) -> str:
    declared = {one.name for one in body if type(one) is RegisterDeclaration}
    name = "%to_shared"
    while name in declared:
        name += "_"
    return name
