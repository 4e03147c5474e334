"""Loads, stores, moves, and address conversion.

Vector accesses are one scalar access an element: LLVM's loop vectoriser refuses loops that hold
vector instructions, and joins neighbouring scalars by itself. For the same reason an access
claims the alignment of its element only; unaligned vector moves cost nothing on current CPUs.

Memory order: a block runs on one OS thread, so nothing but the compiler can reorder its accesses
to shared memory as the block sees them. Strong accesses become LLVM atomics all the same: that
keeps LLVM from caching a value that another thread of the block writes between two yields.

Source: PTX ISA 9.0, section 9.7.9 (data movement), chapter 8 (memory consistency model).
"""

from __future__ import annotations

from collections.abc import Sequence

from gpud.compiler.ptx.model import Address, Instruction, Operand, Symbol, Vector
from gpud.device.cpu.codegen.thread import LLVM_TYPE, Thread
from gpud.device.cpu.lower.mbarrier import arrive
from gpud.device.cpu.lower.registry import SCOPES, Modifiers, lowering, reject
from gpud.device.cpu.lower.values import Value, constant, read, write

__all__ = ["SPACES", "address_value", "element", "generic_shared", "space_of"]

SPACES = (
    "global",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "const",
    "param",
    "param::entry",
    "param::func",
)
_CACHE_OPERATORS = ("ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified")
_HINTS = ("L1::", "L2::")
_ORDERS = ("weak", "volatile", "relaxed", "acquire", "release", "mmio")
_LLVM_ORDER = {
    "volatile": "monotonic",
    "relaxed": "monotonic",
    "mmio": "monotonic",
    "acquire": "acquire",
    "release": "release",
}


def space_of(m: Modifiers) -> str:
    """Take the state space modifier; "" is generic."""
    return m.choice(*SPACES)


def element(t: Thread, pointer: str, index: int, size: int) -> str:
    """``ptr`` to element ``index`` of ``size`` bytes from ``pointer`` on."""
    if index == 0:
        return pointer
    return t.e.value(f"getelementptr i8, ptr {pointer}, i64 {index * size}")


