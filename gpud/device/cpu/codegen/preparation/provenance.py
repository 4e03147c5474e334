"""Infers which memory a bounds check's address points to, to choose the range of its quick test.

Problem: a legal address may lie in the arena, in the module's variables, in the program's heap, or,
if it is generic, in the thread's local or the block's shared memory. The quick test of a bounds
check compares with one range; if that is the wrong one, every access takes the slow path.

Approach: an address starts as a value with a known range: a kernel parameter (the arena), a symbol,
a result of ``malloc``. Arithmetic stays in that range. So each register gets an *origin* from all
of its definitions, and a function parameter from all calls. A bounds check whose register has an
origin tests that range only. Others test the ranges that are legal for the program, the likeliest
first: the module's variables if the address of a function is loaded there, since C++ keeps tables
of virtual functions there, otherwise the arena.

Terms: origins are ``arena``, ``data`` (the module's variables), ``heap``, ``shared``, ``static``
(the part of shared memory whose size is known at compile time), ``local`` (of the current
function), ``thread`` (local memory of the kernel itself) and ``param``. They follow the space in a
bounds check's opcode, each prefixed with ``in_``.

Properties:
* every origin of a bounds check is a range in which its accesses are legal, so a wrong guess never
  admits an illegal access: an address in none of the ranges is checked exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from gpud.compiler.abi.reserved_names import GRID_SYNC, HEAP
from gpud.compiler.analysis.effects import callee, is_call, state_space, written
from gpud.compiler.analysis.signatures import call_parts
from gpud.compiler.instrumentation import bounds_checks
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import is_dynamic_shared
from gpud.device.cpu.codegen.preparation.inliner import possible_callees

__all__ = ["MAX_ORIGINS", "allowed", "infer_origins", "opcode", "origins_of"]

MAX_ORIGINS = 3
"""Number of ranges that the code of a bounds check tests before it calls the exact check."""

_MARK = "in_"
_NONE, _UNKNOWN = "", "?"
_WINDOWS = {"local": "thread", "shared": "shared", "shared::cluster": "shared", "param": "param"}
_NARROW = ("shared", "static")
"""Origins whose addresses may have 32 bits."""
_MAX_ITERATIONS = 50
_CHECKED = ("global", "generic", "shared")
_OF_SPACE = {"global": "data", "const": "data", "shared": "shared", "local": "local",
             "param": "param"}  # fmt: skip
_WEAK = ("", "arena")
"""Origins that yield to the other operand's in a sum: an integer parameter looks like an address,
but an offset from an address has the origin of that address."""


def allowed(check: bounds_checks.BoundsCheck) -> tuple[str, ...]:
    """Return the origins that a program's check allows for its accesses, the likeliest first."""
    names = {variable.name for variable in check.variables}
    origins = ["arena"]
    if HEAP in names:
        origins.append("heap")
    windows = [_WINDOWS[window] for window in check.windows]
    if "thread" in windows:
        origins.append("thread")
    if check.table or names - {GRID_SYNC, HEAP}:
        origins.append("data")
    return (*origins, *(origin for origin in windows if origin != "thread"))


def origins_of(ins: ptx.Instruction) -> tuple[str, ...]:
    """Decode the origins in a bounds check's opcode."""
    return tuple(
        modifier.removeprefix(_MARK)
        for modifier in ins.opcode.modifiers
        if modifier.startswith(_MARK)
    )


def opcode(space: str, origins: Iterable[str]) -> ptx.Opcode:
    """Build the opcode of a bounds check of accesses to ``space``."""
    return ptx.opcode(".".join((f"gpud.bounds.{space}", *(_MARK + origin for origin in origins))))


