"""Code of bounds checks and polls: the inline quick test and the out-of-line exact check.

Problem: a bounds check must cost next to nothing if the access is legal, and must otherwise
determine exactly what the address refers to. Approach: the quick test compares the hull with its
likeliest range (`gpud.device.cpu.codegen.preparation.provenance`), and, if that is not certain,
with one or two others; their bounds are constants of the code, or uniform in the block. If all
tests fail, a separate function checks each member: `define_exact_check`.

Properties:
* a member is reported if and only if it is illegal, before any access of the bounds check happens;
* after a report, control goes where `ThreadCode.fail` of the emitting code sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.abi import control_words as words
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Failure, Space
from gpud.device.cpu.abi.record_access import load, offset
from gpud.device.cpu.abi.records import BLOCK, BLOCK_BYTES, RUN
from gpud.device.cpu.codegen.emit.addresses import header_field
from gpud.device.cpu.codegen.emit.fault_reports import report_fields
from gpud.device.cpu.codegen.preparation.check_instruction import (
    SPACES,
    CheckOperands,
    decode_check,
)
from gpud.device.cpu.codegen.preparation.provenance import MAX_ORIGINS
from gpud.device.cpu.ir.emitter import Emitter, IRModule

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.region_writer import KernelContext
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode

__all__ = [
    "Bounds",
    "address_of",
    "bounds_of",
    "bounds_vary",
    "check",
    "check_exactly",
    "define_exact_check",
    "hull_misses",
    "metadata",
    "misses",
    "poll",
    "stack_base",
    "start_count",
]

_EXACT = "gpud.exact"
_OTHER_MEMORY = "!21"
"""Tags an access to neither spilled registers nor the program's memory: LLVM may keep both in
machine registers across it."""
_BLOCK_ALIGN = 256
"""Alignment of the bases of a module's variables and of shared memory."""
_LOCAL_ALIGN = 16
"""Alignment of a thread's local memory, frames and parameters."""


class Bounds(NamedTuple):
    """An address range: LLVM text (i64) of its first address and of its size in bytes.

    ``align`` divides the first address.
    """

    first: str
    size: str
    align: int


def bounds_of(code: ThreadCode, found: CheckOperands, which: int = 0) -> Bounds:
    """A range that the accesses of a bounds check may be in; ``which`` 0 is the likeliest."""
    places, space = code.places, found.space
    origin = found.origins[which] if found.origins else {"const": "data"}.get(space, space)
    if origin == "arena":
        return _constant(code.arena or (0, 0))
    if origin == "heap":
        return _constant(code.heap or (0, 0))
    if origin in ("shared", "static"):
        first = "0"
        if space != "shared":
            first = code.e.value(f"ptrtoint ptr {places.shared_base()} to i64")
        static = origin == "static"
        size = str(places.module.shared.size) if static else places.shared_size()
        return Bounds(first, size, _BLOCK_ALIGN)
    if origin == "local":
        return Bounds(*places.own_local_range(), _LOCAL_ALIGN)
    if origin == "thread":
        return Bounds(*places.thread_local_range(), _LOCAL_ALIGN)
    if origin == "param":
        return Bounds(*places.param_range(), _LOCAL_ALIGN)
    first, size = places.const_range()
    return Bounds(first, size if space == "const" else str(places.module.data.size), _BLOCK_ALIGN)


def _constant(range_: tuple[int, int]) -> Bounds:
    base, size = range_
    return Bounds(str(_signed(base)), str(_signed(size)), base & -base)


def address_of(code: ThreadCode, found: CheckOperands) -> str:
    """The first address of the hull, as i64, in the addressing of its space."""
    if found.base is None:
        return str(found.low)
    value = code.read(found.base, "u64")
    return code.e.value(f"add i64 {value}, {found.low}") if found.low else value


def bounds_vary(found: CheckOperands) -> bool:
    """Whether the likeliest range differs between threads."""
    origin = found.origins[0] if found.origins else found.space
    return origin in ("local", "thread")


def misses(code: ThreadCode, found: CheckOperands, address: str) -> str:
    """An i1: whether the hull at ``address`` is in none of its possible ranges."""
    out = ""
    for which in range(max(1, len(found.origins))):
        one = hull_misses(code, found, address, bounds_of(code, found, which))
        out = code.e.value(f"and i1 {out}, {one}") if out else one
    return out


