"""atom, red, fence, membar.

A block runs on one OS thread, so no other OS thread sees its shared memory: atomics there are a
plain load, operation and store, which is several times faster than a locked instruction. Global
and generic addresses need real atomics. LLVM's ``atomicrmw`` does the integer operations;
floating-point ones are a compare-and-swap loop, since no CPU instruction does what the ISA demands:
``atom.add.f32`` flushes subnormal numbers in global memory, and only there.

Source: PTX ISA 9.0, sections 9.7.13.4 (membar, fence), 9.7.13.5 (atom) and 9.7.13.6 (red);
chapter 8 (memory consistency model).
"""

from __future__ import annotations

from gpud.compiler.ptx.model import Instruction, Operand, Symbol, Vector
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.ir.values import Value, read, write
from gpud.device.cpu.lower.data_movement.state_spaces import SPACES, element, generic_shared
from gpud.device.cpu.lower.floats.float_arithmetic import minimum_maximum
from gpud.device.cpu.lower.floats.formats import flush, narrow, widen
from gpud.device.cpu.lower.floats.half_arithmetic import add_halves
from gpud.device.cpu.lower.integers.integer_arithmetic import join_halves, split_halves
from gpud.device.cpu.lower.registry import LLVM_ORDER, SCOPES, Modifiers, lowering, rejected

_OPERATIONS = ("exch", "cas", "add", "inc", "dec", "min", "max", "and", "or", "xor")
_TYPES = {
    "exch": "b32 b64 b128",
    "cas": "b16 b32 b64 b128",
    "add": "u32 s32 u64 f32 f64 f16 bf16 f16x2 bf16x2",
    **dict.fromkeys(("inc", "dec"), "u32"),
    **dict.fromkeys(("min", "max"), "u32 s32 u64 s64"),
    **dict.fromkeys(("and", "or", "xor"), "b32 b64"),
}
_HALVES = "f16 bf16 f16x2 bf16x2"
_OF_VECTORS = {"add": f"f32 {_HALVES}", "min": _HALVES, "max": _HALVES}
_RMW = {
    "exch": "xchg",
    "add": "add",
    "inc": "uinc_wrap",
    "dec": "udec_wrap",
    "and": "and",
    "or": "or",
    "xor": "xor",
}
_PACKED = ("f16x2", "bf16x2")


