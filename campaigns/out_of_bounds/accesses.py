"""Every kind of global and generic access that PTX has and the CPU device runs.

An `Access` is a piece of PTX that touches memory at ``[%a+imm]``, folds what it read into ``%res``,
and takes what it writes from ``%value``; and a model in Python of what that does to memory, where
the operation is one on integers.

Terms: a *part* is one instruction's access, (offset, span, align, opcode); all kinds have one but
for the fields of a struct, several accesses with one base, which a compiler may check together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

MASK = (1 << 64) - 1

Model = Callable[[bytearray, int, int], int]
"""(memory, offset, value) -> result; changes memory."""


@dataclass(frozen=True)
class Part:
    """One instruction's access: bytes [offset, offset + span) from the address."""

    offset: int
    span: int
    align: int
    opcode: str
    odd: bool = False
    """Only threads whose value is odd come to it."""


@dataclass(frozen=True)
class Access:
    """A kind of access.

    Attributes:
        name: its opcode, or what it is made of.
        group: ld, st, atom, red, cp, fields.
        code: PTX with ``{a}`` for the address operand without brackets, which is ``{base}`` plus
            ``{offset}``; local names in a scope.
        parts: what it touches, in order.
        model: what it does; None: only that nothing else changes is checked.
    """

    name: str
    group: str
    code: str
    parts: tuple[Part, ...]
    model: Model | None

    @property
    def span(self) -> int:
        """Bytes from the address to the end of the last part."""
        return max(part.offset + part.span for part in self.parts)

    @property
    def align(self) -> int:
        """What the address is a multiple of."""
        return max(part.align for part in self.parts)


def _single(
    name: str, group: str, lines: list[str], span: int, model: Model | None, align: int = 0
) -> Access:
    code = "\n".join(("{{", *(f"  {line}" for line in lines), "}}"))
    return Access(name, group, code, (Part(0, span, align or span, name),), model)


def _bits(type_: str) -> int:
    return int(type_.lstrip("bsuf"))


# -- registers ---------------------------------------------------------------------------------


def _register(type_: str) -> str:
    """The type of a register that holds an element."""
    bits = _bits(type_)
    if type_[0] == "f" and bits in (32, 64):
        return f"f{bits}"
    return f"b{max(bits, 16)}"


def _declare(type_: str, count: int, name: str = "v") -> str:
    return f".reg .{_register(type_)} %{name}<{count}>;"


def _fold(type_: str, index: int) -> list[str]:
    """``res = 31 res + element``, of the element's bits as they are in the register."""
    kind = _register(type_)
    if kind == "b128":
        return [
            "{{ .reg .b64 %lo, %hi;",
            f"mov.b128 {{{{%lo, %hi}}}}, %v{index};",
            "mad.lo.u64 %res, %res, 31, %lo; mad.lo.u64 %res, %res, 31, %hi; }}",
        ]
    to = {
        "b16": f"cvt.u64.u16 %w, %v{index};",
        "b32": f"cvt.u64.u32 %w, %v{index};",
        "b64": f"mov.b64 %w, %v{index};",
        "f32": f"{{{{ .reg .b32 %x; mov.b32 %x, %v{index}; cvt.u64.u32 %w, %x; }}}}",
        "f64": f"mov.b64 %w, %v{index};",
    }[kind]
    return [f"{{{{ .reg .b64 %w; {to} mad.lo.u64 %res, %res, 31, %w; }}}}"]


def _source(type_: str, index: int, name: str = "v", add: int = 0) -> list[str]:
    """Element ``index`` of what is written: ``value + index``, cut to its width."""
    kind, to = _register(type_), f"%{name}{index}"
    start = f"{{{{ .reg .b64 %w; add.s64 %w, %value, {index + add};"
    if kind == "b128":
        return [f"{start} mov.b128 {to}, {{{{%w, %w}}}}; }}}}"]
    how = {
        "b16": f"cvt.u16.u64 {to}, %w;",
        "b32": f"cvt.u32.u64 {to}, %w;",
        "b64": f"mov.b64 {to}, %w;",
        "f32": f"{{{{ .reg .b32 %x; cvt.u32.u64 %x, %w; mov.b32 {to}, %x; }}}}",
        "f64": f"mov.b64 {to}, %w;",
    }[kind]
    return [f"{start} {how} }}}}"]