class _Access:
    """The modifiers that ``ld`` and ``st`` share."""

    def __init__(self, ins: Instruction) -> None:
        m = Modifiers(ins)
        self.orders = [order for order in _ORDERS if m.flag(order)]
        scope = m.choice(*SCOPES)
        self.space = space_of(m)
        for operator in _CACHE_OPERATORS:
            m.flag(operator)
        hinted = m.flag("L2::cache_hint")
        m.skip(*_HINTS)
        self.count = int(m.choice("v2", "v4", "v8", default="v1")[1:])
        self.type = m.type()
        m.done()
        if self.type == "pred" or self.type in ("f16x2", "bf16x2", "tf32"):
            raise reject(ins, f"memory holds no .{self.type}")
        strong = [order for order in self.orders if order not in ("weak", "mmio")]
        if scope and not strong:
            raise reject(ins, "a scope needs .relaxed, .acquire or .release")
        expected = 3 if hinted else 2
        if len(ins.operands) != expected:
            raise reject(ins, f"it has {len(ins.operands)} operands instead of {expected}")
        self.llvm = LLVM_TYPE[self.type]
        self.bytes = int(self.type.lstrip("bsufe")) // 8

    def words(self) -> tuple[str, str]:
        """(what follows ``load``/``store``, what follows the pointer)."""
        strong = [_LLVM_ORDER[order] for order in self.orders if order != "weak"]
        align = f", align {self.bytes}"
        if not strong:
            return "", align
        if self.bytes > 8:
            # No CPU promises 16-byte atomic loads without extensions; the ISA only asks for them
            # of accesses that race.
            return "volatile ", align
        order = max(strong, key=("monotonic", "acquire", "release").index)
        volatile = "volatile " if {"volatile", "mmio"} & set(self.orders) else ""
        return f"atomic {volatile}", f" {order}{align}"

    def elements(self, ins: Instruction, operand: Operand) -> Sequence[Operand]:
        """The registers or values of the access, one an element."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != self.count:
            raise reject(ins, f"it has {len(items)} elements instead of {self.count}")
        return items


@lowering("ld", "ldu")
def _ld(t: Thread, ins: Instruction) -> None:
    access = _Access(ins)
    pointer = t.pointer(ins.operands[1], access.space)
    before, after = access.words()
    tags = t.ordered_tags if before else t.tags
    targets = access.elements(ins, ins.operands[0])
    # All elements are read before the first is written: the address may be a destination.
    values = []
    for index in range(access.count):
        at = element(t, pointer, index, access.bytes)
        text = f"load {before}{access.llvm}, ptr {at}{after}{tags}"
        values.append(Value(t.e, access.llvm, t.e.value(text)))
    for target, value in zip(targets, values, strict=True):
        write(t, target, access.type, value)


@lowering("st")
def _st(t: Thread, ins: Instruction) -> None:
    access = _Access(ins)
    pointer = t.pointer(ins.operands[0], access.space)
    before, after = access.words()
    tags = t.ordered_tags if before else t.tags
    for index, source in enumerate(access.elements(ins, ins.operands[1])):
        value = read(t, source, access.type)
        at = element(t, pointer, index, access.bytes)
        t.e.do(f"store {before}{access.llvm} {value.text}, ptr {at}{after}{tags}")


# -- moves


@lowering("mov")
def _mov(t: Thread, ins: Instruction) -> None:
    m = Modifiers(ins)
    type_ = m.type()
    m.done(2)
    target, source = ins.operands
    if isinstance(target, Vector):
        _unpack(t, ins, target, source, type_)
    elif isinstance(source, Vector):
        _pack(t, ins, target, source, type_)
    else:
        write(t, target, type_, read(t, source, type_))


def _part(ins: Instruction, vector: Vector, type_: str) -> str:
    """The type of the elements of a packed value."""
    bits, rest = divmod(int(type_.lstrip("bsuf")), len(vector.items))
    if rest or f"b{bits}" not in LLVM_TYPE:
        raise reject(ins, f".{type_} does not divide into {len(vector.items)} elements")
    return f"b{bits}"


def _pack(t: Thread, ins: Instruction, target: Operand, source: Vector, type_: str) -> None:
    part = _part(ins, source, type_)
    whole = f"b{type_.lstrip('bsuf')}"
    bits = int(part[1:])
    result = constant(t.e, LLVM_TYPE[whole], 0)
    for index, item in enumerate(source.items):
        piece = read(t, item, part).zext(result.type)
        result = result | (piece << (bits * index)) if index else piece
    write(t, target, whole, result)


def _unpack(t: Thread, ins: Instruction, target: Vector, source: Operand, type_: str) -> None:
    part = _part(ins, target, type_)
    value = read(t, source, f"b{type_.lstrip('bsuf')}")
    bits = int(part[1:])
    for index, item in enumerate(target.items):
        if not (isinstance(item, Symbol) and item.name == "_"):
            write(t, item, part, (value >> (bits * index)).trunc(LLVM_TYPE[part]))


# -- addresses


def generic_shared(t: Thread) -> Value:
    """The generic address at which the block's shared memory begins."""
    return Value(t.e, "i64", t.e.value(f"ptrtoint ptr {t.addresses.shared_base()} to i64"))


def address_value(t: Thread, operand: Operand, type_: str) -> Value:
    """An address given as a register, a symbol or a symbol plus offset."""
    return read(t, operand, type_)


@lowering("cvta")
def _cvta(t: Thread, ins: Instruction) -> None:
    m = Modifiers(ins)
    to, space = m.flag("to"), m.require(*SPACES)
    type_ = m.require("u64", "u32")
    m.done(2)
    value = address_value(t, ins.operands[1], type_).zext("i64")
    if space.startswith("shared"):
        base = generic_shared(t)
        value = value - base if to else value + base
    write(t, ins.operands[0], type_, value.trunc(LLVM_TYPE[type_]))


@lowering("isspacep")
def _isspacep(t: Thread, ins: Instruction) -> None:
    m = Modifiers(ins)
    space = m.require(*SPACES)
    m.done(2)
    address = read(t, ins.operands[1], "u64")

    def inside(bounds: tuple[str, str]) -> Value:
        first, size = (Value(t.e, "i64", text) for text in bounds)
        return (address - first).compare("ult", size)

    shared = (generic_shared(t).text, t.addresses.shared_size())
    ranges = {
        "shared": shared,
        "local": t.addresses.local_range(),
        "const": t.addresses.const_range(),
        "param": t.addresses.param_range(),
    }
    if space == "global":
        result = ~inside(ranges["shared"])
        for other in ("local", "const", "param"):
            result = result & ~inside(ranges[other])
    else:
        result = inside(ranges[space.partition("::")[0]])
    write(t, ins.operands[0], "pred", result)


