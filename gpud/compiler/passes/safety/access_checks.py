"""Lists the checks that a function's memory accesses need, in order and without omissions.

Problem: instructions name addresses in many ways (a register and an offset, a variable, a number,
a matrix with a stride in a register), and what is legal depends on the module. The code that merges
and moves checks should not have to deal with that.

Approach: every access becomes one or more `AccessCheck`s: bytes at a constant distance from a
64-bit register. If the address is in no such register, it is computed into one before the check,
and the access then uses that register. Accesses that always lie in one variable of the module need
none.

Properties:
* ``complete``: an access has no check only if `gpud.compiler.analysis.memory_accesses` says that it
  touches no checked memory, or if it provably lies in one of the module's variables;
* a check covers exactly the bytes of its access, and only if the access's guard holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpud.compiler.abi.reserved_names import GRID_SYNC, VARIABLES
from gpud.compiler.analysis.bodies import declarations
from gpud.compiler.analysis.data_layout import size_and_align, type_bytes
from gpud.compiler.analysis.effects import written
from gpud.compiler.analysis.memory_accesses import (
    ARITHMETIC,
    MemoryAccess,
    accesses,
    unsupported_access,
)
from gpud.compiler.instrumentation.bounds_checks import Member, Range
from gpud.compiler.ptx.model import (
    Address,
    Function,
    Guard,
    Immediate,
    Instruction,
    Operand,
    Register,
    RegisterDeclaration,
    Statement,
    Symbol,
    Variable,
    immediate,
    opcode,
)

__all__ = [
    "AccessCheck",
    "AllowedMemory",
    "Materializer",
    "RegisterWidths",
    "find_checks",
    "signed",
]

Materializer = Callable[[Register], list[Statement]]
"""Makes the statements that compute a value into a given register."""

_WORD = 1 << 64
_BLOCK = f"%{VARIABLES}"


def signed(value: int) -> int:
    """Return ``value`` modulo 2**64 as a signed number, the notation for address distances."""
    return (value + _WORD // 2) % _WORD - _WORD // 2


@dataclass(frozen=True, slots=True)
class AllowedMemory:
    """The memory besides the arena that is legal for the accesses of a module.

    ``windows`` are those to which the module makes generic addresses; ``parameters`` is the window
    of kernel parameters, for reads, if it makes such addresses. ``variables`` are the memory that
    it has in its own ways, ``table`` its addressed variables: the first ``writable`` are legal for
    all accesses, those behind them for generic reads. ``known`` are the declarations of all of its
    variables.
    """

    windows: tuple[str, ...] = ()
    parameters: tuple[str, ...] = ()
    variables: tuple[Range, ...] = ()
    table: tuple[Range, ...] = ()
    writable: int = 0
    known: Mapping[str, Sequence[Variable]] = field(default_factory=dict)

    def variable(self, name: str) -> tuple[Range, int] | None:
        """Return the module's variable of that name, and its alignment."""
        declared = self.known.get(name)
        return None if declared is None else declared_range(declared)