def _vector(count: int, name: str = "v") -> str:
    items = ", ".join(f"%{name}{i}" for i in range(count))
    return f"{{{{{items}}}}}" if count > 1 else items


# -- loads and stores --------------------------------------------------------------------------


def _fold_model(total: int, data: bytes | bytearray, type_: str) -> int:
    bits = _bits(type_)
    if bits == 128:
        for at in (0, 8):
            total = total * 31 + int.from_bytes(data[at : at + 8], "little")
        return total & MASK
    number = int.from_bytes(data, "little", signed=type_[0] == "s")
    return (total * 31 + (number & ((1 << max(bits, 16)) - 1))) & MASK


def _load(opcode: str, type_: str, count: int) -> Access:
    size = _bits(type_) // 8

    def model(memory: bytearray, at: int, value: int) -> int:
        total = 0
        for index in range(count):
            first = at + index * size
            total = _fold_model(total, memory[first : first + size], type_)
        return total

    vector = f".v{count}" if count > 1 else ""
    name = f"{opcode}{vector}.{type_}"
    lines = [
        _declare(type_, count),
        f"{name} {_vector(count)}, [{{a}}];",
        "mov.b64 %res, 0;",
        *(line for index in range(count) for line in _fold(type_, index)),
    ]
    return _single(name, opcode.split(".", 1)[0], lines, size * count, model)


