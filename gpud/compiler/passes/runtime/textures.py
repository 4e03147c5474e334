"""The texture pass: fetches from texture and surface objects become calls of functions.

Problem: a texture unit's accesses cannot be checked, and the CPU device has none.

Approach: before a module is flattened, each ``tex``, ``suld``, ``sust`` and ``txq`` of a
handle in a register becomes a call of a function of
`gpud.compiler.passes.runtime.texture_functions`, which are added to the module, or a load at the
address that such a function returns. All accesses are then ordinary ones.

Properties:
* a module without such instructions is returned as the same object;
* what has no function (layers, cubes, gathers, samplers of their own, texture references,
  ``sured``) is left in place, and its kernel is refused with reason ``texture``.

Source: PTX ISA 9.0, sections 9.7.10 (texture) and 9.7.11 (surface).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from gpud.compiler.passes.runtime.texture_functions import ELEMENT, PREFIX, texture_functions
from gpud.compiler.ptx.model import (
    Address,
    Directive,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Module,
    Operand,
    RawOperand,
    Register,
    RegisterDeclaration,
    Scope,
    Statement,
    Symbol,
    Tuple,
    Variable,
    Vector,
    immediate,
    opcode,
)
from gpud.errors import KernelRejected

__all__ = ["pass_textures"]

_BASES = frozenset(("tex", "suld", "sust", "txq"))
_DIMENSIONS = {"1d": 1, "2d": 2, "3d": 3}
_OUTSIDE = {"trap": 0, "clamp": 1, "zero": 2}
_SIZES = {"b8": 1, "b16": 2, "b32": 4, "b64": 8}
_FIELDS = {"width": 8, "height": 12, "depth": 16}
_FETCH = re.compile(r"\[\s*(%[\w$]+)\s*,\s*\{([^{}]*)\}\s*\]")
_PLAIN = re.compile(r"%[\w$]+|-?\d+")


def pass_textures(module: Module) -> Module:
    """Replace what texture and surface instructions do by calls.

    Args:
        module: as it was parsed; not changed.

    Raises:
        KernelRejected: the program defines a name of the functions; code ``reserved-name``.
    """
    if not any(_uses(one.body or ()) for one in module.functions()):
        return module
    for function in module.functions():
        if function.name.startswith(PREFIX):
            message = f"the program defines {function.name}, a name that gpud uses; rename it"
            raise KernelRejected("reserved-name", message, None, function.line or None)
    items: list[Function | Variable | Directive] = []
    used: set[str] = set()
    numbers = count()
    for item in module.items:
        if isinstance(item, Function) and item.body is not None and _uses(item.body):
            items.append(replace(item, body=_lowered(item.body, used, numbers)))
        else:
            items.append(item)
    used |= {ELEMENT} if used else set()
    needed = [one for one in texture_functions() if one.name in used]
    first = next(n for n, item in enumerate(items) if isinstance(item, Function))
    return replace(module, items=[*items[:first], *needed, *items[first:]])


def _uses(body: list[Statement] | tuple[()]) -> bool:
    return any(
        (isinstance(one, Instruction) and one.opcode.base in _BASES)
        or (isinstance(one, Scope) and _uses(one.body))
        for one in body
    )


def _lowered(body: list[Statement], used: set[str], numbers: Iterator[int]) -> list[Statement]:
    made: list[Statement] = []
    for statement in body:
        if isinstance(statement, Scope):
            made.append(replace(statement, body=_lowered(statement.body, used, numbers)))
        elif isinstance(statement, Instruction) and statement.opcode.base in _BASES:
            lowering = _Lowering(statement, used)
            scope = lowering.scope()
            if scope is None:
                made.append(statement)
                continue
            made += _guarded(statement.guard, scope, numbers, statement.line)
        else:
            made.append(statement)
    return made


def _guarded(
    guard: Guard | None, scope: Scope, numbers: Iterator[int], line: int
) -> list[Statement]:
    if guard is None:
        return [scope]
    skip = f"$gpud_texture_skip_{next(numbers)}"
    negated = replace(guard, negated=not guard.negated)
    return [Instruction(opcode("bra"), (Symbol(skip),), negated, line), scope, Label(skip, line)]


class _Lowering:
    """The lowering of one instruction."""

    def __init__(self, ins: Instruction, used: set[str]) -> None:
        self._ins = ins
        self._used = used
        self._body: list[Statement] = []

    def scope(self) -> Scope | None:
        """Return what stands for the instruction, without its guard; None: nothing does."""
        how = {
            "tex": self._fetch,
            "suld": self._surface,
            "sust": self._surface,
            "txq": self._query,
        }
        return Scope(self._body, self._ins.line) if how[self._ins.opcode.base]() else None

    def _do(self, text: str, *operands: Operand, guard: Guard | None = None) -> None:
        self._body.append(Instruction(opcode(text), operands, guard, self._ins.line))

    def _place(self, operand: Operand, dimensions: int) -> tuple[Register, list[Operand]] | None:
        """Return handle and coordinates of ``[handle, {x, y}]``; of four for three dimensions."""
        match = _FETCH.fullmatch(operand.text) if isinstance(operand, RawOperand) else None
        if match is None:
            return None
        texts = [text.strip() for text in match[2].split(",")]
        if len(texts) not in (dimensions, 4 if dimensions == 3 else dimensions):
            return None
        if not all(_PLAIN.fullmatch(text) for text in texts):
            return None
        coordinates: list[Operand] = [
            Register(text) if text[0] == "%" else Immediate(text, int(text)) for text in texts
        ]
        return Register(match[1]), coordinates[:dimensions]

    def _call(self, name: str, result: str, arguments: list[tuple[str, Operand]]) -> None:
        """Call a function with arguments of these types; a result of ``b8`` is 16 of them."""
        self._used.add(name)
        if result == "b8":
            self._body.append(Variable("param", "b8", "result", (16,), 16))
        else:
            self._body.append(Variable("param", result, "result"))
        for number, (type_, value) in enumerate(arguments):
            self._body.append(Variable("param", type_, f"argument{number}"))
            self._do(f"st.param.{type_}", Address(Symbol(f"argument{number}")), value)
        given = Tuple(tuple(Symbol(f"argument{number}") for number in range(len(arguments))))
        self._do("call.uni", Tuple((Symbol("result"),)), Symbol(name), given)

    # -- textures

    def _fetch(self) -> bool:
        ins = self._ins
        modifiers = list(ins.opcode.modifiers)
        if modifiers[0] in ("base", "level"):  # there is one level
            modifiers.pop(0)
        if len(modifiers) != 4 or modifiers[0] not in _DIMENSIONS or modifiers[1] != "v4":
            return False
        geometry, _, result, coordinate = modifiers
        place = self._place(ins.operands[1], _DIMENSIONS[geometry])
        if place is None or result not in ("f32", "s32", "u32"):
            return False
        if coordinate not in ("f32", "s32") or not isinstance(ins.operands[0], Vector):
            return False
        handle, coordinates = place
        type_ = "f32" if coordinate == "f32" else "b32"
        name = f"{PREFIX}{'' if coordinate == 'f32' else 'at_'}{geometry}"
        self._call(name, "b8", [("b64", handle), *((type_, one) for one in coordinates)])
        for number, target in enumerate(ins.operands[0].items):
            if target != Symbol("_"):
                self._do("ld.param.b32", target, Address(Symbol("result"), 4 * number))
        return True

    def _query(self) -> bool:
        ins = self._ins
        place = ins.operands[1]
        if len(ins.opcode.modifiers) != 2 or ins.opcode.modifiers[0] not in _FIELDS:
            return False
        if not isinstance(place, Address) or not isinstance(place.base, Register):
            return False
        at = Address(place.base, place.offset + _FIELDS[ins.opcode.modifiers[0]])
        self._do("ld.global.b32", ins.operands[0], at)
        return True

    # -- surfaces

    def _surface(self) -> bool:
        """``suld.b.GEOM{.vN}.TYPE.MODE d, [s, {..}]`` and ``sust.b...  [s, {..}], d``."""
        ins = self._ins
        modifiers = list(ins.opcode.modifiers)
        if len(modifiers) < 4 or modifiers[0] != "b" or modifiers[1] not in _DIMENSIONS:
            return False
        vector = modifiers[2] if modifiers[2] in ("v2", "v4") else ""
        rest = modifiers[3 if vector else 2 :]
        if len(rest) != 2 or rest[0] not in _SIZES or rest[1] not in _OUTSIDE:
            return False
        reads = ins.opcode.base == "suld"
        values, where = ins.operands if reads else reversed(ins.operands)
        place = self._place(where, _DIMENSIONS[modifiers[1]])
        if place is None or not isinstance(values, Vector):
            return False
        handle, coordinates = place
        size = _SIZES[rest[0]] * len(values.items)
        numbers = [*coordinates, immediate(0), immediate(0)][:3]
        numbers += [immediate(size), immediate(_OUTSIDE[rest[1]])]
        self._call(f"{PREFIX}surface", "b64", [("b64", handle), *(("b32", one) for one in numbers)])
        at, inside = Register("%gpud_at"), Register("%gpud_inside")
        self._body.insert(0, RegisterDeclaration("b64", at.name))
        self._body.insert(0, RegisterDeclaration("pred", inside.name))
        self._do("ld.param.b64", at, Address(Symbol("result")))
        self._do("setp.ne.s64", inside, at, immediate(0))
        what = f"global{f'.{vector}' if vector else ''}.{rest[0]}"
        value: Operand = values if vector else values.items[0]
        if reads:
            kind = "b64" if rest[0] == "b64" else "b16" if rest[0] in ("b8", "b16") else "b32"
            for one in values.items:
                self._do(f"mov.{kind}", one, immediate(0))
            self._do(f"ld.{what}", value, Address(at), guard=Guard(inside))
        else:
            self._do(f"st.{what}", Address(at), value, guard=Guard(inside))
        return True