def declared_range(declared: Sequence[Variable]) -> tuple[Range, int]:
    """Return the variable that is ``declared``, once or several times, and its alignment."""
    sizes = [size_and_align(one) for one in declared]
    size, align = (min(promised) for promised in zip(*sizes, strict=True))
    return Range(declared[0].name, declared[0].space, size), align


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """One range to check before the instruction at ``position`` of the body.

    ``register`` is ``None`` if the address must first be computed into a register by ``making``;
    ``through`` is the index of the operand that must then use that register. ``condition`` computes
    the predicate under which there is an access, if that is more than the instruction's guard. If
    there are ``rows``, ``member`` is the first, and ``step`` computes their distance in bytes, less
    than 2**40.
    """

    position: int
    line: int
    register: Register | None
    member: Member
    guard: Guard | None
    windows: tuple[str, ...]
    variables: tuple[Range, ...]
    table: int
    making: Materializer | None = None
    through: int | None = None
    condition: Materializer | None = None
    rows: int = 1
    step: Materializer | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the check needs no code of its own, so that it may be merged or dropped."""
        return self.register is not None and self.condition is None and self.step is None


def find_checks(
    function: Function, allowed: AllowedMemory, site: Callable[[Instruction], int]
) -> list[AccessCheck]:
    """Return the checks that the flat ``function`` needs, in body order.

    ``site`` returns the site number of an instruction.

    Raises:
        KernelRejected: an access cannot be checked; reason code ``unsupported-instruction``.
    """
    finder = _Finder(function, allowed, site)
    for position, statement in enumerate(function.body or ()):
        if type(statement) is Instruction and statement.opcode.base not in ARITHMETIC:
            for access in accesses(statement):
                finder.add(position, statement, access)
    return finder.checks


class _Finder:
    """Turns accesses of one function into checks."""

    def __init__(
        self, function: Function, allowed: AllowedMemory, site: Callable[[Instruction], int]
    ) -> None:
        self.checks: list[AccessCheck] = []
        self._site = site
        self._allowed = allowed
        self._widths = RegisterWidths(function)
        self._body = function.body or ()
        own = [s for s in declarations(function.body or ()) if isinstance(s, Variable)]
        self._hidden = {p.name for p in (*function.parameters, *function.returns)}
        self._hidden |= {variable.name for variable in own}
        self._block_bytes = _block_bytes(allowed.known)

    def add(self, position: int, ins: Instruction, access: MemoryAccess) -> None:
        """Add the checks for one access of ``ins``."""
        if access.size is not None:
            length = self._length(position, access.size)
            if length is None:
                self._sized(position, ins, access, access.size)
                return
            if not length:
                return
            access = replace(access, span=length & 0xFFFFFFFF, size=None)
        if self._is_inside(ins, access):
            return
        address = ins.operands[access.operand]
        assert isinstance(address, Address)
        rows, span, step = access.rows, access.span, None
        if rows > 1:
            length, stride = span * 8 // access.unit, access.stride
            if isinstance(stride, Immediate) and stride.value == length:
                rows, span = 1, rows * span  # nothing lies between them
            else:
                step = self._step(ins, access)
        base, low, register = address.base, address.offset, None
        making: Materializer | None = None
        if isinstance(base, Register) and self._widths.of(base) == 64:
            register = base
        else:
            making = _made(base, low)
            low = 0 if base is None else low
        condition = None
        if access.only_if is not None:
            condition = _asked(access.only_if, ins.guard, self._widths)
        self.checks.append(
            AccessCheck(
                position,
                ins.line,
                register,
                Member(signed(low), span, access.align, self._site(ins)),
                ins.guard,
                self._windows(access),
                self._variables(access, base),
                self._table(access),
                making,
                access.operand if making is not None else None,
                condition,
                rows,
                step,
            )
        )

    def _step(self, ins: Instruction, access: MemoryAccess) -> Materializer:
        """Return what computes the distance of a matrix's rows in bytes.

        Raises:
            KernelRejected: the stride is not a number of 32 bits, as the ISA has it.
        """
        stride, unit = access.stride, access.unit
        if isinstance(stride, Immediate) and 0 <= stride.value < 1 << 32:
            return lambda target: [_do("mov.u64", target, stride.value * unit // 8)]
        if not isinstance(stride, Register) or self._widths.of(stride) != 32:
            raise unsupported_access(ins)
        if unit % 8 == 0:
            return lambda target: [_do("mul.wide.u32", target, stride, unit // 8)]
        return lambda target: [
            _do("mul.wide.u32", target, stride, unit),
            _do("shr.u64", target, target, 3),
        ]

    def _length(self, position: int, size: Operand) -> int | None:
        """Return the constant that was moved into ``size`` in the same block, None if none was.

        The value of one that was set elsewhere is not certain: paths may lead around that.
        """
        for statement in reversed(self._body[:position]):
            if type(statement) is not Instruction:
                return None
            if size in written(statement):
                source = statement.operands[-1]
                moved = statement.opcode.base == "mov" and statement.guard is None
                return source.value if moved and isinstance(source, Immediate) else None
        return None

    def _sized(self, position: int, ins: Instruction, access: MemoryAccess, size: Operand) -> None:
        """Add checks of both ends of a copy whose length is in a register.

        If both lie in the arena, all of it does. That does not hold where variables are legal, too:
        a copy that begins in one legal range and ends in another is not legal.
        """
        address = ins.operands[access.operand]
        elsewhere = self._allowed.writable or any(
            r.name != GRID_SYNC for r in self._allowed.variables
        )
        if not isinstance(size, Register) or elsewhere or not isinstance(address, Address):
            raise unsupported_access(ins)
        base, unit = address.base, access.align
        if not isinstance(base, Register) or self._widths.of(base) != 64:
            raise unsupported_access(ins)
        condition = _asked(size, ins.guard, self._widths)
        end = _made_end(base, size, self._widths)
        for register, low, making in ((base, 0, None), (None, -unit, end)):
            member = Member(signed(address.offset + low), unit, unit, self._site(ins))
            self.checks.append(
                AccessCheck(
                    position,
                    ins.line,
                    register,
                    member,
                    ins.guard,
                    (),
                    (),
                    0,
                    making,
                    None,
                    condition,
                )
            )

    def _windows(self, access: MemoryAccess) -> tuple[str, ...]:
        if not access.generic:
            return ()
        return self._allowed.windows + (() if access.writes else self._allowed.parameters)

    def _variables(self, access: MemoryAccess, base: object) -> tuple[Range, ...]:
        variables = self._allowed.variables
        if isinstance(base, Symbol) and base.name not in self._hidden:
            known = self._allowed.variable(base.name)
            if known is not None and _may_hold(known[0], access):
                variables += (known[0],)
        return variables

    def _table(self, access: MemoryAccess) -> int:
        """Return how many of the addressed variables are legal."""
        reads = access.generic and not access.writes
        return len(self._allowed.table) if reads else self._allowed.writable

    def _is_in_block(self, address: Address, access: MemoryAccess) -> bool:
        """Return whether the access always lies, aligned, in the program's variables' block."""
        base = address.base
        if not isinstance(base, Register) or base.name != _BLOCK or access.rows > 1:
            return False
        span = access.span if access.only_if is None else access.align
        inside = 0 <= address.offset <= self._block_bytes - span
        return inside and not address.offset % access.align

    def _is_inside(self, ins: Instruction, access: MemoryAccess) -> bool:
        """Return whether the access always lies, aligned, in the variable that it names."""
        address = ins.operands[access.operand]
        if not isinstance(address, Address):
            return False
        if isinstance(address.base, Register):
            return self._is_in_block(address, access)
        if not isinstance(address.base, Symbol):
            return False
        known = self._allowed.variable(address.base.name)
        if known is None or address.base.name in self._hidden or access.rows > 1:
            return False
        variable, align = known
        span = access.span if access.only_if is None else access.align
        if align % access.align or address.offset % access.align:
            return False
        if address.offset < 0 or address.offset + span > variable.size:
            return False
        return _may_hold(variable, access)


def _block_bytes(known: Mapping[str, Sequence[Variable]]) -> int:
    """Return the size of the module's variables in the arena; 0: none are there."""
    for one in known.get(VARIABLES, ()):
        if isinstance(one.init, tuple) and isinstance(one.init[1], Immediate):
            return one.init[1].value
    return 0