def _element(value: int, index: int, type_: str) -> bytes:
    number = (value + index) & MASK
    bits = _bits(type_)
    if bits == 128:
        number |= number << 64
    return (number & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def _store(opcode: str, type_: str, count: int) -> Access:
    size = _bits(type_) // 8

    def model(memory: bytearray, at: int, value: int) -> int:
        for index in range(count):
            first = at + index * size
            memory[first : first + size] = _element(value, index, type_)
        return value

    vector = f".v{count}" if count > 1 else ""
    name = f"{opcode}{vector}.{type_}"
    lines = [
        _declare(type_, count),
        *(line for index in range(count) for line in _source(type_, index)),
        f"{name} [{{a}}], {_vector(count)};",
        "mov.b64 %res, %value;",
    ]
    return _single(name, "st", lines, size * count, model)


_SPACES = (".global", "")
_PLAIN = (
    "b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64",
)  # fmt: skip
_VECTORS = (
    ("b8", 2), ("u8", 4), ("b16", 2), ("s16", 4), ("b32", 2), ("f32", 2), ("u32", 4), ("f32", 4),
    ("b64", 2), ("f64", 2), ("f32", 8), ("b64", 4),
)  # fmt: skip


def _loads() -> Iterator[Access]:
    for space in _SPACES:
        for type_ in (*_PLAIN, "b128"):
            yield _load(f"ld{space}", type_, 1)
        for type_, count in _VECTORS:
            yield _load(f"ld{space}", type_, count)
        for order, type_, count in (
            (".volatile", "u32", 1), (".volatile", "b64", 1), (".volatile", "f32", 4),
            (".relaxed.gpu", "b32", 1), (".relaxed.sys", "b64", 1), (".relaxed.cta", "u8", 1),
            (".acquire.gpu", "u32", 1), (".acquire.sys", "b64", 1), (".acquire.cta", "b16", 1),
            (".relaxed.gpu", "b32", 4), (".weak", "b32", 1), (".mmio.relaxed.sys", "u32", 1),
        ):  # fmt: skip
            if not (order == ".mmio.relaxed.sys" and not space):
                yield _load(f"ld{order}{space}", type_, count)
        for hint in (".ca", ".cg", ".cs", ".lu", ".cv", ".L1::no_allocate"):
            yield _load(f"ld{space}{hint}", "f32", 1)
    for type_ in ("u8", "s16", "b32", "f32", "u64", "f64"):
        yield _load("ld.global.nc", type_, 1)
    for type_, count in (("u8", 4), ("f32", 2), ("f32", 4), ("b64", 2)):
        yield _load("ld.global.nc", type_, count)
    yield _load("ld.global.nc.L1::evict_last", "b32", 1)
    for type_, count in (("b8", 1), ("u16", 1), ("f32", 1), ("b64", 1), ("f32", 4), ("b64", 2)):
        yield _load("ldu.global", type_, count)
    yield _load("ldu", "u32", 1)


def _stores() -> Iterator[Access]:
    for space in _SPACES:
        for type_ in (*_PLAIN, "b128"):
            yield _store(f"st{space}", type_, 1)
        for type_, count in _VECTORS:
            yield _store(f"st{space}", type_, count)
        for order, type_, count in (
            (".volatile", "u32", 1), (".volatile", "b64", 1), (".volatile", "f32", 4),
            (".relaxed.gpu", "b32", 1), (".relaxed.sys", "b64", 1), (".relaxed.cta", "u8", 1),
            (".release.gpu", "u32", 1), (".release.sys", "b64", 1), (".release.cta", "b16", 1),
            (".relaxed.gpu", "b32", 2), (".weak", "b32", 1),
        ):  # fmt: skip
            yield _store(f"st{order}{space}", type_, count)
        for hint in (".wb", ".cg", ".cs", ".wt"):
            yield _store(f"st{space}{hint}", "f32", 1)


# -- atomics -----------------------------------------------------------------------------------


def _operate(operation: str, old: int, new: int, bits: int, signed: bool) -> int:
    mask = (1 << bits) - 1

    def number(x: int) -> int:
        return x - (1 << bits) if signed and x >> (bits - 1) else x

    if operation == "inc":
        return 0 if old >= new else old + 1
    if operation == "dec":
        return new if old == 0 or old > new else old - 1
    if operation in ("min", "max"):
        chosen = (min if operation == "min" else max)(number(old), number(new))
        return chosen & mask
    return {
        "add": old + new, "exch": new, "cas": new, "and": old & new, "or": old | new,
        "xor": old ^ new,
    }[operation] & mask  # fmt: skip


def _atom(base: str, order: str, space: str, operation: str, type_: str, count: int = 1) -> Access:
    packed = type_ in ("f16x2", "bf16x2")
    half = type_ in ("f16", "bf16")
    plain = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}.get(type_, type_)
    bits = _bits(plain)
    size = bits // 8
    noftz = ".noftz" if (packed or half) and operation == "add" else ""
    vector = f".v{count}" if count > 1 else ""
    name = f"{base}{order}{space}.{operation}{noftz}{vector}.{type_}"
    exact = type_[0] in "bus" and not type_.startswith("bf")

    def model(memory: bytearray, at: int, value: int) -> int:
        old = int.from_bytes(memory[at : at + size], "little")
        new = int.from_bytes(_element(value, 0, plain), "little")
        if operation == "cas" and old != int.from_bytes(b"\xa5" * size, "little"):
            result = old
        else:
            result = _operate(operation, old, new, bits, type_[0] == "s")
        memory[at : at + size] = result.to_bytes(size, "little")
        if base == "red":
            return value
        return _fold_model(0, old.to_bytes(size, "little"), f"b{bits}")

    lines = [_declare(plain, count), _declare(plain, count, "s")]
    lines += [line for index in range(count) for line in _source(plain, index, "s")]
    compare = ""
    if operation == "cas":
        compare = "%c0, "
        lines.append(_declare(plain, 1, "c"))
        pattern = f"0x{'a5' * min(size, 8)}"
        if bits == 128:
            lines.append(
                f"{{{{ .reg .b64 %w; mov.b64 %w, {pattern}; mov.b128 %c0, {{{{%w, %w}}}}; }}}}"
            )
        else:
            lines.append(f"mov.b{bits} %c0, {pattern};")
    sources = f"{compare}{_vector(count, 's')}"
    if base == "red":
        lines += [f"{name} [{{a}}], {sources};", "mov.b64 %res, %value;"]
    else:
        lines += [f"{name} {_vector(count)}, [{{a}}], {sources};", "mov.b64 %res, 0;"]
        lines += [line for index in range(count) for line in _fold(plain, index)]
    return _single(name, base, lines, size * count, model if exact and count == 1 else None)


