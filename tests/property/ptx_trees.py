"""Hypothesis strategies for PTX trees: any module that a parser could have made."""

from __future__ import annotations

from hypothesis import strategies as st

from gpud.compiler.ptx.model import (
    Address,
    BranchTargets,
    CallPrototype,
    CallTargets,
    Directive,
    Function,
    Guard,
    Immediate,
    Initializer,
    InitialValue,
    Instruction,
    Label,
    Location,
    Module,
    Not,
    Operand,
    Pair,
    Parameter,
    Pragma,
    RawOperand,
    Register,
    RegisterDeclaration,
    Scope,
    SpecialRegister,
    Statement,
    Symbol,
    SymbolOffset,
    Tuple,
    Variable,
    Vector,
    opcode,
)
from gpud.compiler.ptx.operands import number

# Bare registers are declared at the head of each body, so that they parse as registers.
BARE = ("p", "tmp", "t0", "t1")

REGISTERS = st.sampled_from(
    ["%r1", "%r20", "%rd3", "%p1", "%f7", "%SP", "%v.x", "%envreg77", *BARE]
).map(Register)
SYMBOLS = st.sampled_from(["table", "$str", "_Z1kPf", "param0", "L$1", "generic", "x1"]).map(Symbol)
SPECIALS = st.sampled_from(["%tid.x", "%nctaid.z", "%laneid", "%clock64", "%envreg1"]).map(
    SpecialRegister
)
NAMES = st.sampled_from(["a", "_b", "$c", "a_very_long_name_0", "_ZN1aE", "d9"])
OFFSETS = st.integers(-(2**63), 2**64 - 1) | st.integers(-64, 64)
LINES = st.integers(0, 99)  # must not matter


def _immediate(text: str) -> Immediate:
    value = number(text)
    assert value is not None
    return value


immediates = st.one_of(
    st.integers(-(2**64) + 1, 2**64 - 1).map(str),
    st.integers(0, 2**64 - 1).map(hex),
    st.integers(0, 2**64 - 1).map(lambda n: f"0{n:o}U"),
    st.integers(0, 2**20).map(bin),
    st.integers(0, 2**32 - 1).map(lambda n: f"0f{n:08X}"),
    st.integers(0, 2**64 - 1).map(lambda n: f"0d{n:016x}"),
    st.floats(allow_nan=False, allow_infinity=False)
    .map(repr)
    .filter(lambda text: "." in text or "e" in text),
).map(_immediate)

SIMPLE: st.SearchStrategy[Operand] = st.one_of(
    REGISTERS,
    SYMBOLS,
    SPECIALS,
    immediates,
    st.builds(Address, st.none(), OFFSETS),
    st.builds(Address, REGISTERS | SYMBOLS, OFFSETS),
    st.builds(SymbolOffset, SYMBOLS, OFFSETS),
    st.builds(Not, REGISTERS),
    st.builds(Pair, REGISTERS | st.just(Symbol("_")), REGISTERS),
    st.sampled_from(["%r1.b0", "-%r2", "[%rd1, {%r1, %r2}]", "<5>", "%r1:%r2"]).map(RawOperand),
)
OPERANDS = st.one_of(
    SIMPLE,
    st.lists(SIMPLE, min_size=1, max_size=4).map(lambda items: Vector(tuple(items))),
    st.lists(SIMPLE, max_size=3).map(lambda items: Tuple(tuple(items))),
)
OPCODES = st.from_regex(r"[a-z][a-z0-9_]{0,8}((\.|::)[A-Za-z0-9_]{1,6}){0,4}", fullmatch=True)
INSTRUCTIONS = st.builds(
    Instruction,
    OPCODES.map(opcode),
    st.lists(OPERANDS, max_size=5).map(tuple),
    # Predicates have no vectors, so a guard is never an element of one.
    st.none() | st.builds(Guard, REGISTERS.filter(lambda r: "." not in r.name), st.booleans()),
    LINES,
)

INITIAL: st.SearchStrategy[InitialValue] = st.recursive(
    immediates
    | st.builds(Initializer, NAMES, OFFSETS, st.booleans(), st.none() | st.integers(0, 2**64 - 1)),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)