def infer_origins(module: ptx.Module, functions: Sequence[ptx.Function]) -> list[ptx.Function]:
    """Add the known origins to the bounds checks of ``functions``, whose bodies are flat.

    Args:
        module: the program.
        functions: a kernel and all functions that it may call.
    """
    if not any(_is_open(s) for function in functions for s in function.body or ()):
        return list(functions)
    named = {function.name: function for function in functions}
    inferred = {name: _Origins(module, function) for name, function in named.items()}
    work = dict.fromkeys(named)
    while work:
        name = next(iter(work))
        del work[name]
        inferred[name].solve()
        for target, given in inferred[name].calls(named):
            if inferred[target].join_parameters(given):
                work[target] = None
    return [_with_inferred_origins(function, inferred[function.name]) for function in functions]


def _with_inferred_origins(function: ptx.Function, origins: _Origins) -> ptx.Function:
    changed = [origins.with_inferred_origin(s) if _is_open(s) else s for s in function.body or []]  # type: ignore[arg-type]
    return replace(function, body=changed)


def _is_open(statement: ptx.Statement) -> bool:
    """Return whether this is a bounds check whose origin may be inferred."""
    if not isinstance(statement, ptx.Instruction) or statement.opcode.base != "gpud":
        return False
    what, *space = statement.opcode.modifiers
    return what == "bounds" and space[0] in _CHECKED