def hull_misses(code: ThreadCode, found: CheckOperands, address: str, bounds: Bounds) -> str:
    """An i1: whether the hull at ``address`` is not within ``bounds`` or not aligned.

    Both are one comparison if the range's first address is a multiple of the alignment: after a
    rotation by the alignment's bits, a misaligned offset is larger than any size.
    """
    e = code.e
    off = address if bounds.first == "0" else e.value(f"sub i64 {address}, {bounds.first}")
    limit = start_count(e, bounds, found.span)
    if found.align == 1:
        return e.value(f"icmp uge i64 {off}, {limit}")
    bits = found.align.bit_length() - 1
    if bounds.align % found.align == 0:
        e.module.declare("declare i64 @llvm.fshr.i64(i64, i64, i64)")
        turned = e.value(f"call i64 @llvm.fshr.i64(i64 {off}, i64 {off}, i64 {bits})")
        if limit.isdigit():
            return e.value(f"icmp uge i64 {turned}, {-(-int(limit) >> bits)}")
        up = e.value(f"add i64 {limit}, {found.align - 1}")
        return e.value(f"icmp uge i64 {turned}, {e.value(f'lshr i64 {up}, {bits}')}")
    out = e.value(f"icmp uge i64 {off}, {limit}")
    low = e.value(f"and i64 {address}, {found.align - 1}")
    return e.value(f"or i1 {out}, {e.value(f'icmp ne i64 {low}, 0')}")


def start_count(e: Emitter, bounds: Bounds, span: int) -> str:
    """The number (i64) of offsets within ``bounds`` at which ``span`` bytes fit."""
    if bounds.size.lstrip("-").isdigit():
        return str(max(0, int(bounds.size) + 1 - span))
    e.module.declare("declare i64 @llvm.usub.sat.i64(i64, i64)")
    return e.value(f"call i64 @llvm.usub.sat.i64(i64 {bounds.size}, i64 {span - 1})")


def check(code: ThreadCode, ins: ptx.Instruction) -> None:
    """Emit a ``gpud.bounds`` for the current thread; its guard has been tested."""
    e, found = code.e, decode_check(ins)
    address = address_of(code, found)
    warm, end = e.label("warm"), e.label("end")
    # Accesses to static shared variables are not expected beyond the static part.
    known = not found.origins or found.origins[0] == "static"
    for which in range(1 if known else min(MAX_ORIGINS, len(found.origins))):
        out = hull_misses(code, found, address, bounds_of(code, found, which))
        cold = e.label("cold")
        e.branch_unlikely(out, cold, warm)
        e.place(cold)
    check_exactly(code, ins, address, end)
    e.jump(warm)
    e.place(end)
    code.fail()
    e.place(warm)


def check_exactly(code: ThreadCode, ins: ptx.Instruction, address: str, end: str) -> None:
    """Check each member of a check whose hull is at ``address``; go to ``end`` after a report."""
    e, found = code.e, decode_check(ins)
    claim = code.read(found.claim, "u32")
    # In other spaces no frame is legal: the exact check then needs one register less.
    used = code.places.used if found.space in ("generic", "local", "param") else "0"
    for member in found.members:
        mine = e.value(f"add i64 {address}, {member.low - found.low}")
        arguments = (
            f"i32 {code.places.thread}",
            f"i64 {mine}",
            f"i64 {member.span}",
            f"i64 {member.align}",
            f"i32 {member.site}",
            f"i32 {SPACES[found.space]}",
            f"i32 {int(found.space == 'generic')}",
            f"i32 {claim}",
            f"i32 {ins.line}",
            f"i32 {used}",
        )
        bad = e.value(f"call i1 @{_EXACT}(ptr %b, {', '.join(arguments)})")
        fine = e.label("fine")
        e.branch(bad, end, fine)
        e.place(fine)


def poll(code: ThreadCode, ins: ptx.Instruction) -> None:
    """Emit a ``gpud.poll``: end the block if its job is to be killed."""
    e = code.e
    field = e.value(f"getelementptr i8, ptr %b, i64 {BLOCK['run'][0] - BLOCK_BYTES}")
    run = e.value(f"load ptr, ptr {field}, !invariant.load !0")
    flag = e.value(f"getelementptr i8, ptr {run}, i64 {RUN['kill'][0]}")
    value = e.value(f"load atomic i32, ptr {flag} monotonic, align 4, !noalias {_OTHER_MEMORY}")
    killed = e.value(f"icmp ne i32 {value}, 0")
    end, go_on = e.label("killed"), e.label("alive")
    e.branch_unlikely(killed, end, go_on)
    e.place(end)
    fields = {
        "error": str(Failure.KILLED),
        "error_thread": code.places.thread,
        "error_line": str(ins.line),
    }
    report_fields(e, fields)
    code.fail()
    e.place(go_on)


# -- the exact test ----------------------------------------------------------------------------


