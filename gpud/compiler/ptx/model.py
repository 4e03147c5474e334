"""The syntax tree of PTX programs, which the parser builds, passes rewrite and the printer writes.

Nodes compare by meaning: source lines (``line``, 1-based, 0 for nodes that a pass made) are ignored
by ``==``, so ``parse(print(program)) == program`` holds. Operands and opcodes are immutable and may
be shared between instructions; statements are mutable, but a pass that changes an instruction makes
a new one and never writes to one that it did not create.

The tree keeps nested ``{ }`` scopes (`Scope`), because names may repeat in them. Analyses and
passes work on flat bodies: `gpud.compiler.passes.flatten` removes scopes and makes every register
name unique and ``%``-prefixed.

Source: PTX ISA 9.0, chapters 4 (syntax), 5 (state spaces, types, variables), 7 (functions),
10 (special registers) and 11 (directives).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

__all__ = [
    "Address",
    "BranchTargets",
    "CallPrototype",
    "CallTargets",
    "Directive",
    "Function",
    "Guard",
    "Immediate",
    "InitialValue",
    "Initializer",
    "Instruction",
    "Label",
    "Location",
    "Module",
    "Not",
    "Opcode",
    "Operand",
    "Pair",
    "Parameter",
    "Pragma",
    "RawOperand",
    "Register",
    "RegisterDeclaration",
    "Scope",
    "SpecialRegister",
    "Statement",
    "Symbol",
    "SymbolOffset",
    "Tuple",
    "Variable",
    "Vector",
    "immediate",
    "opcode",
]


# -- operands ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register, ``%r1``. Inside a `Scope` its name may lack the ``%``."""

    name: str


@dataclass(frozen=True, slots=True)
class SpecialRegister:
    """A predefined register, ``%tid.x``, ``%laneid``; ``name`` keeps the ``%`` and the suffix."""

    name: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, function or label named as an operand."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal, with its text in the source.

    ``kind`` is ``"int"`` (``value`` is the integer, negative ones included), ``"f32"`` for
    ``0fXXXXXXXX``, or ``"f64"`` for ``0dXXXXXXXXXXXXXXXX`` and decimal literals (``value`` is the
    bit pattern as an unsigned integer).
    """

    text: str
    value: int
    kind: str = "int"


@lru_cache(maxsize=4096)
def immediate(value: int) -> Immediate:
    """Return the `Immediate` for an integer."""
    return Immediate(str(int(value)), int(value))


@dataclass(frozen=True, slots=True)
class Address:
    """``[base+offset]`` with ``offset`` in bytes; the base is absent in ``[4096]``."""

    base: Register | Symbol | None
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Vector:
    """``{a, b, c, d}``: the elements of a vector load, store or move; ``_`` is ``Symbol("_")``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """``d|p``: two destinations of ``setp``, ``shfl.sync``, ``match`` and similar instructions."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """``!p``: a negated predicate source."""

    operand: Register


@dataclass(frozen=True, slots=True)
class Tuple:
    """``(a, b)``: the results or arguments of a ``call``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class SymbolOffset:
    """``a+4``: a symbol plus a byte offset outside brackets, ``mov.u64 %rd1, table+8``."""

    symbol: Symbol
    offset: int


@dataclass(frozen=True, slots=True)
class RawOperand:
    """A well-formed operand of an instruction that gpud does not know, kept as text."""

    text: str


Operand = (
    Register
    | SpecialRegister
    | Symbol
    | Immediate
    | Address
    | Vector
    | Pair
    | Not
    | Tuple
    | SymbolOffset
    | RawOperand
)


# -- statements --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opcode:
    """``ld.global.v4.f32``: ``base`` is ``ld``, ``modifiers`` the dotted rest in order.

    ``used_bytes_mask`` is that of the ``.pragma`` before a load: bit i says that the program uses
    byte i, and 0 that it uses all. Others may lie outside the memory that it owns.

    Made by `opcode`, which returns one shared object for equal texts.

    Source: PTX ISA 9.0, chapter 12, "used_bytes_mask".
    """

    text: str
    base: str
    modifiers: tuple[str, ...]
    used_bytes_mask: int = 0

    def has(self, modifier: str) -> bool:
        """Return whether ``modifier`` (without its dot) is one of the modifiers."""
        return modifier in self.modifiers

    def used_of(self, span: int) -> int:
        """Return how many of the ``span`` bytes of a load lie before the end of the last used."""
        return min(span, self.used_bytes_mask.bit_length() or span)


@lru_cache(maxsize=65536)
def opcode(text: str, used_bytes_mask: int = 0) -> Opcode:
    """Return the shared `Opcode` for a text such as ``"add.s32"``."""
    base, *modifiers = text.split(".")
    return Opcode(text, base, tuple(modifiers), used_bytes_mask)


@dataclass(frozen=True, slots=True)
class Guard:
    """``@%p`` or ``@!%p``: the instruction runs in the threads in which it holds."""

    register: Register
    negated: bool = False


