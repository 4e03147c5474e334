"""The heap of device code's ``malloc`` in a program whose accesses are checked.

Problem: memory from the C library's ``malloc`` may lie anywhere in this process, beside the
library's own records: a bounds check could not tell accesses to it from stray ones, and a program
that writes past its end would damage the process.

Approach: each such program has a heap of its own, one range of memory that its bounds checks allow,
as large as CUDA's is by default. Sizes are rounded up to a few size classes, each with a free list;
if the list is empty, the block comes from the part of the heap that was never used. The heap's
records lie behind it, out of reach of the bounds checks; allocating and freeing are native code
without locks.

Terms: a *granule* is `GRANULE` bytes of the heap. A *list* is one word of 64 bits: the number of
its first block's granule plus one, 0 if it is empty, and above that a count of its changes.

Algorithm: a list is a stack (R. K. Treiber, "Systems Programming: Coping with Parallelism", IBM RJ
5118, 1986): a thread takes its first block by exchanging the word for one with the next block; the
count makes the exchange fail if another thread changed the list meanwhile. A block is freed by the
thread that exchanges the number of its list, noted for its first granule, for 0.

Properties:
* freeing any address, any number of times, changes nothing but blocks that are allocated;
* a program that asks for more than there is gets a null pointer, as on a GPU;
* a thread that stops at any point does not keep others from allocating and freeing.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from gpud.device import jit
from gpud.device.cpu.abi.layout import align_up
from gpud.device.cpu.abi.linked_memory import MOST_ALIGN
from gpud.device.cpu.abi.record_access import compare, load, offset, store
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = ["GRANULE", "HEAP_BYTES", "Heap", "install"]

HEAP_BYTES = 8 << 20
GRANULE = 16
"""All sizes and addresses are multiples of this."""
_GRANULE_BITS = GRANULE.bit_length() - 1
_STEPS = 8
"""A size is rounded up to one of the first eight multiples of a power of two."""
_STEP_BITS = _STEPS.bit_length() - 1
_LISTS = 248
"""More than there are size classes up to 2**34; their numbers fit a byte."""

_BASE, _SIZE, _UNUSED, _HEADS = 0, 8, 16, 64
_NOTES = _HEADS + 8 * _LISTS
"""Offsets in the records: address and size of the heap, start of the part never used, the lists,
and for each granule a byte: if an allocated block begins there, the number of its list plus one."""


class Heap:
    """The heap of one loaded program.

    Args:
        size: in bytes, a multiple of `GRANULE`.

    Attributes:
        address: address of its first byte.
        size: in bytes. The records begin behind it; generated code identifies the heap by them.
    """

    def __init__(self, size: int = HEAP_BYTES) -> None:
        granules = size // GRANULE
        following = align_up(_NOTES + granules, 8)
        self._memory = np.zeros(size + following + 4 * granules + MOST_ALIGN, np.uint8)
        first = self._memory.ctypes.data
        self.address: int = align_up(first, MOST_ALIGN)
        self.size = size
        start = self.address - first + size
        self._memory[start : start + 16].view(np.uint64)[:] = (self.address, size)

    @property
    def range(self) -> tuple[int, int]:
        """(address, size)."""
        return self.address, self.size


@cache
def install() -> jit.NativeCode:
    """Make ``gpud_heap_malloc`` and ``gpud_heap_free`` available to generated code.

    ``i64 gpud_heap_malloc(i64 records, i64 size)`` returns the address of ``size`` bytes, 0 if none
    are left; ``void gpud_heap_free(i64 records, i64 address)`` frees them. Returns their code.
    """
    ir = IRModule()
    _define_malloc(ir)
    _define_free(ir)
    names = ("gpud_heap_malloc", "gpud_heap_free")
    code = jit.assemble(ir.text(), names)
    jit.add_symbols(code.addresses)
    return code


# -- native code -------------------------------------------------------------------------------


def _define_malloc(ir: IRModule) -> None:
    e = Emitter(ir, "define i64 @gpud_heap_malloc(i64 %records, i64 %bytes) nounwind")
    records = e.value("inttoptr i64 %records to ptr")
    size = load(e, "i64", offset(e, records, _SIZE))
    none = e.label("none")
    some = e.label("some")
    less = e.value("sub i64 %bytes, 1")
    e.branch(compare(e, "ult", "i64", less, size), some, none)
    e.place(some)
    step, number = _rounded(e)
    taken = e.value(f"shl i64 {number}, {step}")
    which = _list_of(e, step, number)
    head = offset(e, records, e.value(f"add i64 {e.value(f'shl i64 {which}, 3')}, {_HEADS}"))
    slot = e.alloca("i64", "granule")
    got, fresh = e.label("got"), e.label("fresh")
    with e.loop() as (again, _):
        word = load(e, "i64", head, "acquire")
        first = e.value(f"and i64 {word}, 4294967295")
        e.branch(compare(e, "eq", "i64", first, 0), fresh, more := e.label("more"))
        e.place(more)
        granule = e.value(f"sub i64 {first}, 1")
        following = load(e, "i32", _next_link(e, records, size, granule), "monotonic")
        wide = e.value(f"zext i32 {following} to i64")
        store(e, "i64", granule, slot)
        e.branch(_compare_exchange(e, head, word, _changed(e, word, wide)), got, again)
        e.place(fresh)
        unused = offset(e, records, _UNUSED)
        before = load(e, "i64", unused, "monotonic")
        after = e.value(f"add i64 {before}, {taken}")
        e.branch(compare(e, "ugt", "i64", after, size), none, enough := e.label("enough"))
        e.place(enough)
        store(e, "i64", e.value(f"lshr i64 {before}, {_GRANULE_BITS}"), slot)
        e.branch(_compare_exchange(e, unused, before, after), got, again)
    e.end("unreachable")
    e.place(got)
    granule = load(e, "i64", slot)
    note = offset(e, records, e.value(f"add i64 {granule}, {_NOTES}"))
    mark = e.value(f"trunc i64 {e.value(f'add i64 {which}, 1')} to i8")
    e.do(f"store atomic i8 {mark}, ptr {note} release, align 1")
    base = load(e, "i64", offset(e, records, _BASE))
    e.end(f"ret i64 {e.value(f'add i64 {base}, {_bytes(e, granule)}')}")
    e.place(none)
    e.end("ret i64 0")
    e.finish()


def _define_free(ir: IRModule) -> None:
    e = Emitter(ir, "define void @gpud_heap_free(i64 %records, i64 %address) nounwind")
    records = e.value("inttoptr i64 %records to ptr")
    base = load(e, "i64", offset(e, records, _BASE))
    size = load(e, "i64", offset(e, records, _SIZE))
    # The rotation makes an offset that is no multiple of a granule too large a number.
    e.module.declare("declare i64 @llvm.fshr.i64(i64, i64, i64)")
    off = e.value(f"sub i64 %address, {base}")
    granule = e.value(f"call i64 @llvm.fshr.i64(i64 {off}, i64 {off}, i64 {_GRANULE_BITS})")
    count = e.value(f"lshr i64 {size}, {_GRANULE_BITS}")
    nothing = e.label("nothing")
    inside = e.label("inside")
    e.branch(compare(e, "ult", "i64", granule, count), inside, nothing)
    e.place(inside)
    note = offset(e, records, e.value(f"add i64 {granule}, {_NOTES}"))
    mark = e.value(f"atomicrmw xchg ptr {note}, i8 0 acq_rel")
    taken = e.label("taken")
    e.branch(compare(e, "eq", "i8", mark, 0), nothing, taken)
    e.place(taken)
    which = e.value(f"sub i64 {e.value(f'zext i8 {mark} to i64')}, 1")
    head = offset(e, records, e.value(f"add i64 {e.value(f'shl i64 {which}, 3')}, {_HEADS}"))
    link = _next_link(e, records, size, granule)
    one = e.value(f"add i64 {granule}, 1")
    with e.loop() as (again, _):
        word = load(e, "i64", head, "monotonic")
        store(e, "i32", e.value(f"trunc i64 {word} to i32"), link, "monotonic")
        e.branch(_compare_exchange(e, head, word, _changed(e, word, one)), nothing, again)
    e.end("unreachable")
    e.place(nothing)
    e.end("ret void")
    e.finish()


def _rounded(e: Emitter) -> tuple[str, str]:
    """Return (bits of the step, number of steps) of ``%bytes``, rounded up, at most `_STEPS`."""
    e.module.declare("declare i64 @llvm.ctlz.i64(i64, i1)")
    e.module.declare("declare i64 @llvm.smax.i64(i64, i64)")
    leading = e.value("call i64 @llvm.ctlz.i64(i64 %bytes, i1 true)")
    bits = e.value(f"sub i64 {64 - _STEP_BITS}, {leading}")
    step = e.value(f"call i64 @llvm.smax.i64(i64 {bits}, i64 {_GRANULE_BITS})")
    unit = e.value(f"shl i64 1, {step}")
    up = e.value(f"add i64 %bytes, {e.value(f'sub i64 {unit}, 1')}")
    return step, e.value(f"lshr i64 {up}, {step}")


def _list_of(e: Emitter, step: str, number: str) -> str:
    """Return the list of a size; eight steps are the same size as four of the next power of two."""
    row = e.value(f"mul i64 {e.value(f'sub i64 {step}, {_GRANULE_BITS}')}, {_STEPS}")
    place = e.value(f"add i64 {row}, {e.value(f'sub i64 {number}, 1')}")
    full = compare(e, "eq", "i64", number, _STEPS)
    return e.value(
        f"select i1 {full}, i64 {e.value(f'add i64 {place}, {_STEPS // 2}')}, i64 {place}"
    )


def _next_link(e: Emitter, records: str, size: str, granule: str) -> str:
    """Return ``ptr`` to a free block's link, the next block of its list, behind the heap."""
    count = e.value(f"lshr i64 {size}, {_GRANULE_BITS}")
    behind = e.value(f"and i64 {e.value(f'add i64 {count}, {_NOTES + 7}')}, -8")
    return offset(e, records, e.value(f"add i64 {behind}, {e.value(f'shl i64 {granule}, 2')}"))


def _changed(e: Emitter, word: str, first: str) -> str:
    """Return the list's word with ``first`` as its first block and the count increased."""
    count = e.value(f"lshr i64 {word}, 32")
    more = e.value(f"shl i64 {e.value(f'add i64 {count}, 1')}, 32")
    return e.value(f"or i64 {more}, {first}")


def _compare_exchange(e: Emitter, pointer: str, old: str, new: str) -> str:
    pair = e.value(f"cmpxchg ptr {pointer}, i64 {old}, i64 {new} acq_rel monotonic")
    return e.value(f"extractvalue {{ i64, i1 }} {pair}, 1")


def _bytes(e: Emitter, granule: str) -> str:
    return e.value(f"shl i64 {granule}, {_GRANULE_BITS}")