_OPERATIONS = {
    "exch": "b32 b64 b128",
    "cas": "b16 b32 b64 b128",
    "add": "u32 s32 u64 f32 f64 f16 bf16 f16x2 bf16x2",
    "inc": "u32",
    "dec": "u32",
    "min": "u32 s32 u64 s64",
    "max": "u32 s32 u64 s64",
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
}


def _atomics() -> Iterator[Access]:
    for base in ("atom", "red"):
        for space in _SPACES:
            for operation, types in _OPERATIONS.items():
                if base == "red" and operation in ("exch", "cas"):
                    continue
                for type_ in types.split():
                    yield _atom(base, "", space, operation, type_)
            for order in (".relaxed.gpu", ".release.sys"):
                yield _atom(base, order, space, "add", "u32")
    for space in _SPACES:
        yield _atom("atom", ".acquire.gpu", space, "cas", "b32")
        yield _atom("atom", ".acq_rel.cta", space, "exch", "b64")
        yield _atom("atom", ".acq_rel.gpu", space, "or", "b64")
    for type_, count in (("f32", 2), ("f32", 4), ("f16", 2), ("f16x2", 4), ("bf16", 8)):
        yield _atom("atom", "", ".global", "add", type_, count)
        yield _atom("red", "", ".global", "add", type_, count)


# -- asynchronous copies, and several accesses with one base -----------------------------------


def _copy(how: str, size: int, some: int | None = None) -> Access:
    """``cp.async`` to the thread's 16 bytes of ``%pad``, read back; ``some`` bytes of ``size``."""
    name = f"cp.async.{how}.shared.global"
    span = size if some is None else some

    def model(memory: bytearray, at: int, value: int) -> int:
        total = 0
        data = bytes(memory[at : at + span]).ljust(size, b"\0")
        for first in range(0, size, 4):
            total = _fold_model(total, data[first : first + 4], "b32")
        return total

    count = size // 4
    lines = [_declare("b32", count)]
    tail = ""
    if some is not None:
        lines.append(f".reg .b32 %n; mov.u32 %n, {some};")
        tail = ", %n"
    lines += [
        f"{name} [%pad], [{{a}}], {size}{tail};",
        "cp.async.commit_group;",
        "cp.async.wait_group 0;",
        *(f"ld.shared.b32 %v{index}, [%pad+{4 * index}];" for index in range(count)),
        "mov.b64 %res, 0;",
        *(line for index in range(count) for line in _fold("b32", index)),
    ]
    made = _single(f"{name} {size}" + ("" if some is None else f" of {some}"), "cp", lines, span,
                   model, size)  # fmt: skip
    return Access(made.name, "cp", made.code, (Part(0, span, size, name),), model)


def _copies() -> Iterator[Access]:
    for how, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        yield _copy(how, size)
    yield _copy("ca", 16, 4)
    yield _copy("cg", 16, 12)


def _fields(type_: str, offsets: tuple[int, ...], stores: bool) -> Access:
    size = _bits(type_) // 8
    lines = [_declare(type_, len(offsets)), "mov.b64 %res, 0;"]
    for index, offset in enumerate(offsets):
        if stores:
            lines += _source(type_, index)
            lines.append(f"st.global.{type_} [{{a}}+{offset}], %v{index};")
        else:
            lines.append(f"ld.global.{type_} %v{index}, [{{a}}+{offset}];")
    if stores:
        lines.append("mov.b64 %res, %value;")
    else:
        lines += [line for index in range(len(offsets)) for line in _fold(type_, index)]

    def model(memory: bytearray, at: int, value: int) -> int:
        total = 0
        for index, offset in enumerate(offsets):
            first = at + offset
            if stores:
                memory[first : first + size] = _element(value, index, type_)
            else:
                total = _fold_model(total, memory[first : first + size], type_)
        return value if stores else total

    opcode = f"{'st' if stores else 'ld'}.global.{type_}"
    name = f"fields {opcode} {'/'.join(map(str, offsets))}"
    code = "\n".join(("{{", *(f"  {line}" for line in lines), "}}"))
    parts = tuple(Part(offset, size, size, opcode) for offset in offsets)
    return Access(name, "fields", code, parts, model)