def _may_hold(variable: Range, access: MemoryAccess) -> bool:
    if variable.space == "const":
        return access.generic and not access.writes
    return True


# -- what is made in front of a check ----------------------------------------------------------


def _do(text: str, *operands: Operand | int, guard: Guard | None = None) -> Instruction:
    made = tuple(immediate(o) if isinstance(o, int) else o for o in operands)
    return Instruction(opcode(text), made, guard)


def _made(base: Register | Symbol | None, low: int) -> Materializer:
    """Return a variable's address, a number, or a 32-bit register as a 64-bit register."""

    def make(target: Register) -> list[Statement]:
        if base is None:
            return [_do("mov.u64", target, low % _WORD)]
        if isinstance(base, Symbol):
            return [_do("mov.u64", target, base)]
        return [_do("cvt.u64.u32", target, base)]

    return make


def _made_end(base: Register, size: Register, widths: RegisterWidths) -> Materializer:
    """Return the address ``size`` bytes behind ``base``."""

    def make(target: Register) -> list[Statement]:
        wide = "mov.u64" if widths.of(size) == 64 else "cvt.u64.u32"
        return [_do(wide, target, size), _do("add.s64", target, target, base)]

    return make


def _asked(operand: Operand, guard: Guard | None, widths: RegisterWidths) -> Materializer:
    """Return the predicate that a copy reads: its size is not 0, or its source is not ignored."""

    def make(target: Register) -> list[Statement]:
        assert isinstance(operand, Register)
        if widths.of(operand) == 1:
            statements: list[Statement] = [_do("not.pred", target, operand)]
        else:
            statements = [_do(f"setp.ne.u{widths.of(operand)}", target, operand, 0)]
        if guard is not None:
            other = replace(guard, negated=not guard.negated)
            statements.append(_do("mov.pred", target, 0, guard=other))
        return statements

    return make


class RegisterWidths:
    """The widths in bits of a flat function's registers, by declaration; predicates have 1."""

    def __init__(self, function: Function) -> None:
        self._single: dict[str, int] = {}
        self._ranges: dict[str, int] = {}
        for parameter in (*function.parameters, *function.returns):
            if parameter.space == "reg":
                self._single[parameter.name] = _bits(parameter.type)
        for statement in declarations(function.body or ()):
            if isinstance(statement, RegisterDeclaration):
                into = self._single if statement.count is None else self._ranges
                into[statement.name] = _bits(statement.type)

    def of(self, register: Register) -> int:
        """Return the width of ``register`` in bits.

        Raises:
            KeyError: the function does not declare it.
        """
        name = register.name
        width = self._single.get(name)
        if width is not None:
            return width
        for cut in range(len(name) - 1, 0, -1):
            if not name[cut].isdecimal():
                break
            width = self._ranges.get(name[:cut])
            if width is not None:
                self._single[name] = width
                return width
        raise KeyError(name)


def _bits(type_name: str) -> int:
    return 1 if type_name == "pred" else 8 * type_bytes(type_name)
