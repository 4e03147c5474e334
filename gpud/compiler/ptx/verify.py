"""Structural checks of a PTX tree that the grammar does not express.

Problem. An undeclared name, or an instruction with a missing operand, would otherwise surface as a
wrong program or as an internal error in a pass far from its cause.

Approach. One walk with a table of declared names per scope, over all input PTX: NVRTC's output may
contain the caller's inline assembly.

Properties.
    declared: every register, label, variable and function that is used has a visible declaration;
    distinct: no name is declared twice in one scope;
    counted: known instructions have a legal number of operands;
    addressed: they have addresses where they take them, and nowhere else;
    fitting: a call passes what its function or prototype declares: as many results and arguments,
        arrays of the same sizes for arrays, scalars of the same sizes for scalars.

Types are not checked here: ptxas and the CPU device's lowering do that.

Source: PTX ISA 9.0, sections 4.4, 5.2, 7.1 and the syntax lines of chapter 9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NoReturn

from gpud.compiler.analysis.effects import callee
from gpud.compiler.analysis.signatures import call_parts, fits
from gpud.compiler.ptx.model import (
    Address,
    BranchTargets,
    CallPrototype,
    CallTargets,
    Function,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    RegisterDeclaration,
    Scope,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
)
from gpud.compiler.ptx.printer import print_instruction, print_statement
from gpud.errors import PTXSyntaxError

__all__ = ["verify"]

_PREDEFINED: Final = frozenset({"_", "WARP_SZ"})

# Least and greatest number of operands by base opcode; other opcodes are not checked.
_COUNTS: Final[dict[str, tuple[int, int]]] = {
    name: counts
    for counts, names in {
        (0, 0): "ret exit trap brkpt membar",
        (1, 1): "bra activemask nanosleep pmevent",
        (1, 4): "call",
        (0, 5): "bar barrier",
        (2, 2): "mov not cnot abs neg sqrt rcp rsqrt ex2 lg2 sin cos tanh testp bfind brev clz"
        " popc cvta isspacep brx",
        (2, 3): "ld ldu st vote",
        (2, 4): "cvt red",
        (3, 3): "add sub addc subc mul mul24 div rem and or xor shl shr copysign bmsk szext"
        " match redux",
        (3, 4): "min max setp set",
        (3, 5): "atom",
        (4, 4): "mad madc mad24 fma sad selp slct shf bfe prmt dp4a dp2a fns",
        (4, 5): "shfl",
        (5, 5): "bfi",
        (5, 6): "lop3",
    }.items()
    for name in names.split()
}
_BARRIERS: Final = {"sync": (1, 2), "arrive": (2, 2), "red": (3, 4), "warp": (1, 1)}
"""Number of operands of ``bar`` and ``barrier``, by modifier."""
_ADDRESSES: Final = {"ld": (1,), "ldu": (1,), "st": (0, 2), "atom": (1,), "red": (0, 2)}
"""Operands that are addresses: the first must be one, a second can; there are no others."""
_ANY_COUNT: Final = (0, 1 << 16)
_JUMPS: Final = {"bra": "label", "brx": "list"}
"""What the last operand names, by opcode."""
_Shape = tuple[str | type, ...]
_USUAL_REGISTERS: Final = 4
"""Registers for a statement: hardly any program has more, most have one."""


def verify(module: Module) -> None:
    """Check ``module``.

    Raises:
        PTXSyntaxError: the first problem found, with its line and statement.
    """
    top = _Names(None)
    defined: set[str] = set()
    for item in module.items:
        if isinstance(item, Variable):
            top.add(item.name, "variable", item)
        elif isinstance(item, Function):
            if item.body is not None and item.name in defined:
                _fail(f"function {item.name!r} is defined twice", item.line)
            if item.body is not None:
                defined.add(item.name)
            top.kinds.setdefault(item.name, "function")
            top.declared.setdefault(item.name, item)
    for item in module.items:
        if isinstance(item, Variable):
            _initial(item.init, top, item)
        elif isinstance(item, Function) and item.body is not None:
            names = _Names(top, room=len(item.body) * _USUAL_REGISTERS)
            for parameter in (*item.returns, *item.parameters):
                if parameter.name != "_":
                    kind = "register" if parameter.space == "reg" else "variable"
                    names.add(parameter.name, kind, item)
            _body(item.body, names)


class _Names:
    """The names that one scope declares, with their kinds: ``register``, ``label``...

    ``spelled`` are names of `ranges` that are written out: a look-up is cheaper than taking a name
    apart. There are at most ``room`` of them, as a program may declare more than it has bytes.
    ``checked`` has the identities of operands and guards that are right, ``shapes`` the opcodes
    with kinds of operands that are.
    """

    __slots__ = ("checked", "declared", "kinds", "outer", "ranges", "room", "shapes", "spelled")

    def __init__(self, outer: _Names | None, room: int = 0) -> None:
        self.kinds: dict[str, str] = {}
        self.ranges: dict[str, int] = {}
        self.spelled: set[str] = set()
        self.room = room
        self.outer = outer
        self.checked: set[int] = set()
        self.shapes: set[_Shape] = set() if outer is None else outer.shapes
        self.declared: dict[str, Function | CallPrototype | Variable] = {}

    def add(self, name: str, kind: str, where: Statement | Function) -> None:
        if name in self.kinds:
            _fail(f"{name!r} is declared twice in one scope", where.line, where)
        if kind == "register" and self._numbered(name):
            _fail(f"{name!r} is declared twice in one scope", where.line, where)
        self.kinds[name] = kind
        self.spelled.discard(name)

    def add_range(self, declared: RegisterDeclaration) -> None:
        if declared.name in self.ranges:
            _fail(f"'{declared.name}<n>' is declared twice in one scope", declared.line, declared)
        name, count = declared.name, declared.count or 0
        self.ranges[name] = count
        if count <= self.room:
            self.room -= count
            self.spelled.update([f"{name}{i}" for i in range(count)])
            self.spelled.difference_update(self.kinds)

    def find(self, name: str) -> str | None:
        """Return the kind of ``name`` in this scope or those around it, None if not declared."""
        scope: _Names | None = self
        while scope is not None:
            kind = scope.kinds.get(name)
            if kind is not None:
                return kind
            if name in scope.spelled or scope._numbered(name):
                return "register"
            scope = scope.outer
        return None

    def declaration(self, name: str) -> Function | CallPrototype | Variable | None:
        """Return the function, prototype or ``.param`` variable ``name`` of this scope."""
        scope: _Names | None = self
        while scope is not None:
            if name in scope.kinds:
                return scope.declared.get(name)
            scope = scope.outer
        return None

    def _numbered(self, name: str) -> bool:
        """Return whether a ``prefix<n>`` declaration of this scope covers ``name``."""
        digits = len(name) - len(name.rstrip("0123456789")) if self.ranges else 0
        for split in range(len(name) - digits, len(name)):
            count = self.ranges.get(name[:split])
            number = name[split:]
            if count is not None and (number == "0" or number[0] != "0") and int(number) < count:
                return True
        return False


def _body(body: list[Statement], names: _Names) -> None:
    for statement in body:
        if type(statement) is Instruction:  # most are
            continue
        if isinstance(statement, (Label, BranchTargets, CallTargets, CallPrototype)):
            kind = "label" if isinstance(statement, Label) else "list"
            names.add(statement.name, kind, statement)
            if isinstance(statement, CallPrototype):
                names.declared[statement.name] = statement
    checked, shapes, spelled = names.checked, names.shapes, names.spelled
    for statement in body:
        if type(statement) is Instruction:
            operands, guard = statement.operands, statement.guard
            known = (statement.opcode.text, *map(type, operands)) in shapes
            if not known or (guard is not None and id(guard) not in checked):
                _instruction(statement, names)
                continue
            for operand in operands:
                if id(operand) not in checked:
                    if type(operand) is not Register or operand.name not in spelled:
                        _operand(operand, names, statement)
                    checked.add(id(operand))
        elif isinstance(statement, RegisterDeclaration):
            names.checked.clear()
            if statement.count is None:
                names.add(statement.name, "register", statement)
            else:
                names.add_range(statement)
        elif isinstance(statement, Variable):
            names.checked.clear()
            names.add(statement.name, "variable", statement)
            if statement.space == "param":
                names.declared[statement.name] = statement
            _initial(statement.init, names, statement)
        elif isinstance(statement, Scope):
            _body(statement.body, _Names(names))
        elif isinstance(statement, BranchTargets):
            _all_are("label", statement.targets, names, statement)
        elif isinstance(statement, CallTargets):
            _all_are("function", statement.targets, names, statement)


def _all_are(kind: str, targets: Iterable[str], names: _Names, where: Statement) -> None:
    for name in targets:
        if names.find(name) != kind:
            _fail(f"{name!r} is no {kind} in sight", where.line, where)


def _initial(value: InitialValue | None, names: _Names, where: Variable) -> None:
    if isinstance(value, tuple):
        for item in value:
            _initial(item, names, where)
    elif isinstance(value, Initializer) and names.find(value.name) not in ("variable", "function"):
        _fail(f"the initialiser's {value.name!r} is not declared", where.line, where)


def _instruction(instruction: Instruction, names: _Names) -> None:
    base, operands = instruction.opcode.base, instruction.operands
    low, high = _COUNTS.get(base, _ANY_COUNT)
    if base in ("bar", "barrier"):
        modifiers = [one for one in instruction.opcode.modifiers if one in _BARRIERS]
        low, high = _BARRIERS[modifiers[0]] if modifiers else (low, high)
        if instruction.opcode.has("cluster"):
            low, high = _ANY_COUNT
    if not low <= len(operands) <= high:
        wanted = f"{low}" if low == high else f"{low} to {high}"
        _fail(f"{base} takes {wanted} operands, not {len(operands)}", instruction.line, instruction)
    guard, checked = instruction.guard, names.checked
    if guard is not None and id(guard) not in checked:
        _operand(guard.register, names, instruction)
        checked.add(id(guard))
    for operand in operands:
        if id(operand) not in checked:
            _operand(operand, names, instruction)
            checked.add(id(operand))
    if base == "call":
        _call(instruction, names)
    elif base in _JUMPS:
        target = operands[-1]
        if not isinstance(target, Symbol):
            _fail(f"{base} needs a {_JUMPS[base]}", instruction.line, instruction)
        _all_are(_JUMPS[base], (target.name,), names, instruction)
    else:
        if base in _COUNTS:
            _addresses(instruction)
        names.shapes.add((instruction.opcode.text, *map(type, operands)))


def _addresses(ins: Instruction) -> None:
    """Check that addresses, and only these, stand where a known instruction takes them."""
    may = _ADDRESSES.get(ins.opcode.base, ())
    if may and not isinstance(ins.operands[may[0]], Address):
        _fail(f"operand {may[0] + 1} of {ins.opcode.base} is an address", ins.line, ins)
    for at, operand in enumerate(ins.operands):
        if at not in may and isinstance(operand, (Address, Tuple)):
            _fail(f"operand {at + 1} of {ins.opcode.base} is no address or list", ins.line, ins)


def _call(ins: Instruction, names: _Names) -> None:
    """Check a call of a function by name, or by a prototype."""
    if not any(isinstance(one, (Symbol, Register)) for one in ins.operands[:2]):
        _fail("call needs a function", ins.line, ins)
    named = callee(ins)
    if not isinstance(named, Symbol):
        named = ins.operands[-1]
    called = names.declaration(named.name) if isinstance(named, Symbol) else None
    if not isinstance(called, (Function, CallPrototype)):
        return
    results, arguments = call_parts(ins)
    variables = {
        operand.name: variable
        for operand in (*results, *arguments)
        if isinstance(operand, Symbol)
        and isinstance(variable := names.declaration(operand.name), Variable)
    }
    if not fits(called, ins, variables):
        _fail(
            f"the call does not pass what {called.name!r} declares: its results and parameters, "
            "arrays and scalars of the same sizes",
            ins.line,
            ins,
        )


def _operand(operand: Operand, names: _Names, where: Instruction) -> None:
    if type(operand) is Register:  # most are
        name = operand.name
        if names.find(name) != "register" and not _is_element(name, names):
            _fail(f"register {name!r} is not declared", where.line, where)
        return
    if type(operand) is Immediate:
        return
    match operand:
        case Symbol(name):
            if name not in _PREDEFINED and names.find(name) is None:
                _fail(f"{name!r} is not declared", where.line, where)
        case Address(base, _):
            if base is not None:
                _operand(base, names, where)
        case SymbolOffset(symbol, _):
            _operand(symbol, names, where)
        case Not(register):
            _operand(register, names, where)
        case Pair(first, second):
            _operand(first, names, where)
            _operand(second, names, where)
        case Vector(items) | Tuple(items):
            for item in items:
                _operand(item, names, where)
        case _:
            pass


def _is_element(name: str, names: _Names) -> bool:
    vector, dot, _ = name.partition(".")
    return bool(dot) and names.find(vector) == "register"


def _fail(problem: str, line: int, where: Statement | Function | None = None) -> NoReturn:
    text: str | None = None
    if isinstance(where, Instruction):
        text = print_instruction(where)
    elif where is not None and not isinstance(where, (Function, Scope)):
        text = print_statement(where).strip()
    raise PTXSyntaxError(problem, line=line or None, text=text)
