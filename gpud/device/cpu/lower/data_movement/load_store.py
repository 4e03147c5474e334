"""Loads, stores, and cache hints.

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

from gpud.compiler.ptx.model import (
    Address,
    Instruction,
    Operand,
    Vector,
)
from gpud.device.cpu.ir.thread import LLVM_TYPE, Thread
from gpud.device.cpu.ir.values import Value, constant, read, write
from gpud.device.cpu.lower.data_movement.state_spaces import element, space_of
from gpud.device.cpu.lower.registry import (
    CACHE_HINTS,
    LLVM_ORDER,
    SCOPES,
    Modifiers,
    lowering,
    rejected,
)

__all__ = ["Access"]

_ORDERS = ("weak", "volatile", "relaxed", "mmio")
# Orders and cache operators that only loads have, and only stores.
_LOADS = (("acquire",), ("ca", "cg", "cs", "lu", "cv", "nc"))
_STORES = (("release",), ("wb", "cg", "cs", "wt"))


class Access:
    """The modifiers of ``ld`` or ``st``, decoded."""

    def __init__(self, ins: Instruction) -> None:
        modifiers = Modifiers(ins)
        orders, operators = _STORES if ins.opcode.base == "st" else _LOADS
        self.orders = [order for order in (*_ORDERS, *orders) if modifiers.flag(order)]
        scope = modifiers.choice(*SCOPES)
        self.space = space_of(modifiers)
        if "cv" in [operator for operator in operators if modifiers.flag(operator)]:
            self.orders.append("volatile")  # "don't cache and fetch again": it must not be hoisted
        hinted = modifiers.flag("L2::cache_hint")
        modifiers.skip(*CACHE_HINTS)
        self.count = int(modifiers.choice("v2", "v4", "v8", default="v1")[1:])
        self.type = modifiers.type()
        modifiers.done()
        if self.type == "pred" or self.type in ("f16x2", "bf16x2", "tf32"):
            raise rejected(ins, f"memory holds no .{self.type}")
        strong = [order for order in self.orders if order not in ("weak", "mmio")]
        if scope and not strong:
            raise rejected(ins, "a scope needs .relaxed, .acquire or .release")
        expected = 3 if hinted else 2
        if len(ins.operands) != expected:
            raise rejected(ins, f"it has {len(ins.operands)} operands instead of {expected}")
        self.llvm = LLVM_TYPE[self.type]
        self.bytes = int(self.type.lstrip("bsufe")) // 8

    def words(self) -> tuple[str, str]:
        """LLVM's text between ``load``/``store`` and the type, and after the pointer."""
        strong = [LLVM_ORDER[order] for order in self.orders if order != "weak"]
        if not strong:
            # 16-byte registers are read in halves, as are vectors in elements.
            return "", f", align {min(self.bytes, 8)}"
        align = f", align {self.bytes}"
        if self.bytes > 8:
            # CPUs guarantee 16-byte atomic loads only with extensions; the ISA demands them only
            # of accesses that race.
            return "volatile ", align
        order = max(strong, key=("monotonic", "acquire", "release").index)
        volatile = "volatile " if {"volatile", "mmio"} & set(self.orders) else ""
        return f"atomic {volatile}", f" {order}{align}"

    def elements(self, ins: Instruction, operand: Operand) -> Sequence[Operand]:
        """Return the registers or values of the access, one an element."""
        items = operand.items if isinstance(operand, Vector) else (operand,)
        if len(items) != self.count:
            raise rejected(ins, f"it has {len(items)} elements instead of {self.count}")
        return items


@lowering("ld", "ldu")
def _ld(thread: Thread, ins: Instruction) -> None:
    access = Access(ins)
    pointer = thread.pointer(ins.operands[1], access.space)
    before, after = access.words()
    tags = thread.ordered_tags if before else thread.tags
    targets = access.elements(ins, ins.operands[0])
    # All elements are read before the first is written: the address may be a destination.
    values = []
    for index in range(access.count):
        at = element(thread, pointer, index, access.bytes)
        text = f"load {before}{access.llvm}, ptr {at}{after}{tags}"
        values.append(Value(thread.emitter, access.llvm, thread.emitter.value(text)))
    for target, value in zip(targets, values, strict=True):
        write(thread, target, access.type, value)


@lowering("st")
def _st(thread: Thread, ins: Instruction) -> None:
    access = Access(ins)
    pointer = thread.pointer(ins.operands[0], access.space)
    before, after = access.words()
    tags = thread.ordered_tags if before else thread.tags
    for index, source in enumerate(access.elements(ins, ins.operands[1])):
        value = read(thread, source, access.type)
        at = element(thread, pointer, index, access.bytes)
        thread.emitter.do(f"store {before}{access.llvm} {value.text}, ptr {at}{after}{tags}")


# -- hints


@lowering("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def _cache_control(thread: Thread, ins: Instruction) -> None:
    """Lower no-ops, and ``createpolicy``, whose opaque result is 0.

    ``discard`` allows the memory's contents to become undefined; keeping them is allowed.
    """
    if ins.opcode.base == "createpolicy":
        write(thread, ins.operands[0], "b64", constant(thread.emitter, "i64", 0))
    elif not isinstance(ins.operands[0], Address):
        raise rejected(ins, "it needs an address")


@lowering("griddepcontrol", "pmevent")
def _no_op(thread: Thread, ins: Instruction) -> None:
    """Lower nothing: grids of one stream run one after the other."""