class _Origins:
    """The origins of a function's registers: the least fixed point over their definitions."""

    def __init__(self, module: ptx.Module, function: ptx.Function) -> None:
        self._is_entry = function.kind == "entry"
        self._symbols: dict[str, str] = {}
        variables = [item for item in module.items if isinstance(item, ptx.Variable)]
        variables += [s for s in function.body or () if isinstance(s, ptx.Variable)]
        for variable in variables:
            self._symbols[variable.name] = _OF_SPACE.get(variable.space, _UNKNOWN)
            if variable.space == "param":
                self._symbols[variable.name] = "local"  # a struct that a call passes
            if variable.space == "shared" and not is_dynamic_shared(variable):
                self._symbols[variable.name] = "static"
        for parameter in (*function.parameters, *function.returns):
            self._symbols[parameter.name] = "param" if self._is_entry else _UNKNOWN
        self._made: dict[str, list[ptx.Instruction]] = {}
        self._calls: list[ptx.Instruction] = []
        self._tables: set[str] = set()
        for statement in function.body or ():
            if isinstance(statement, ptx.Instruction):
                for register in written(statement):
                    self._made.setdefault(register.name, []).append(statement)
                if is_call(statement):
                    self._calls.append(statement)
        called = {callee(ins) for ins in self._calls}
        for statement in function.body or ():
            if isinstance(statement, ptx.Instruction) and statement.opcode.base == "ld":
                target, address = statement.operands[:2]
                if isinstance(address, ptx.Address) and isinstance(address.base, ptx.Register):
                    if isinstance(target, ptx.Register) and target in called:
                        self._tables.add(address.base.name)
        self._origins: dict[str, str] = {}
        self._parameters = [
            f"%P.{one.name}" if one.space == "param" else one.name for one in function.parameters
        ]

    def solve(self) -> None:
        """Infer the origins of all registers, given those of the parameters."""
        for _ in range(_MAX_ITERATIONS):  # stopping before the fixed point does no harm
            changed = False
            for name, definitions in self._made.items():
                origin = _joined(self._result_origin(ins) for ins in definitions)
                if name in self._parameters:
                    origin = _joined((origin, self._origins.get(name, _NONE)))
                if origin != self._origins.get(name, _NONE):
                    self._origins[name] = origin
                    changed = True
            if not changed:
                return

    def join_parameters(self, given: Sequence[str]) -> bool:
        """Join the arguments of a call into the parameters' origins; return whether one changed."""
        changed = False
        for name, origin in zip(self._parameters, given, strict=False):
            joined = _joined((origin, self._origins.get(name, _NONE)))
            changed = changed or joined != self._origins.get(name, _NONE)
            self._origins[name] = joined
        return changed

    def calls(self, functions: Mapping[str, ptx.Function]) -> Iterator[tuple[str, list[str]]]:
        """Yield (function, origins of the arguments) for every call of one of ``functions``."""
        # The caller's local memory is neither the kernel's nor the callee's frame.
        own = "thread" if self._is_entry else _UNKNOWN
        for ins in self._calls:
            origins = [self._of(operand) for operand in call_parts(ins)[1]]
            for name in possible_callees(ins, functions):
                yield name, [own if origin == "local" else origin for origin in origins]

    def with_inferred_origin(self, ins: ptx.Instruction) -> ptx.Instruction:
        """Return a check with the origin of its register only, if that is known and allowed."""
        address, may = ins.operands[0], origins_of(ins)
        assert isinstance(address, ptx.Address)
        origin = _UNKNOWN if address.base is None else self._of(address.base)
        space = ins.opcode.modifiers[1]
        if origin == "local" and not self._is_entry and "thread" in may:
            may = (*may, "local")
        if origin == "local" and self._is_entry:
            origin = "thread"
        origins: tuple[str, ...] = ()
        if origin == "static" and (space == "shared" or "shared" in may):
            origins = ("static", "shared")
        elif origin in may or (origin == "data" and space in ("global", "generic")):
            origins = (origin,)
        if not origins:
            if not isinstance(address.base, ptx.Register) or "data" not in may:
                return ins
            if address.base.name not in self._tables:
                return ins
            origins = ("data", *(origin for origin in may if origin != "data"))
        return ptx.Instruction(opcode(space, origins), ins.operands, ins.guard, ins.line)

    def _of(self, operand: ptx.Operand) -> str:
        match operand:
            case ptx.Register(name):
                return self._origins.get(name, _NONE)
            case ptx.Symbol(name) | ptx.SymbolOffset(ptx.Symbol(name)):
                return self._symbols.get(name, _UNKNOWN)
        return _NONE

    def _result_origin(self, ins: ptx.Instruction) -> str:
        """Return the origin of the result of ``ins``; `_NONE` for numbers."""
        base, modifiers, operands = ins.opcode.base, ins.opcode.modifiers, ins.operands
        if is_call(ins):
            target = callee(ins)
            return "heap" if target == ptx.Symbol("malloc") else _UNKNOWN
        if base == "ld":
            if modifiers[-1] not in ("u64", "s64", "b64"):
                return _NONE
            return "arena" if state_space(ins.opcode) == "param" and self._is_entry else _UNKNOWN
        if base == "cvta" and modifiers[0] not in ("to", "global"):
            origin = _OF_SPACE.get(modifiers[0].partition("::")[0], _UNKNOWN)
            return "static" if origin == "shared" and self._of(operands[1]) == "static" else origin
        if base == "cvt":
            origin = self._of(operands[1])
            return origin if origin in _NARROW else _NONE
        if base == "mov" and isinstance(operands[1], ptx.Vector):
            return _UNKNOWN
        if base in ("mov", "cvta") or (base == "gpud" and modifiers[0] == "move"):
            return self._of(operands[1])
        if base in ("add", "or"):
            return _sum_origin(self._of(operands[1]), self._of(operands[2]))
        if base in ("sub", "and", "xor"):
            return self._of(operands[1])
        if base == "mad":
            return self._of(operands[3])
        if base == "selp":
            return _joined(self._of(operand) for operand in operands[1:3])
        return _NONE


def _sum_origin(first: str, second: str) -> str:
    """Return the origin of a sum, of which one operand is an address and the other an offset."""
    if first in _WEAK or second in _WEAK:
        return max(first, second, key=lambda origin: (origin not in _WEAK, origin != _NONE))
    return first if first == second else _UNKNOWN


def _joined(origins: Iterable[str]) -> str:
    """Return the origin of a value that may come from any of several; null pointers have none."""
    joined = {origin for origin in origins if origin != _NONE}
    return joined.pop() if len(joined) == 1 else _UNKNOWN if joined else _NONE