@lowering("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def _cache_control(t: Thread, ins: Instruction) -> None:
    """No-ops, but for ``createpolicy``, whose opaque result is 0.

    ``discard`` allows what is in memory to become undefined; leaving it is allowed.
    """
    if ins.opcode.base == "createpolicy":
        write(t, ins.operands[0], "b64", constant(t.e, "i64", 0))
    elif not isinstance(ins.operands[0], Address):
        raise reject(ins, "it needs an address")


@lowering("griddepcontrol", "setmaxnreg", "pmevent")
def _nothing(t: Thread, ins: Instruction) -> None:
    """No-ops here: grids of one stream run one after the other, registers are not rationed."""


# -- cp.async


@lowering("cp")
def _cp(t: Thread, ins: Instruction) -> None:
    m = Modifiers(ins)
    m.require("async")
    if m.flag("commit_group") or m.flag("wait_all"):
        m.done(0)
        return
    if m.flag("wait_group"):
        m.done(1)
        return
    if m.flag("mbarrier"):
        _arrive_when_copied(t, ins, m)
        return
    _copy(t, ins, m)


def _arrive_when_copied(t: Thread, ins: Instruction, m: Modifiers) -> None:
    """``cp.async.mbarrier.arrive{.noinc}``: the copies are done, so the arrival happens now.

    Without ``.noinc`` the pending count is first raised by one, so that nothing changes.
    """
    m.require("arrive")
    counts, space = m.flag("noinc"), space_of(m)
    m.require("b64")
    m.done(1)
    if counts:
        arrive(t, t.pointer(ins.operands[0], space), constant(t.e, "i64", 1))


def _copy(t: Thread, ins: Instruction, m: Modifiers) -> None:
    """A copy to shared memory, done at once; ``wait_group`` then has nothing to wait for."""
    m.require("ca", "cg")
    to = m.require("shared", "shared::cta", "shared::cluster")
    m.require("global")
    hinted = m.flag("L2::cache_hint")
    m.skip(*_HINTS)
    m.done()
    operands = list(ins.operands[: len(ins.operands) - hinted])
    target, source = t.pointer(operands[0], to), t.pointer(operands[1], "global")
    size = getattr(operands[2], "value", 0)
    if size not in (4, 8, 16) or len(operands) > 4:
        raise reject(ins, "it copies 4, 8 or 16 bytes")
    if len(operands) == 4:
        _copy_some(t, target, source, size, operands[3])
        return
    for index in range(size // 4):
        value = t.e.value(f"load i32, ptr {element(t, source, index, 4)}, align 4{t.tags}")
        t.e.do(f"store i32 {value}, ptr {element(t, target, index, 4)}, align 4{t.tags}")


def _copy_some(t: Thread, target: str, source: str, size: int, count: Operand) -> None:
    """Copy the first bytes and fill the rest of ``size`` with zeros, without reading it."""
    stored = t.storage.get(getattr(count, "name", ""), "i32")
    if stored == "i1":  # ignore-src: a predicate that asks for zeros only
        number = read(t, count, "pred").select(constant(t.e, "i32", 0), size)
    else:
        number = read(t, count, "u32").min_u(size)
    t.e.module.define_once("gpud.copy.zero", _COPY_ZERO)
    pointers = (Value(t.e, "ptr", text) for text in (target, source))
    arguments = ", ".join(
        f"{a.type} {a.text}" for a in (*pointers, number, constant(t.e, "i32", size))
    )
    t.e.do(f"call void @gpud.copy.zero({arguments})")


_COPY_ZERO = """define internal void @gpud.copy.zero(ptr %to, ptr %from, i32 %count, i32 %size) {
entry:
  br label %loop
loop:
  %i = phi i32 [0, %entry], [%next, %stored]
  %have = icmp ult i32 %i, %count
  br i1 %have, label %read, label %stored
read:
  %source = getelementptr i8, ptr %from, i32 %i
  %byte = load i8, ptr %source
  br label %stored
stored:
  %value = phi i8 [0, %loop], [%byte, %read]
  %target = getelementptr i8, ptr %to, i32 %i
  store i8 %value, ptr %target
  %next = add i32 %i, 1
  %more = icmp ult i32 %next, %size
  br i1 %more, label %loop, label %done
done:
  ret void
}"""
