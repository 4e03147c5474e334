"""How each PTX register is stored in generated code.

A register is an integer of its declared width, with two exceptions that give LLVM more information:
one that the program computes with as ``f32`` or ``f64`` is a float (NVRTC 13 declares those as
``.b32``), and one that is known to hold addresses is a ``ptr``, so that address arithmetic becomes
``getelementptr`` on a base that LLVM can reason about.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpud.compiler.analysis.effects import is_call, read, state_space, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.ir.thread import LLVM_TYPE

__all__ = ["INTEGER_BITS", "WORD_BITS", "declared_types", "pointer_base", "register_storage"]

INTEGER_BITS = {f"{kind}{bits}": bits for kind in "sub" for bits in (16, 32, 64)}
"""Width by integer or bit type, of the types that a register can have."""

WORD_BITS = {type_: bits for type_, bits in INTEGER_BITS.items() if bits >= 32}
"""`INTEGER_BITS` of the types that addresses and indices are computed in."""

_FLOATS = {"f32": "float", "f64": "double"}
_WIDTH = {"float": 32, "double": 64}


def declared_types(body: Iterable[ptx.Statement]) -> dict[str, str]:
    """Return the PTX types of registers by name, from the declarations of a flat body."""
    types: dict[str, str] = {}
    for statement in body:
        if isinstance(statement, ptx.RegisterDeclaration):
            if statement.count is None:
                types[statement.name] = statement.type
            else:
                for index in range(statement.count):
                    types[f"{statement.name}{index}"] = statement.type
    return types


def register_storage(body: Iterable[ptx.Statement]) -> dict[str, str]:
    """Return the LLVM type of each declared register's slot (and the carry flag's)."""
    body = list(body)
    storage = {name: LLVM_TYPE[type_] for name, type_ in declared_types(body).items()}
    for name, type_ in storage.items():
        if type_ in ("half", "bfloat"):
            storage[name] = "i16"
    floats: dict[str, str] = {}
    for ins in body:
        if not isinstance(ins, ptx.Instruction) or is_call(ins):
            continue
        if not any(m in _FLOATS for m in ins.opcode.modifiers):
            continue
        if ins.opcode.base in ("ld", "st", "mov", "selp", "atom", "red", "gpud", "mma", "wmma"):
            continue  # these move bits; instructions that compute with them decide
        to, of = _float_types(ins)
        if to is not None:
            for register in written(ins):
                floats[register.name] = to
        if of is not None:
            for register in read(ins):
                floats.setdefault(register.name, of)
    for name, type_ in floats.items():
        if storage.get(name) == f"i{_WIDTH[type_]}":
            storage[name] = type_
    for name in _pointers([s for s in body if isinstance(s, ptx.Instruction)]):
        if storage.get(name) == "i64":
            storage[name] = "ptr"
    storage["%CC.CF"] = "i1"
    return storage


def _float_types(ins: ptx.Instruction) -> tuple[str | None, str | None]:
    """Return (type of the result, type of the sources), each None unless it is f32 or f64."""
    modifiers = ins.opcode.modifiers
    types = [m for m in modifiers if m in LLVM_TYPE]
    if not types:
        return None, None
    if ins.opcode.base in ("cvt", "set", "slct"):
        return _FLOATS.get(types[0]), _FLOATS.get(types[-1])
    if ins.opcode.base in ("setp", "testp"):
        return None, _FLOATS.get(types[-1])
    return _FLOATS.get(types[-1]), _FLOATS.get(types[-1])


# -- pointers ----------------------------------------------------------------------------------

_SURE, _MAYBE, _NEVER = 2, 1, 0
_ADDRESS_SPACES = ("global", "generic", "const", "local")


def _pointers(body: list[ptx.Instruction]) -> set[str]:
    """Return 64-bit registers that hold addresses of memory other than shared.

    A register qualifies if it is used as an address, directly or through address arithmetic, and
    everything that defines it can be written as pointer arithmetic (`pointer_base`).
    """
    definitions: dict[str, list[ptx.Instruction]] = {}
    wanted: list[str] = []
    for ins in body:
        for register in written(ins):
            definitions.setdefault(register.name, []).append(ins)
        if state_space(ins.opcode) in _ADDRESS_SPACES:
            for operand in ins.operands:
                if isinstance(operand, ptx.Address) and isinstance(operand.base, ptx.Register):
                    wanted.append(operand.base.name)
    likely = _likelihood(definitions)
    pointers: set[str] = set()
    while wanted:
        name = wanted.pop()
        if name in pointers or not definitions.get(name):
            continue
        bases = [_base(ins, likely) for ins in definitions[name]]
        if any(base is None for base in bases):
            continue
        pointers.add(name)
        wanted.extend(b.name for b in bases if isinstance(b, ptx.Register))
    return pointers


def _likelihood(definitions: dict[str, list[ptx.Instruction]]) -> dict[str, int]:
    """Return how likely it is that each register holds an address, from its definitions."""
    likely: dict[str, int] = {}
    changed = True
    while changed:
        changed = False
        for name, made_by in definitions.items():
            rank = max(_rank(ins, likely) for ins in made_by)
            if rank != likely.get(name, _NEVER):
                likely[name] = rank
                changed = True
    return likely


def _rank(ins: ptx.Instruction, likely: dict[str, int]) -> int:
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    if base == "cvta":
        return _SURE
    if base == "ld" and modifiers[-1] in ("u64", "b64", "s64"):
        return _MAYBE
    if base in ("mov", "add", "sub", "selp", "gpud"):
        ranks = [likely.get(r.name, _NEVER) for r in read(ins)]
        if base == "mov" and any(isinstance(o, ptx.Symbol) for o in ins.operands[1:]):
            ranks.append(_MAYBE)
        return max(ranks, default=_NEVER)
    if base == "mad" and isinstance(ins.operands[-1], ptx.Register):
        return likely.get(ins.operands[-1].name, _NEVER)
    return _NEVER


def _base(ins: ptx.Instruction, likely: dict[str, int]) -> ptx.Operand | None:
    """Return the operand that the result of ``ins`` points into, if it is address arithmetic."""
    base, modifiers = ins.opcode.base, ins.opcode.modifiers
    if base in ("ld", "cvta"):
        return ins.operands[1]
    if base == "gpud" and modifiers[0] == "move":
        return ins.operands[1]
    if base == "mov" and not isinstance(ins.operands[0], ptx.Vector):
        return None if isinstance(ins.operands[1], ptx.Vector) else ins.operands[1]
    if base in ("add", "sub") and len(modifiers) == 1 and modifiers[0] in ("s64", "u64", "b64"):
        first, second = ins.operands[1:]
        if base == "sub" or isinstance(second, ptx.Immediate):
            return first
        ranks = [
            likely.get(o.name, _NEVER) if isinstance(o, ptx.Register) else _NEVER
            for o in (first, second)
        ]
        return second if ranks[1] > ranks[0] else first
    if base == "mad" and (modifiers[0] == "wide" or modifiers == ("lo", "s64")):
        return ins.operands[3]
    return None


def pointer_base(ins: ptx.Instruction, storage: Mapping[str, str]) -> int | None:
    """Return which operand of an address computation is the base pointer, None if none is."""
    candidates = {"add": (1, 2), "sub": (1,), "mad": (3,), "mov": (1,), "cvta": (1,)}
    for position in candidates.get(ins.opcode.base, ()):
        operand = ins.operands[position]
        if isinstance(operand, ptx.Register) and storage.get(operand.name) == "ptr":
            return position
    return None
