"""Atomics and moves of data as tables: what is in memory before and after, for all edge values.

Every thread has 16 bytes of global and 16 of shared memory to itself, and their generic addresses.
An op writes ``a`` there, runs its instruction, and reads the memory back; an old value that is not
``a`` turns the result's bits over. What threads do to one another's memory is in `atomics`.

Source: PTX ISA 9.0, sections 9.7.9 (data movement) and 9.7.13 (``atom``, ``red``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from . import exact
from .case import Array, Case, Rng
from .exact import BF16, F16, F32, F64, Format
from .floats import extreme, patterns
from .integers import operands
from .sweep import Op, integer_op, sweep

_BLOCK = 96
_ROWS = 2048
_DECLARATIONS = f".global .align 128 .b8 cells[{16 * _ROWS}];"
_PLACES = f"""
    .shared .align 16 .b8 slots[{16 * _BLOCK}];
    .reg .b64 cell, near, far; .reg .b32 slot;
    mov.u64 cell, cells; mad.wide.u32 cell, %row, 16, cell; cvta.global.u64 near, cell;
    mov.u32 slot, slots; mad.lo.u32 slot, %thread, 16, slot;
    cvt.u64.u32 far, slot; cvta.shared.u64 far, far;
"""
# State space and address: global, shared, and both by generic addresses.
_SPACES = ((".global", "cell"), (".shared", "slot"), ("", "near"), ("", "far"))


def _memory_case(
    name: str, ops: list[Op], inputs: tuple[str, ...], values: Any, *covers: str, arch: str = "75"
) -> Case:
    assert len(values(np.random.default_rng(0))[0]) <= _ROWS
    return sweep(
        name,
        ops,
        inputs,
        values,
        block=_BLOCK,
        arch=f"compute_{arch}",
        version="8.8" if arch == "100" else "8.6",
        covers=" ".join(covers),
        declarations=_DECLARATIONS,
        before=_PLACES,
    )


# -- atomics on integers -----------------------------------------------------------------------


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


_FOLDS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "exch": lambda a, b: b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}
_TYPES = {
    32: "add.u32 add.s32 min.u32 min.s32 max.u32 max.s32 and.b32 or.b32 xor.b32 exch.b32 inc.u32"
        " dec.u32",
    64: "add.u64 min.u64 min.s64 max.u64 max.s64 and.b64 or.b64 xor.b64 exch.b64",
}  # fmt: skip


def _updated(bits: int, space: str, at: str, update: str) -> str:
    """PTX around ``update``, which leaves the old value in ``old``."""
    return (
        f"{{ .reg .b{bits} old; .reg .pred p; st{space}.b{bits} [{at}], a; {update}"
        f" ld{space}.b{bits} d, [{at}]; setp.ne.b{bits} p, old, a; @p not.b{bits} d, d; }}"
    )


def _integer_atomics(bits: int) -> list[Op]:
    ops = []
    result = f"u{bits // 8}"
    for space, at in _SPACES:
        for text in _TYPES[bits].split():
            name, t = text.split(".")

            def folded(a: int, b: int, c: int, name: str = name, t: str = t) -> int:
                if t[0] == "s":
                    a, b = _signed(a, bits), _signed(b, bits)
                return _FOLDS[name](a, b)

            atom = f"atom{space}.{text} old, [{at}], b;"
            ops.append(integer_op(_updated(bits, space, at, atom), result, folded))
            if name != "exch" and at in ("cell", "far"):
                red = f"mov.b{bits} old, a; red{space}.{text} [{at}], b;"
                ops.append(integer_op(_updated(bits, space, at, red), result, folded))
    return ops + _swaps(bits)


def _swaps(bits: int) -> list[Op]:
    return [
        integer_op(
            _updated(bits, space, at, f"atom{space}.cas.b{bits} old, [{at}], b, c;"),
            f"u{bits // 8}",
            lambda a, b, c: c if a == b else a,
        )
        for space, at in _SPACES
    ]


def _wide() -> list[Op]:
    """128 bits: (a, b) in memory; the comparison with (c, b) holds where a is c."""
    ops = []
    start = "{ .reg .b128 q, r, s; .reg .b64 x; mov.b128 q, {a, b}; mov.b128 r, {c, b};"
    for half, names in (("low", "{d, x}"), ("high", "{x, d}")):
        low = half == "low"
        ops += [
            integer_op(
                f"{start} st.global.b128 [cell], q; mov.b128 s, {{b, c}};"
                f" atom.global.relaxed.gpu.cas.b128 q, [cell], r, s;"
                f" ld.relaxed.gpu.global.b128 s, [cell]; mov.b128 {names}, s; }}",
                "u8",
                lambda a, b, c, low=low: (b if low else c) if a == c else (a if low else b),
            ),
            integer_op(
                f"{start} st.global.b128 [cell], q; atom.global.exch.b128 s, [cell], r;"
                f" mov.b128 {names}, s; }}",
                "u8",
                lambda a, b, c, low=low: a if low else b,
            ),
        ]
    return ops


# -- atomics on floating point -----------------------------------------------------------------


def _float_atomics(t: str, f: Format) -> list[Op]:
    """Single precision is flushed in global memory and in no other."""
    ops = []
    kind = f"f{f.width // 8}"
    for space, at in _SPACES:
        for scope in ("", ".acq_rel.gpu"):
            ftz = t == "f32" and at in ("cell", "near")
            added = exact.on_patterns(exact.operation(exact.add, f, ftz=ftz), kind, 2)
            atom = f"atom{scope}{space}.add.{t} old, [{at}], b;"
            ops.append(Op(_updated(f.width, space, at, atom), kind, added))
    return ops


def _half_atomics(t: str, f: Format) -> list[Op]:
    add = partial(exact.add, f, "rn")

    def both(a: int, b: int) -> int:
        return add(a & 0xFFFF, b & 0xFFFF) | add(a >> 16, b >> 16) << 16

    ops = []
    for space, at in _SPACES:
        pair = f"atom{space}.add.noftz.{t}x2 old, [{at}], b;"
        ops.append(integer_op(_updated(32, space, at, pair), "u4", both))
        # One half, its neighbour is left alone.
        single = (
            f"{{ .reg .b16 h, k; mov.b32 {{h, k}}, b; atom{space}.add.noftz.{t} h, [{at}], h;"
            " mov.b32 old, a; }"
        )
        ops.append(
            integer_op(
                _updated(32, space, at, single),
                "u4",
                lambda a, b: add(a & 0xFFFF, b & 0xFFFF) | a >> 16 << 16,
            )
        )
    return ops


def _vector_atomics() -> list[Op]:
    """Two at once, on (a, b) in memory with (b, a): the second result."""
    largest = extreme("max", "", F16)

    def halves(a: int, b: int) -> int:
        return largest(b & 0xFFFF, a & 0xFFFF) | b >> 16 << 16

    start = "{ .reg .b32 x, y; .reg .b16 h, k, i, j; st.global.v2.b32 [cell], {a, b};"
    return [
        Op(f"{start} atom.global.v2.f32.add {{x, y}}, [cell], {{b, a}}; ld.global.b32 d, [cell+4];"
           " }", "f4",
           exact.on_patterns(exact.operation(lambda f, m, a, b: exact.add(f, m, b, a), F32,
                                             ftz=True), "f4", 2)),
        integer_op(
            f"{start} mov.b32 {{h, k}}, a; mov.b16 k, 0xFC00;"
            " atom.global.v2.f16.max.noftz {i, j}, [cell+4], {h, k}; ld.global.b32 d, [cell+4]; }",
            "u4",
            lambda a, b: largest(b & 0xFFFF, a & 0xFFFF) | largest(b >> 16, 0xFC00) << 16,
        ),
    ]  # fmt: skip


# -- moves -------------------------------------------------------------------------------------


def _stores() -> list[Op]:
    """A store changes its own bytes only."""
    ops = []
    for space, at in _SPACES:
        for t in ("u8", "b16", "u32"):
            bits = int(t[1:])

            def stored(a: int, b: int, bits: int = bits) -> int:
                field = (1 << bits) - 1 << bits
                return b & ~field | a << bits & field

            ops.append(
                integer_op(
                    f"{{ .reg .b{max(bits, 16)} x; cvt.u{max(bits, 16)}.u64 x, a;"
                    f" st{space}.b64 [{at}], b; st{space}.{t} [{at}+{bits // 8}], x;"
                    f" ld{space}.b64 d, [{at}]; }}",
                    "u8",
                    stored,
                )
            )
    return ops


def _loads() -> list[Op]:
    """Narrow loads into wider registers, with the sign where the type has one."""
    ops = []
    for load in ("ld.global", "ld.global.nc", "ld", "ld.mmio.relaxed.sys.global"):
        address = "near" if load == "ld" else "cell"
        for t in ("s8", "u8", "s16", "u16", "s32", "u32"):
            if "mmio" in load and t[1:] != "32":
                continue
            bits = int(t[1:])

            def taken(a: int, b: int, t: str = t, bits: int = bits) -> int:
                value = a & ((1 << bits) - 1)
                return _signed(value, bits) if t[0] == "s" else value

            # The non-coherent load reads what the host wrote.
            text = f"st.global.b64 [cell], a; {load}.{t} d, [{address}];"
            if load.endswith(".nc"):
                here = "mad.wide.u32 %address, %row, 8, %address;"
                text = f"ld.param.u64 %address, [in_x]; {here} {load}.{t} d, [%address];"
            ops.append(integer_op(text, "u8", taken))
    return ops


def _vectors() -> list[Op]:
    """Unnamed and constant elements, and an address that is also a destination."""
    return [
        integer_op("st.global.v2.b64 [cell], {a, b}; ld.global.v2.u64 {_, d}, [cell];", "u8",
                   lambda a, b: b),
        integer_op("st.global.v2.u32 [cell], {7, -1}; ld.global.u64 d, [cell];", "u8",
                   lambda a, b: 0xFFFFFFFF00000007),
        integer_op("{ .reg .b64 p; mov.b64 p, cell; st.global.v2.b64 [p], {a, b};"
                   " ld.global.v2.u64 {p, d}, [p]; add.u64 d, d, p; }", "u8", lambda a, b: a + b),
        integer_op("{ .reg .f64 x, y; st.global.v2.b64 [cell], {a, b};"
                   " ld.volatile.global.v2.f64 {x, y}, [cell]; mov.b64 d, y; }", "u8",
                   lambda a, b: b),
        integer_op("{ .reg .f32 x; .reg .b32 y, z; mov.b64 {y, z}, a; mov.b32 x, y;"
                   " mov.b64 d, {z, x}; }", "u8", lambda a, b: a >> 32 | (a & 0xFFFFFFFF) << 32),
        integer_op("{ .reg .f32 x, y; st.global.b64 [cell], a; ld.global.b32 x, [cell+4];"
                   " mov.f32 y, x; st.global.f32 [cell], y; ld.global.u32 d, [cell]; }", "u8",
                   lambda a, b: a >> 32),
        integer_op("{ .reg .f64 x; mov.b64 x, a; mov.f64 x, x; mov.b64 d, x; }", "u8",
                   lambda a, b: a),
        integer_op("{ .reg .b8 x, y, z, w; .reg .b32 v; cvt.u32.u64 v, a;"
                   " mov.b32 {x, y, z, w}, v; mov.b32 v, {w, z, y, x}; cvt.u64.u32 d, v; }", "u8",
                   lambda a, b: int.from_bytes((a & 0xFFFFFFFF).to_bytes(4, "little"), "big")),
        integer_op("{ .reg .b16 x, y; .reg .b32 v; .reg .f32 f; cvt.u32.u64 v, a; mov.b32 f, v;"
                   " mov.b32 {x, y}, f; mov.b32 v, {y, x}; cvt.u64.u32 d, v; }", "u8",
                   lambda a, b: (a & 0xFFFF) << 16 | a >> 16 & 0xFFFF),
    ]  # fmt: skip


def _spaces() -> list[Op]:
    """To which windows the four kinds of address belong."""
    ops = []
    for address in ("near", "far"):
        for space in ("global", "shared", "shared::cta", "shared::cluster", "local", "const",
                      "param", "param::entry"):  # fmt: skip
            inside = space.startswith("shared" if address == "far" else "global")
            ops.append(
                integer_op(
                    f"{{ .reg .pred p; isspacep.{space} p, {address}; selp.b64 d, 1, 0, p; }}",
                    "u8",
                    lambda a, b, inside=inside: inside,
                )
            )
    return ops


def _copies() -> list[Op]:
    """``cp.async`` of a part, the rest is zeros; a source of no bytes is not read."""
    bare = "cp.async.wait_all;"
    start = (
        "{ .reg .b32 n; .reg .b64 from, x; .reg .pred p; and.b64 x, a, 31; min.u64 x, x, 16;"
        " cvt.u32.u64 n, x; setp.eq.u32 p, n, 0; selp.b64 from, 0, cell, p;"
        " st.global.v2.b64 [cell], {b, a}; st.shared.v2.b64 [slot], {-1, -1};"
    )

    def part(a: int, b: int, at: int) -> int:
        raw = (b | a << 64).to_bytes(16, "little")[: min(a & 31, 16)].ljust(16, b"\0")
        return int.from_bytes(raw[at : at + 8], "little")

    ops = [
        integer_op(
            f"{start} cp.async.cg.shared.global.L2::128B [slot], [from], 16, n; {bare}"
            f" ld.shared.b64 d, [slot+{at}]; }}",
            "u8",
            partial(part, at=at),
        )
        for at in (0, 8)
    ]
    for at in (0, 8):  # all or nothing of eight bytes: the other eight stay
        ops.append(
            integer_op(
                f"{start} cp.async.ca.shared.global [slot], [from], 8, p; cp.async.commit_group;"
                f" cp.async.wait_group 0; ld.shared.b64 d, [slot+{at}]; }}",
                "u8",
                lambda a, b, at=at: (b if a & 31 else 0) if at == 0 else -1,
            )
        )
    return ops


_ONCE = "griddepcontrol.wait; discard.global.L2 [cells], 128; mov.b64 d, a;"


def _words(rng: Rng) -> list[Array]:
    drawn: list[Array] = operands(64, False, 2)(rng)
    return drawn


CASES: tuple[Case, ...] = (
    *(
        _memory_case(
            f"atomic_values_{bits}",
            _integer_atomics(bits),
            (f"u{bits // 8}",) * 3,
            operands(bits, False, 3),
            "atom.global", "atom.shared", "red", "atom.cas",
        )
        for bits in (32, 64)
    ),
    _memory_case(
        "atomic_values_16", _swaps(16), ("u2",) * 3, operands(16, False, 3), "atom.cas.b16"
    ),
    _memory_case(
        "atomic_values_128", _wide(), ("u8",) * 3, operands(64, False, 3), "atom.b128", arch="90"
    ),
    _memory_case(
        "atomic_values_f32",
        [*_float_atomics("f32", F32)],
        ("u4",) * 2,
        patterns(F32, 2),
        "atom.add.f32", "ftz",
    ),
    _memory_case(
        "atomic_values_f64", _float_atomics("f64", F64), ("u8",) * 2, patterns(F64, 2),
        "atom.add.f64",
    ),
    _memory_case(
        "atomic_values_halves",
        [*_half_atomics("f16", F16), *_half_atomics("bf16", BF16), *_vector_atomics()],
        ("u4",) * 2,
        patterns(F32, 2),
        "atom.add.f16", "atom.add.bf16", "atom.v2",
        arch="90",
    ),
    _memory_case(
        "moves",
        [*_stores(), *_loads(), *_vectors(), *_spaces(), *_copies(),
         integer_op(_ONCE, "u8", lambda a, b: a)],
        ("u8",) * 2,
        _words,
        "ld.global", "st.global", "isspacep", "cp.async", "mov",
        arch="90",
    ),
)  # fmt: skip