@lowering("atom", "red")
def _atom(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    if modifiers.flag("async"):
        raise rejected(ins, "asynchronous reductions need clusters")
    order = LLVM_ORDER[
        modifiers.choice("relaxed", "acquire", "release", "acq_rel", default="relaxed")
    ]
    modifiers.choice(*SCOPES)
    space = modifiers.choice(*SPACES)
    if space and space.partition("::")[0] not in ("global", "shared"):
        raise rejected(ins, f"there are no atomics on .{space}")
    operation = modifiers.require(*_OPERATIONS)
    noftz, hinted = modifiers.flag("noftz"), modifiers.flag("L2::cache_hint")
    count = int(modifiers.choice("v2", "v4", "v8", default="v1")[1:])
    type_ = modifiers.type()
    modifiers.done()
    types = _OF_VECTORS.get(operation, "") if count > 1 else _TYPES[operation]
    if type_ not in types.split() or (count > 1 and space.startswith("shared")):
        raise rejected(ins, f"there is no .{operation}.{type_}")
    if ("f16" in type_) != noftz:
        raise rejected(ins, "additions and comparisons of halves have .noftz, others have not")
    operands = list(ins.operands[: len(ins.operands) - hinted])
    target = operands.pop(0) if ins.opcode.base == "atom" else Symbol("_")
    if len(operands) != (3 if operation == "cas" else 2) or (ins.opcode.base, operation) in (
        ("red", "cas"),
        ("red", "exch"),
    ):
        raise rejected(ins, "it has the wrong operands")
    pointer = thread.pointer(operands[0], space)
    sources = [_items(ins, operand, count) for operand in operands[1:]]
    targets = _items(ins, target, count)
    access = _Access(thread, operation, type_, order, space.partition("::")[0])
    for index in range(count):
        at = element(thread, pointer, index, access.bytes)
        old = access.run(at, [read(thread, source[index], access.type) for source in sources])
        write(thread, targets[index], access.type, old)


def _items(ins: Instruction, operand: Operand, count: int) -> list[Operand]:
    if isinstance(operand, Vector) and len(operand.items) == count:
        return list(operand.items)
    if count == 1 or (isinstance(operand, Symbol) and operand.name == "_"):
        return [operand] * count
    raise rejected(ins, f"it needs vectors of {count} elements")


class _Access:
    """One atomic operation, on any number of addresses."""

    def __init__(self, thread: Thread, operation: str, type_: str, order: str, space: str) -> None:
        self.thread, self.emitter = thread, thread.emitter
        self.operation, self.order, self.space = operation, order, space
        self.format = type_
        # Halves are handled as bits.
        self.type = {"f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}.get(type_, type_)
        self.llvm = LLVM_TYPE[self.type]
        self.bytes = int(self.type.lstrip("bsuf")) // 8
        self.integer = f"i{8 * self.bytes}"

    def run(self, pointer: str, sources: list[Value]) -> Value:
        """Emit the operation; return the value that was in memory before."""
        if self.space == "shared":
            return self._plain(pointer, sources)
        if self.operation == "cas":
            return self._compare_exchange(pointer, *sources)
        if self.type[0] != "f" and "f16" not in self.format and self.bytes <= 8:
            name = _RMW.get(self.operation)
            if name is None:
                name = self.operation if self.type[0] == "s" else "u" + self.operation
            return self._rmw(name, pointer, sources[0])
        return self._loop(pointer, sources[0])

    def _rmw(self, name: str, pointer: str, source: Value) -> Value:
        text = f"atomicrmw {name} ptr {pointer}, {source.type} {source.text} {self.order}"
        return Value(self.emitter, source.type, self.emitter.value(text + self.thread.ordered_tags))

    def _plain(self, pointer: str, sources: list[Value]) -> Value:
        """Emit the operation on memory that no other OS thread accesses.

        Volatile and without the alias metadata of ordinary accesses, so that a loop over threads
        that add to one address is never vectorised.
        """
        after = f", align {self.bytes}"
        text = f"load volatile {self.llvm}, ptr {pointer}{after}"
        old = Value(self.emitter, self.llvm, self.emitter.value(text))
        if self.operation == "cas":
            compare, swap = sources
            new = old.eq(compare).select(swap, old)
        else:
            new = self._new(old, sources[0], in_shared=None)
        self.emitter.do(f"store volatile {new.type} {new.text}, ptr {pointer}{after}")
        return old

    def _new(self, old: Value, source: Value, in_shared: Value | None) -> Value:
        """Return the value to store; ``in_shared``: is a generic address in shared memory?"""
        operation, format_ = self.operation, self.format
        if operation == "exch":
            return source
        if format_ in _PACKED:
            pairs = zip(split_halves(old), split_halves(source), strict=True)
            return join_halves(*(self._half(a, b, format_[:-2]) for a, b in pairs))
        if format_ in ("f16", "bf16"):
            return self._half(old, source, format_)
        if format_[0] == "f":
            result = old + source
            if format_ == "f64" or self.space == "shared":
                return result
            flushed = flush(flush(old) + flush(source))
            return flushed if in_shared is None else in_shared.select(result, flushed)
        if operation == "inc":
            return old.compare("uge", source).select(0, old + 1)
        if operation == "dec":
            return (old.eq(0) | old.compare("ugt", source)).select(source, old - 1)
        if operation in ("min", "max"):
            kind = "s" if self.type[0] == "s" else "u"
            return getattr(old, f"{operation}_{kind}")(source)  # type: ignore[no-any-return]
        return old.op(operation, source)

    def _half(self, a: Value, b: Value, format_: str) -> Value:
        if self.operation == "add":
            return add_halves(a, b, format_)
        values = (widen(a, format_), widen(b, format_))
        return narrow(minimum_maximum(self.operation, *values, nan=False), format_)

    def _compare_exchange(self, pointer: str, compare: Value, swap: Value) -> Value:
        failure = {"acq_rel": "acquire", "release": "monotonic"}.get(self.order, self.order)
        pair = self.emitter.value(
            f"cmpxchg ptr {pointer}, {compare.type} {compare.text}, {swap.type} {swap.text} "
            f"{self.order} {failure}, align {self.bytes}{self.thread.ordered_tags}"
        )
        old = self.emitter.value(f"extractvalue {{ {compare.type}, i1 }} {pair}, 0")
        return Value(self.emitter, compare.type, old)

    def _loop(self, pointer: str, source: Value) -> Value:
        """Call a compare-and-swap loop, a function of its own so that callers have no branches."""
        generic = self.space == "" and self.format == "f32" and self.operation == "add"
        where = Value(self.emitter, "i1", "false")
        if generic:
            place = Value(self.emitter, "i64", self.emitter.value(f"ptrtoint ptr {pointer} to i64"))
            size = Value(self.emitter, "i64", self.thread.addresses.shared_size())
            where = (place - generic_shared(self.thread)).compare("ult", size)
        name = f"gpud.atom.{self.operation}.{self.format}.{self.order}"
        if generic:
            name += ".generic"
        if not self.emitter.module.has(name):
            self._define(name, generic=generic)
        text = (
            f"call {self.llvm} @{name}(ptr {pointer}, {self.llvm} {source.text}, i1 {where.text})"
        )
        return Value(self.emitter, self.llvm, self.emitter.value(text))

    def _define(self, name: str, *, generic: bool) -> None:
        llvm = self.llvm
        header = f"define internal {llvm} @{name}(ptr %p, {llvm} %source, i1 %shared) noinline"
        body = Emitter(self.emitter.module, header)
        inner = _Access(
            Thread(body, {}, self.thread.addresses),
            self.operation,
            self.format,
            self.order,
            self.space,
        )
        slot = body.alloca(llvm)
        # The first guess; a 16-byte load may tear, then the exchange fails.
        how, order = ("atomic ", " monotonic") if self.bytes <= 8 else ("volatile ", "")
        guess = body.value(f"load {how}{self.integer}, ptr %p{order}, align {self.bytes}")
        body.do(f"store {self.integer} {guess}, ptr {slot}")
        with body.loop() as (_, out):
            old = Value(body, llvm, body.value(f"load {llvm}, ptr {slot}"))
            shared = Value(body, "i1", "%shared") if generic else None
            new = inner._new(old, Value(body, llvm, "%source"), shared)
            seen = inner._compare_exchange("%p", old.bits(), new.bits())
            again = body.label("again")
            body.do(f"store {llvm} {seen.as_type(llvm).text}, ptr {slot}")
            body.branch(seen.eq(old.bits()).text, out, again)
            body.place(again)
        body.end(f"ret {llvm} {body.value(f'load {llvm}, ptr {slot}')}")
        body.finish()
        self.emitter.module.declare(f"; @{name} is defined below")


# -- fences


@lowering("fence", "membar")
def _fence(thread: Thread, ins: Instruction) -> None:
    modifiers = Modifiers(ins)
    if modifiers.flag("proxy"):
        modifiers.require("alias", "async", "async::generic", "tensormap::generic")
        modifiers.choice("global", "shared::cta", "shared::cluster")
    modifiers.choice(
        "mbarrier_init", "sync_restrict::shared::cta", "sync_restrict::shared::cluster"
    )
    fence = ins.opcode.base == "fence"
    orders = ("sc", "acq_rel", "acquire", "release") if fence else ()
    order = LLVM_ORDER[modifiers.choice(*orders, default="sc")]
    scope = modifiers.choice(*(SCOPES if fence else ("cta", "gl", "sys")))
    modifiers.done()
    # Within a block only the compiler can reorder.
    narrow_scope = 'syncscope("singlethread") ' if scope == "cta" else ""
    thread.emitter.do(f"fence {narrow_scope}{order}")
