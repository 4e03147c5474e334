"""Instructions in the spelling of compilers, where it differs from that of the other cases.

The order of scope, semantics, space and operation differs between NVRTC, CUDA's headers and
Triton; ``.relu`` may follow the type; a load may name any type of the right size.

Source: PTX as those compilers print it; PTX ISA 9.0, sections 9.7.9 and 9.7.13.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .case import Args, Array, Rng
from .cases import Cases
from .integers import operands
from .sweep import Op, integer_op, sweep

CASES = Cases()


# -- loads and stores --------------------------------------------------------------------------

# (load, its type, elements, store, its type): each moves up to 16 bytes into a slot of its own.
_MOVES = [
    ("ld.global.nc", "f32", 1, "st.global", "f32"),
    ("ld.global.nc", "u8", 1, "st.global", "u8"),
    ("ld.global.nc", "u16", 1, "st.global", "u16"),
    ("ld.global.nc", "s32", 1, "st.global", "u32"),
    ("ld.global.nc", "u64", 1, "st", "u64"),
    ("ld.global.nc", "f64", 1, "st.global", "f64"),
    ("ld.global.nc", "f32", 2, "st.global", "f32"),
    ("ld.global.nc", "f64", 2, "st.global", "f64"),
    ("ld.global.nc", "u32", 4, "st.global", "u32"),
    ("ld.global.nc", "f32", 4, "st.global", "f32"),
    ("ld.global.nc", "u8", 4, "st.global", "u8"),
    ("ld.global", "u32", 4, "st.global", "u32"),
    ("ld.global", "u16", 4, "st.global", "u16"),
    ("ld.acquire.gpu", "u32", 1, "st.release.gpu", "u32"),
    ("ld", "f32", 1, "st", "f32"),
    ("ld", "u32", 2, "st", "u32"),
    ("ld.shared", "s32", 1, "st.global", "u32"),
    ("ld.shared", "b32", 2, "st.global", "b32"),
    ("ld.volatile.shared", "u32", 1, "st.global", "u32"),
    ("ld.volatile.shared", "f32", 1, "st.global", "f32"),
    ("ld.local", "u8", 1, "st.global", "u8"),
    ("ld.local", "f32", 1, "st.global", "f32"),
    ("ld.local", "u16", 4, "st.global", "u16"),
]


def _bytes_moved(t: str, count: int) -> int:
    return int(t[1:]) // 8 * count


def _moves_body() -> str:
    lines = [
        "    .shared .align 16 .b8 %tile[896];",
        "    .local .align 16 .b8 %mine[16];",
        "    .reg .b64 %from, %slot, %to; .reg .b32 %a, %b, %c, %d; .reg .b16 %h<4>;",
        "    mad.wide.u32 %from, %i, 16, %in;",
        f"    mad.wide.u32 %to, %i, {16 * len(_MOVES) + 16}, %out;",
        "    mov.u64 %slot, %tile; mad.wide.u32 %slot, %thread, 16, %slot;",
        "    ld.global.v4.u32 {%a, %b, %c, %d}, [%from];",
        "    st.shared.v4.u32 [%slot], {%a, %b, %c, %d};",
        "    st.local.v4.u32 [%mine], {%a, %b, %c, %d};",
        "    ld.global.v4.u16 {%h0, %h1, %h2, %h3}, [%from+8];",
        "    st.local.v4.u16 [%mine+8], {%h3, %h2, %h1, %h0};",
        "    st.local.f32 [%mine+4], %a;",
    ]
    for k, (load, t, count, store, u) in enumerate(_MOVES):
        vector = f".v{count}" if count > 1 else ""
        source = "%slot" if "shared" in load else "%mine" if "local" in load else "%from"
        names = ", ".join(f"r{n}" for n in range(count))
        if count > 1:
            names = f"{{{names}}}"
        bits = max(16, int(t[1:]))
        lines += [
            f"    {{ .reg .b{bits} r<{count}>;",
            f"    {load}{vector}.{t} {names}, [{source}];",
            f"    {store}{vector}.{u} [%to+{16 * k}], {names}; }}",
        ]
    last = 16 * len(_MOVES)
    lines += [
        "    ld.local.v4.u32 {%a, %b, %c, %d}, [%mine];",
        f"    st.global.v4.u32 [%to+{last}], {{%a, %b, %c, %d}};",
        "    ret;",
    ]
    return "\n".join(lines)


def _moves_make(rng: Rng) -> Args:
    data = rng.integers(0, 256, (112, 16)).astype(np.uint8)
    data[:, [3, 7, 11, 15]] = 0x40  # no NaNs: the bytes are moved as floats too
    return [data, np.zeros((112, len(_MOVES) + 1, 16), np.uint8)]


@CASES.ptx(
    "spelled_moves",
    "u64 in, u64 out",
    _moves_body(),
    2,
    56,
    _moves_make,
    "ld.nc vector-access ld.local generic",
)
def _moves_expect(args: Args) -> dict[int | str, Any]:
    data, out = args[0], np.zeros_like(args[1])
    local = data.copy()
    local[:, 8:16] = data[:, 8:16].reshape(-1, 4, 2)[:, ::-1].reshape(-1, 8)
    local[:, 4:8] = data[:, 0:4]
    for k, (load, t, count, _, _) in enumerate(_MOVES):
        size = _bytes_moved(t, count)
        out[:, k, :size] = (local if "local" in load else data)[:, :size]
    out[:, -1] = local
    return {1: out}


_DECLARED_CONSTANT = "\n.const .align 8 .f64 factors[3] = {1.5, -0.25, 4.0};\n"
_CONSTANT_BODY = """
    .reg .b64 %p, %q; .reg .f64 %x, %y; .reg .b32 %k;
    mov.u64 %q, factors;
    rem.u32 %k, %i, 3;
    mad.wide.u32 %q, %k, 8, %q;
    ld.const.f64 %x, [%q];
    ld.const.f64 %y, [factors+8];
    fma.rn.f64 %x, %x, %y, 0d3FF0000000000000;
    mad.wide.u32 %p, %i, 8, %out;
    st.global.f64 [%p], %x;
    ret;