def _structs() -> Iterator[Access]:
    yield _fields("u32", (0, 4, 8, 12), stores=False)
    yield _fields("u32", (0, 4, 8, 12), stores=True)
    yield _fields("b64", (24, 0, 8), stores=False)
    yield _fields("b64", (16, 0), stores=True)
    yield _fields("f32", (28, 12, 20), stores=False)
    yield _fields("u8", (31, 0, 7, 16), stores=True)
    for stores in (False, True):
        yield from _steps(stores)


def _steps(stores: bool) -> Iterator[Access]:
    """What a compiler may check together, hoist or drop: but only where it is sure to happen."""
    opcode = "st.global.u32" if stores else "ld.global.u32"
    access = f"{opcode} [%s], %v0;" if stores else f"{opcode} %v0, [%s];"
    end = [] if stores else _fold("b32", 0)
    start = [
        ".reg .b64 %s, %o; .reg .b32 %i; .reg .pred %odd;",
        _declare("b32", 1),
        "add.s64 %s, {base}, {offset}; mov.b64 %res, 0;",
        "and.b64 %o, %value, 1; setp.eq.u64 %odd, %o, 1;",
        *(_source("b32", 0) if stores else []),
    ]
    last = ["mov.b64 %res, %value;"] if stores else []
    step = [access, *end, "add.s64 %s, %s, 8;"]
    bodies: dict[str, tuple[list[str], list[tuple[int, bool]]]] = {
        "stepping": ([*step, *step, *step], [(0, False), (8, False), (16, False)]),
        "walking": (
            ["mov.u32 %i, 0;", "$walk:", *step, "add.u32 %i, %i, 1; setp.lt.u32 %odd, %i, 4;",
             "@%odd bra $walk;"],
            [(0, False), (8, False), (16, False), (24, False)],
        ),
        "maybe": (
            [access, *end, "add.s64 %s, %s, 16; @!%odd bra $not;", access, *end, "$not:"],
            [(0, False), (16, True)],
        ),
        "once or never": (
            ["mov.u32 %i, 0; @!%odd bra $never;", "$once:", access, *end,
             "add.u32 %i, %i, 1; setp.lt.u32 %odd, %i, 1; @%odd bra $once;", "$never:"],
            [(0, True)],
        ),
    }  # fmt: skip
    for name, (body, places) in bodies.items():
        parts = tuple(Part(offset, 4, 4, opcode, odd) for offset, odd in places)
        code = "\n".join(("{{", *(f"  {line}" for line in (*start, *body, *last)), "}}"))
        yield Access(f"{name} {opcode}", "fields", code, parts, _steps_model(parts, stores))


def _steps_model(parts: tuple[Part, ...], stores: bool) -> Model:
    def model(memory: bytearray, at: int, value: int) -> int:
        total = 0
        for part in parts:
            if part.odd and not value & 1:
                continue
            first = at + part.offset
            if stores:
                memory[first : first + 4] = _element(value, 0, "b32")
            else:
                total = _fold_model(total, memory[first : first + 4], "b32")
        return value if stores else total

    return model


ACCESSES: tuple[Access, ...] = (
    *_loads(), *_stores(), *_atomics(), *_copies(), *_structs(),
)  # fmt: skip
"""All kinds, in a fixed order."""
assert len({access.name for access in ACCESSES}) == len(ACCESSES)