TYPES = st.sampled_from(["b8", "u32", "f64", "b128", "pred", "bf16x2"])
DIMS = st.lists(st.integers(0, 2**20), max_size=3).map(tuple)
OPEN_DIMS = st.one_of(DIMS, DIMS.map(lambda dims: (None, *dims)))
ALIGN = st.none() | st.sampled_from([1, 4, 16])
VECTOR = st.none() | st.sampled_from(["v2", "v4"])
LINKAGE = st.none() | st.sampled_from(["visible", "extern", "weak", "common"])
VARIABLES = st.builds(
    Variable,
    st.sampled_from(["global", "const", "shared", "local", "param"]),
    TYPES,
    NAMES,
    OPEN_DIMS,
    ALIGN,
    VECTOR,
    LINKAGE,
    st.none() | INITIAL,
    st.lists(st.sampled_from([".managed", ".unified(1, 2)"]), max_size=2).map(tuple),
    LINES,
)
PARAMETERS = st.lists(
    st.builds(
        Parameter,
        TYPES,
        NAMES | st.just("_"),
        OPEN_DIMS,
        ALIGN,
        st.sampled_from(["param", "reg"]),
        st.none() | st.sampled_from(["", ".global", ".align 8", ".shared .align 16"]),
        VECTOR,
    ),
    max_size=4,
).map(tuple)

LEAVES: st.SearchStrategy[Statement] = st.one_of(
    INSTRUCTIONS,
    INSTRUCTIONS,
    st.builds(Label, NAMES | st.just("$L__BB0_1"), LINES),
    st.builds(
        RegisterDeclaration,
        TYPES,
        st.sampled_from(["%r", "%q", "%SP"]),
        st.none() | st.integers(0, 4096),
        VECTOR,
        LINES,
    ),
    VARIABLES,
    st.sampled_from(["1 2 3", "1 2 3, function_name $L, inlined_at 1 4 5"]).map(Location),
    st.sampled_from(['"nounroll"', '"a;b", "c}"']).map(Pragma),
    st.builds(BranchTargets, NAMES, st.lists(NAMES, min_size=1, max_size=3).map(tuple)),
    st.builds(CallTargets, NAMES, st.lists(NAMES, min_size=1, max_size=3).map(tuple)),
    st.builds(
        CallPrototype,
        NAMES,
        PARAMETERS,
        PARAMETERS,
        st.booleans(),
        st.lists(st.just(".abi_preserve 4"), max_size=1).map(tuple),
    ),
    st.sampled_from([".future 1, x;", '.future "s;"', ".block { a { b } }"]).map(Directive),
)
BODIES: st.SearchStrategy[list[Statement]] = st.recursive(
    st.lists(LEAVES, max_size=8),
    lambda inner: st.lists(LEAVES | st.builds(Scope, inner, LINES), max_size=6),
    max_leaves=20,
)


def _declared(body: list[Statement]) -> list[Statement]:
    return [*(RegisterDeclaration("b32", name) for name in BARE), *body]


def _functions(kind: str) -> st.SearchStrategy[Function]:
    return st.builds(
        Function,
        st.just(kind),
        NAMES,
        PARAMETERS,
        st.just(()) if kind == "entry" else PARAMETERS,
        st.lists(st.sampled_from([".attribute(.managed)"]), max_size=1).flatmap(
            lambda first: st.lists(
                st.sampled_from([".maxntid 256, 1, 1", ".noreturn", '.pragma "a", "b"']), max_size=3
            ).map(lambda rest: (*first, *rest))
        ),
        st.none() | BODIES.map(_declared),
        LINKAGE,
        LINES,
    )


modules = st.builds(
    Module,
    st.sampled_from([(6, 0), (8, 8), (9, 0)]),
    st.sampled_from([("sm_75",), ("sm_90a", "debug")]),
    st.sampled_from([32, 64]),
    st.lists(
        st.one_of(
            _functions("entry"),
            _functions("func"),
            VARIABLES,
            st.sampled_from(
                ['.file 1 "a b.cu"', ".alias f, g;", ".section .s\n{\n.b8 1 // }\n}"]
            ).map(Directive),
        ),
        max_size=4,
    ),
)
"""Any module."""