def define_exact_check(kernel: KernelContext) -> None:
    """``i1 @gpud.exact(ptr %b, i32 %thread, i64 %address, ...)``: whether an access was illegal.

    If it was, the function has reported it.
    """
    ir = kernel.ir
    header = (
        f"define internal i1 @{_EXACT}(ptr %b, i32 %thread, i64 %address, i64 %span, i64 %align, "
        "i32 %site, i32 %space, i32 %generic, i32 %claim, i32 %line, i32 %used) "
        "nounwind cold noinline minsize"
    )
    e = Emitter(ir, header)
    places = kernel.places(e, "%thread")
    inside, outside = e.label("inside"), e.label("outside")

    def accept(first: str, size: str, condition: str = "true") -> None:
        within = _within(e, first, size)
        no = e.label("no")
        e.branch(e.value(f"and i1 {within}, {condition}"), inside, no)
        e.place(no)

    def space_is(*spaces: int) -> str:
        result = "false"
        for space in spaces:
            same = e.value(f"icmp eq i32 %space, {space}")
            result = e.value(f"or i1 {result}, {same}")
        return result

    def or_generic(space: int) -> str:
        generic = e.value("icmp ne i32 %generic, 0")
        return e.value(f"or i1 {space_is(space)}, {generic}")

    base, size = kernel.arena or (0, 0)
    accept(str(_signed(base)), str(_signed(size)), space_is(Space.GLOBAL))
    data = e.value(f"ptrtoint ptr {header_field(e, 'data')} to i64")
    accept(data, str(kernel.module.data.size), space_is(Space.GLOBAL))
    if kernel.heap is not None:
        heap, heap_size = kernel.heap
        accept(str(_signed(heap)), str(heap_size), space_is(Space.GLOBAL))
    if kernel.syncs_grid:
        hidden = max(kernel.parameters.values())
        control = load(e, "ptr", offset(e, header_field(e, "params"), hidden))
        job = load(e, "i64", offset(e, control, words.JOB))
        grid = e.value(f"add i64 {job}, {words.GRID_SYNC}")
        accept(grid, str(words.GRID_SYNC_BYTES), space_is(Space.GLOBAL))
    accept(*places.const_range(), space_is(Space.CONST))
    window = e.value(f"ptrtoint ptr {places.shared_base()} to i64")
    accept(window, places.shared_size(), e.value("icmp ne i32 %generic, 0"))
    accept("0", places.shared_size(), space_is(Space.SHARED))
    # A struct that is passed by value lies in its caller's local memory.
    mine = e.value(f"or i1 {or_generic(Space.LOCAL)}, {space_is(Space.PARAM)}")
    accept(*places.own_local_range(), mine)
    accept(*places.param_range(), or_generic(Space.PARAM))
    if kernel.frames:
        accept(stack_base(kernel, e), e.value("zext i32 %used to i64"), mine)
    e.jump(outside)
    e.place(outside)
    # Addresses of non-generic spaces are host addresses: report the offset instead.
    start = "0"
    for space, first in (
        (Space.LOCAL, places.own_local_range()[0]),
        (Space.CONST, places.const_range()[0]),
        (Space.PARAM, places.param_range()[0]),
    ):
        start = e.value(f"select i1 {space_is(space)}, i64 {first}, i64 {start}")
    shown = e.value(f"sub i64 %address, {start}")
    _report(e, Failure.ADDRESS, shown)
    e.end("ret i1 true")
    e.place(inside)
    low = e.value(f"and i64 %address, {e.value('sub i64 %align, 1')}")
    with e.when(e.value(f"icmp ne i64 {low}, 0")):
        _report(e, Failure.MISALIGNED, "%address")
        e.end("ret i1 true")
    e.end("ret i1 false")
    e.finish()


def _within(e: Emitter, first: str, size: str) -> str:
    off = e.value(f"sub i64 %address, {first}")
    fits = e.value(f"icmp ule i64 %span, {size}")
    last = e.value(f"sub i64 {size}, %span")
    return e.value(f"and i1 {fits}, {e.value(f'icmp ule i64 {off}, {last}')}")


def _report(e: Emitter, failure: int, address: str) -> None:
    fields = {
        "error": str(failure),
        "error_thread": "%thread",
        "error_line": "%line",
        "error_site": "%site",
        "error_claim": "%claim",
        "error_space": "%space",
        "error_address": address,
    }
    report_fields(e, fields)


def stack_base(kernel: KernelContext, e: Emitter) -> str:
    """The i64 address of the frames of functions, after the threads' local memory."""
    base = e.value(f"ptrtoint ptr {header_field(e, 'locals')} to i64")
    return e.value(f"add i64 {base}, {kernel.local_size * kernel.layout.padded}")


def metadata(ir: IRModule) -> None:
    """Define the metadata that the tags refer to."""
    ir.metadata(_OTHER_MEMORY, f"{_OTHER_MEMORY} = !{{!5, !6}}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
