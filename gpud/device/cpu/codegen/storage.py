"""How each PTX register is stored in generated code.

A register is an integer of its declared width, with two exceptions that let LLVM see what the
program means: one that the program computes with as ``f32`` or ``f64`` is a float (NVRTC 13
declares those as ``.b32``), and one that holds addresses is a ``ptr`` where that is known, so that
address arithmetic becomes ``getelementptr`` on a base that LLVM can reason about.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpud.compiler.analysis.effects import is_call, read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.thread import LLVM_TYPE

__all__ = ["declared_types", "register_storage"]

_FLOATS = {"f32": "float", "f64": "double"}
_WIDTH = {"float": 32, "double": 64}


def declared_types(body: Iterable[ptx.Statement]) -> dict[str, str]:
    """PTX type by register name, from the declarations of a flat body."""
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
    """LLVM type of the slot of every declared register (and of the carry flag)."""
    body = list(body)
    storage = {name: LLVM_TYPE[type_] for name, type_ in declared_types(body).items()}
    for name, type_ in storage.items():
        if type_ in ("half", "bfloat"):
            storage[name] = "i16"
    floats: dict[str, str] = {}
    for ins in body:
        if not isinstance(ins, ptx.Instruction) or is_call(ins):
            continue
        modifiers = ins.opcode.modifiers
        if not modifiers or modifiers[-1] not in _FLOATS and modifiers[-2:-1] != ("f32",):
            if not any(m in _FLOATS for m in modifiers):
                continue
        if ins.opcode.base in ("ld", "st", "mov", "selp", "atom", "red", "gpud"):
            continue  # these move bits; what computes on them decides
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
    storage["%CC.CF"] = "i1"
    return storage


def _float_types(ins: ptx.Instruction) -> tuple[str | None, str | None]:
    """(type of the result, type of the sources) where they are f32 or f64."""
    modifiers = ins.opcode.modifiers
    types = [m for m in modifiers if m in LLVM_TYPE]
    if not types:
        return None, None
    if ins.opcode.base in ("cvt", "set", "slct"):
        return _FLOATS.get(types[0]), _FLOATS.get(types[-1])
    if ins.opcode.base in ("setp", "testp"):
        return None, _FLOATS.get(types[-1])
    return _FLOATS.get(types[-1]), _FLOATS.get(types[-1])