@dataclass(slots=True)
class Instruction:
    """``@guard opcode operands;``. A ``call`` keeps its `Tuple` operands in written order."""

    opcode: Opcode
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Label:
    """``name:``"""

    name: str
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class RegisterDeclaration:
    """``.reg .b32 %r<10>;`` (``count`` 10, ``name`` ``%r``) or ``.reg .pred p, q;`` (one each)."""

    type: str
    name: str
    count: int | None = None
    vector: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Initializer:
    """One leaf of an initialiser that names a symbol: ``name+offset`` or ``generic(name)+offset``.

    ``mask`` is the selector of the ``0xFF00(name)`` byte-extraction form, else ``None``.
    """

    name: str
    offset: int = 0
    generic: bool = False
    mask: int | None = None


# Text (`RawOperand`) is how the fields of a sampler or texture reference are kept.
InitialValue = Immediate | Initializer | RawOperand | tuple["InitialValue", ...]


@dataclass(slots=True)
class Variable:
    """A variable of ``space`` ``global``, ``const``, ``shared``, ``local``, ``param`` or ``tex``.

    ``dims`` are the array lengths, outermost first; ``None`` for the open first one of
    ``.extern .shared .b8 buffer[];``. ``linkage`` is ``visible``, ``extern``, ``weak``, ``common``
    or ``None``. ``attributes`` keeps ``.attribute(...)`` texts.
    """

    space: str
    type: str
    name: str
    dims: tuple[int | None, ...] = ()
    align: int | None = None
    vector: str | None = None
    linkage: str | None = None
    init: InitialValue | None = None
    attributes: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Parameter:
    """A parameter or a return value of a function: ``.param .align 8 .b8 name[16]``.

    ``space`` is ``param``, or ``reg`` for register parameters of a ``.func``. ``pointer`` is the
    text after ``.ptr`` (such as ``".global .align 16"``), ``""`` for a bare one, else ``None``.
    """

    type: str
    name: str
    dims: tuple[int | None, ...] = ()
    align: int | None = None
    space: str = "param"
    pointer: str | None = None
    vector: str | None = None


@dataclass(slots=True)
class Location:
    """``.loc`` with the rest of its line as text: source lines, for fault sites and ptxas."""

    text: str
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Pragma:
    """``.pragma "nounroll";`` with the strings as written, quotes included."""

    text: str
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class BranchTargets:
    """``name: .branchtargets L1, L2;`` for ``brx.idx``."""

    name: str
    targets: tuple[str, ...]
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class CallTargets:
    """``name: .calltargets f, g;`` for an indirect ``call``."""

    name: str
    targets: tuple[str, ...]
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class CallPrototype:
    """``name: .callprototype (ret) _ (params);`` for an indirect ``call``.

    ``noreturn`` keeps a trailing ``.noreturn``, ``attributes`` any other directives after it.
    """

    name: str
    returns: tuple[Parameter, ...]
    parameters: tuple[Parameter, ...]
    noreturn: bool = False
    attributes: tuple[str, ...] = ()
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Scope:
    """``{ ... }`` inside a body."""

    body: list[Statement]
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Directive:
    """A directive kept as text: ``.file``, ``.section``, ``.alias``, and unknown ones."""

    text: str
    line: int = field(default=0, compare=False)


Statement = (
    Instruction
    | Label
    | RegisterDeclaration
    | Variable
    | Location
    | Pragma
    | BranchTargets
    | CallTargets
    | CallPrototype
    | Scope
    | Directive
)


# -- functions and modules ---------------------------------------------------------------------


@dataclass(slots=True)
class Function:
    """``.entry`` (``kind`` ``"entry"``) or ``.func`` (``"func"``).

    ``attributes`` are the performance and other directives between the parameters and the body,
    one text each (``".maxntid 256, 1, 1"``, ``".noreturn"``). ``body`` is ``None`` for a
    declaration. ``linkage`` as in `Variable`.
    """

    kind: str
    name: str
    parameters: tuple[Parameter, ...] = ()
    returns: tuple[Parameter, ...] = ()
    attributes: tuple[str, ...] = ()
    body: list[Statement] | None = None
    linkage: str | None = None
    line: int = field(default=0, compare=False)


@dataclass(slots=True)
class Module:
    """One PTX translation unit. ``version`` is ``(9, 0)``, ``target`` ``("sm_90",)``."""

    version: tuple[int, int]
    target: tuple[str, ...]
    address_size: int = 64
    items: list[Function | Variable | Directive] = field(default_factory=list)

    def functions(self) -> list[Function]:
        """Return all functions, declarations included, in source order."""
        return [item for item in self.items if isinstance(item, Function)]

    def entries(self) -> dict[str, Function]:
        """Return the defined kernels by name."""
        return {
            item.name: item
            for item in self.items
            if isinstance(item, Function) and item.kind == "entry" and item.body is not None
        }