"""


@CASES.ptx(
    "spelled_constants",
    "u64 out",
    _CONSTANT_BODY,
    4,
    32,
    lambda rng: [np.zeros(128)],
    "constant-bank",
    declarations=_DECLARED_CONSTANT,
)
def _constant_expect(args: Args) -> dict[int | str, Any]:
    factors = np.array([1.5, -0.25, 4.0])
    return {0: factors[np.arange(args[0].size) % 3] * -0.25 + 1}


# -- atomics -----------------------------------------------------------------------------------


def _real(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def _xor(n: int) -> int:
    return int(np.bitwise_xor.reduce(np.arange(n)))


# (instruction, initial word, result after 0..n-1 were applied in any order)
_ATOMICS: list[tuple[str, int, Any]] = [
    ("atom.add.release.gpu.u32 %old, [%g{at}], %i;", 3, lambda n: 3 + n * (n - 1) // 2),
    ("atom.global.gpu.acq_rel.add.u32 %old, [%g{at}], %i;", 0, lambda n: n * (n - 1) // 2),
    ("atom.global.gpu.acq_rel.add.f32 %old, [%g{at}], %f;", 0, lambda n: _real(n * (n - 1) / 2)),
    ("atom.global.or.b32 %old, [%g{at}], %i;", 0, lambda n: (1 << (n - 1).bit_length()) - 1),
    ("atom.global.and.b32 %old, [%g{at}], %not_i;", 0xFFFFFFFF,
     lambda n: 0xFFFFFFFF ^ ((1 << (n - 1).bit_length()) - 1)),
    ("atom.global.xor.b32 %old, [%g{at}], %i;", 9, lambda n: _xor(n) ^ 9),
    ("atom.global.max.u32 %old, [%g{at}], %i;", 0, lambda n: n - 1),
    ("atom.global.min.u32 %old, [%g{at}], %not_i;", 0xFFFFFFFF, lambda n: 0xFFFFFFFF - (n - 1)),
    ("atom.global.min.s32 %old, [%g{at}], %minus;", 100, lambda n: 2**32 - (n - 1)),
    ("atom.global.sys.add.u32 %old, [%g{at}], 2;", 1, lambda n: 2 * n + 1),
    ("atom.global.sys.and.b32 %old, [%g{at}], 0xFF0F;", 0xFFFFFFFF, lambda n: 0xFF0F),
    ("atom.global.sys.or.b32 %old, [%g{at}], 0x30;", 1, lambda n: 0x31),
    ("atom.global.sys.xor.b32 %old, [%g{at}], %i;", 0, _xor),
    ("atom.global.sys.max.s32 %old, [%g{at}], %minus;", 2**31, lambda n: 0),
    ("atom.global.sys.min.s32 %old, [%g{at}], %minus;", 0, lambda n: 2**32 - (n - 1)),
    ("atom.global.sys.inc.u32 %old, [%g{at}], 1000000;", 5, lambda n: n + 5),
    ("atom.global.sys.dec.u32 %old, [%g{at}], 1000000;", 2000, lambda n: 2000 - n),
    ("atom.global.sys.exch.b32 %old, [%g{at}], 77;", 0, lambda n: 77),
    ("atom.global.sys.cas.b32 %old, [%g{at}], 0, 123;", 0, lambda n: 123),
]  # fmt: skip


def _atomics_body() -> str:
    lines = [
        "    .shared .align 4 .b32 %bits;",
        "    .reg .b64 %g; .reg .b32 %old, %not_i, %minus, %f, %s; .reg .pred %first;",
        "    mov.u64 %g, %words; not.b32 %not_i, %i; neg.s32 %minus, %i;",
        "    cvt.rn.f32.u32 %f, %i;",
        "    setp.eq.u32 %first, %thread, 0; @%first st.shared.u32 [%bits], 0;",
        "    bar.sync 0;",
    ]
    lines += [f"    {text.format(at=f'+{4 * k}')}" for k, (text, *_) in enumerate(_ATOMICS)]
    lines += [
        "    and.b32 %s, %thread, 31; shl.b32 %s, 1, %s;",
        "    atom.shared.or.b32 %old, [%bits], %s;",
        "    bar.sync 0;",
        "    ld.volatile.shared.u32 %s, [%bits];",
        "    mad.wide.u32 %g, %i, 4, %seen; st.global.u32 [%g], %s;",
        "    ret;",
    ]
    return "\n".join(lines)


def _atomics_make(rng: Rng) -> Args:
    return [np.array([row[1] for row in _ATOMICS], np.uint32), np.zeros(5 * 56, np.uint32)]


@CASES.ptx(
    "spelled_atomics",
    "u64 words, u64 seen",
    _atomics_body(),
    5,
    56,
    _atomics_make,
    "atom.global atom.scope atom.shared",
)
def _atomics_expect(args: Args) -> dict[int | str, Any]:
    n = args[1].size
    words = np.array([after(n) % 2**32 for _, _, after in _ATOMICS], np.uint32)
    return {0: words, 1: np.full(n, 0xFFFFFFFF, np.uint32)}


# -- selection, and ReLU after the type --------------------------------------------------------


def _pick(a: Array, b: Array) -> Array:
    return np.where(a < b, a, b)


def _select(t: str, dtype: str) -> Op:
    bits = int(t[1:])
    if bits == 64:
        text = (
            ".reg .b64 p, q, r; cvt.s64.s32 p, a; cvt.s64.s32 q, b;"
            f" selp.{t} r, p, q, lower; mov.b64 d, r;"
        )
    else:
        text = f"selp.{t} d, a, b, lower;"
    return Op(
        f"{{ .reg .pred lower; setp.lt.s32 lower, a, b; {text} }}",
        dtype,
        lambda a, b: _pick(a, b).astype(np.int64).astype(dtype),
    )


def _halves(function: Any) -> Any:
    def both(a: int, b: int) -> int:
        parts = [np.array([x], np.int32).view(np.int16).tolist() for x in (a, b)]
        low, high = (max(function(x, y), 0) for x, y in zip(*parts, strict=True))
        return int(low | high << 16)

    return both


_TRAILING_RELU = [
    integer_op("max.s32.relu d, a, b;", "i4", lambda a, b: max(a, b, 0)),
    integer_op("min.s32.relu d, a, b;", "i4", lambda a, b: max(min(a, b), 0)),
    integer_op("max.s16x2.relu d, a, b;", "u4", _halves(max)),
    integer_op("min.s16x2.relu d, a, b;", "u4", _halves(min)),
]

CASES += (
    sweep(
        "spelled_selections",
        [
            _select("u64", "u8"),
            _select("s64", "i8"),
            _select("s32", "i4"),
            _select("u32", "u4"),
            *_TRAILING_RELU,
        ],
        ("i4", "i4"),
        operands(32, True, 2),
        arch="compute_90",
        covers="selp relu",
    ),
)


# -- generic accesses that name shared memory, and vectors as parameters -----------------------


@CASES.ptx(
    "named_shared",
    "u64 out",
    """
    .shared .align 8 .b8 own[64];
    .reg .b64 %at; .reg .b32 %r<4>; .reg .v2 .b32 %pair;
    setp.eq.u32 %first, %thread, 0;
    @%first st.volatile.u32 [own+8], 40;
    @%first st.u32 [own], %block;
    bar.sync 0;
    atom.add.u32 %r0, [own], 1;
    bar.sync 0;
    ld.volatile.u32 %pair.x, [own+8];
    ld.u32 %pair.y, [own];
    call (%r1), sum, (%pair);
    mad.wide.u32 %at, %i, 4, %out;
    st.global.u32 [%at], %r1;
    ret;""".replace(".reg .b64 %at", ".reg .pred %first; .reg .b64 %at"),
    2,
    64,
    lambda _: [np.zeros(128, np.uint32)],
    "ld.generic call.vector",
    declarations=(".func (.reg .b32 r) sum(.reg .v2 .b32 p) { add.u32 r, p.x, p.y; ret; }"),
)
def _named_shared_expect(args: list[Any]) -> dict[int | str, Any]:
    return {0: np.repeat(np.array([104, 105], np.uint32), 64)}
