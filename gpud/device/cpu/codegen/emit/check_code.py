"""Code of bounds checks and polls: the inline quick test and the out-of-line exact check.

Problem: a bounds check must cost next to nothing if the access is legal, and must otherwise
determine exactly what the address refers to. Approach: the quick test compares the hull with its
likeliest range (`gpud.device.cpu.codegen.preparation.provenance`), and, if that is not certain,
with one or two others; their bounds are constants of the loaded code, or uniform in the block. If
all tests fail, a separate function checks each member: `define_exact_check`.

Properties:
* a member is reported if and only if it is illegal, before any access of the bounds check happens;
* after a report, control goes where `ThreadCode.fail` of the emitting code sends it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpud.compiler.abi import control_words as words
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import Failure, Space
from gpud.device.cpu.abi.linked_memory import LinkedMemory, arena_at, heap_at
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
from gpud.device.cpu.ir.thread import SHARED_MASK

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.kernel_context import KernelContext
    from gpud.device.cpu.codegen.emit.thread_code import ThreadCode

__all__ = [
    "Bounds",
    "address_of",
    "bounds_of",
    "bounds_vary",
    "check",
    "check_exactly",
    "define_exact_check",
    "grid_sync_words",
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


def bounds_of(code: ThreadCode, operands: CheckOperands, which: int = 0) -> Bounds:
    """Return a range that a bounds check's accesses may be in; ``which`` 0 is the likeliest."""
    places, space = code.places, operands.space
    origin = operands.origins[which] if operands.origins else {"const": "data"}.get(space, space)
    if origin == "arena":
        return _linked(arena_at(), code.arena)
    if origin == "heap":
        return _linked(heap_at(), code.heap)
    if origin in ("shared", "static"):
        first = "0"
        if space != "shared":
            first = code.emitter.value(f"ptrtoint ptr {places.shared_base()} to i64")
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


def _linked(first: str, memory: LinkedMemory | None) -> Bounds:
    if memory is None:  # nothing is within
        return Bounds("0", "0", _BLOCK_ALIGN)
    return Bounds(first, str(_signed(memory.size)), memory.align)


def address_of(code: ThreadCode, operands: CheckOperands) -> str:
    """Return the first address of the hull, as i64, in the addressing of its space."""
    if operands.base is None:
        return str(operands.low)
    value = code.read(operands.base, "u64")
    return code.emitter.value(f"add i64 {value}, {operands.low}") if operands.low else value


def bounds_vary(operands: CheckOperands) -> bool:
    """Return whether the likeliest range differs between threads."""
    origin = operands.origins[0] if operands.origins else operands.space
    return origin in ("local", "thread")


def misses(code: ThreadCode, operands: CheckOperands, address: str) -> str:
    """Return an i1: whether the hull at ``address`` is in none of its possible ranges."""
    out = ""
    for which in range(max(1, len(operands.origins))):
        one = hull_misses(code, operands, address, bounds_of(code, operands, which))
        out = code.emitter.value(f"and i1 {out}, {one}") if out else one
    return out


def hull_misses(code: ThreadCode, operands: CheckOperands, address: str, bounds: Bounds) -> str:
    """Return an i1: whether the hull at ``address`` is not within ``bounds`` or not aligned.

    Both are one comparison if the range's first address is a multiple of the alignment: after a
    rotation by the alignment's bits, a misaligned offset is larger than any size.
    """
    emitter = code.emitter
    off = address if bounds.first == "0" else emitter.value(f"sub i64 {address}, {bounds.first}")
    limit = start_count(emitter, bounds, operands.span)
    if operands.align == 1:
        return emitter.value(f"icmp uge i64 {off}, {limit}")
    bits = operands.align.bit_length() - 1
    if bounds.align % operands.align == 0:
        emitter.module.declare("declare i64 @llvm.fshr.i64(i64, i64, i64)")
        turned = emitter.value(f"call i64 @llvm.fshr.i64(i64 {off}, i64 {off}, i64 {bits})")
        if limit.isdigit():
            return emitter.value(f"icmp uge i64 {turned}, {-(-int(limit) >> bits)}")
        up = emitter.value(f"add i64 {limit}, {operands.align - 1}")
        return emitter.value(f"icmp uge i64 {turned}, {emitter.value(f'lshr i64 {up}, {bits}')}")
    out = emitter.value(f"icmp uge i64 {off}, {limit}")
    low = emitter.value(f"and i64 {address}, {operands.align - 1}")
    return emitter.value(f"or i1 {out}, {emitter.value(f'icmp ne i64 {low}, 0')}")


def start_count(emitter: Emitter, bounds: Bounds, span: int) -> str:
    """Return the number (i64) of offsets within ``bounds`` at which ``span`` bytes fit."""
    if bounds.size.lstrip("-").isdigit():
        return str(max(0, int(bounds.size) + 1 - span))
    emitter.module.declare("declare i64 @llvm.usub.sat.i64(i64, i64)")
    return emitter.value(f"call i64 @llvm.usub.sat.i64(i64 {bounds.size}, i64 {span - 1})")


def check(code: ThreadCode, ins: ptx.Instruction) -> None:
    """Emit a ``gpud.bounds`` for the current thread; its guard has been tested."""
    emitter, operands = code.emitter, decode_check(ins)
    address = address_of(code, operands)
    warm, end = emitter.label("warm"), emitter.label("end")
    # Accesses to static shared variables are not expected beyond the static part.
    known = not operands.origins or operands.origins[0] == "static"
    for which in range(1 if known else min(MAX_ORIGINS, len(operands.origins))):
        out = hull_misses(code, operands, address, bounds_of(code, operands, which))
        cold = emitter.label("cold")
        emitter.branch_unlikely(out, cold, warm)
        emitter.place(cold)
    check_exactly(code, ins, address, end)
    emitter.jump(warm)
    emitter.place(end)
    code.fail()
    emitter.place(warm)


def check_exactly(code: ThreadCode, ins: ptx.Instruction, address: str, end: str) -> None:
    """Check each member of a check whose hull is at ``address``; go to ``end`` after a report."""
    emitter, operands = code.emitter, decode_check(ins)
    claim = code.read(operands.claim, "u32")
    # In other spaces no frame is legal: the exact check then needs one register less.
    used = code.places.used if operands.space in ("generic", "local", "param") else "0"
    for member in operands.members:
        mine = emitter.value(f"add i64 {address}, {member.low - operands.low}")
        if operands.space == "shared" and code.is_wide(operands.base):
            mine = emitter.value(f"and i64 {mine}, {SHARED_MASK}")
        arguments = (
            f"i32 {code.places.thread}",
            f"i64 {mine}",
            f"i64 {member.span}",
            f"i64 {member.align}",
            f"i32 {member.site}",
            f"i32 {SPACES[operands.space]}",
            f"i32 {int(operands.space == 'generic')}",
            f"i32 {claim}",
            f"i32 {ins.line}",
            f"i32 {used}",
        )
        bad = emitter.value(f"call i1 @{_EXACT}(ptr %b, {', '.join(arguments)})")
        fine = emitter.label("fine")
        emitter.branch(bad, end, fine)
        emitter.place(fine)


def poll(code: ThreadCode, ins: ptx.Instruction) -> None:
    """Emit a ``gpud.poll``: end the block if its job is to be killed."""
    emitter = code.emitter
    field = emitter.value(f"getelementptr i8, ptr %b, i64 {BLOCK['run'][0] - BLOCK_BYTES}")
    run = emitter.value(f"load ptr, ptr {field}, !invariant.load !0")
    flag = emitter.value(f"getelementptr i8, ptr {run}, i64 {RUN['kill'][0]}")
    value = emitter.value(
        f"load atomic i32, ptr {flag} monotonic, align 4, !noalias {_OTHER_MEMORY}"
    )
    killed = emitter.value(f"icmp ne i32 {value}, 0")
    end, go_on = emitter.label("killed"), emitter.label("alive")
    emitter.branch_unlikely(killed, end, go_on)
    emitter.place(end)
    fields = {
        "error": str(Failure.KILLED),
        "error_thread": code.places.thread,
        "error_line": str(ins.line),
    }
    report_fields(emitter, fields)
    code.fail()
    emitter.place(go_on)


# -- the exact test ----------------------------------------------------------------------------


def define_exact_check(kernel: KernelContext) -> None:
    """Define ``i1 @gpud.exact(ptr %b, i32 %thread, i64 %address, ...)``: is an access illegal?

    If it was, the function has reported it.
    """
    ir = kernel.ir
    header = (
        f"define internal i1 @{_EXACT}(ptr %b, i32 %thread, i64 %address, i64 %span, i64 %align, "
        "i32 %site, i32 %space, i32 %generic, i32 %claim, i32 %line, i32 %used) "
        "nounwind cold noinline minsize"
    )
    emitter = Emitter(ir, header)
    places = kernel.places(emitter, "%thread")
    inside, outside = emitter.label("inside"), emitter.label("outside")

    def accept(first: str, size: str, condition: str = "true") -> None:
        within = _within(emitter, first, size)
        no = emitter.label("no")
        emitter.branch(emitter.value(f"and i1 {within}, {condition}"), inside, no)
        emitter.place(no)

    def space_is(*spaces: int) -> str:
        result = "false"
        for space in spaces:
            same = emitter.value(f"icmp eq i32 %space, {space}")
            result = emitter.value(f"or i1 {result}, {same}")
        return result

    def or_generic(space: int) -> str:
        generic = emitter.value("icmp ne i32 %generic, 0")
        return emitter.value(f"or i1 {space_is(space)}, {generic}")

    if kernel.arena is not None:
        accept(arena_at(), str(_signed(kernel.arena.size)), space_is(Space.GLOBAL))
    data = emitter.value(f"ptrtoint ptr {header_field(emitter, 'data')} to i64")
    accept(data, str(kernel.module.data.size), space_is(Space.GLOBAL))
    if kernel.heap is not None:
        accept(heap_at(), str(kernel.heap.size), space_is(Space.GLOBAL))
    if kernel.syncs_grid:
        accept(grid_sync_words(kernel, emitter), str(words.GRID_SYNC_BYTES), space_is(Space.GLOBAL))
    accept(*places.const_range(), space_is(Space.CONST))
    window = emitter.value(f"ptrtoint ptr {places.shared_base()} to i64")
    accept(window, places.shared_size(), emitter.value("icmp ne i32 %generic, 0"))
    accept("0", places.shared_size(), space_is(Space.SHARED))
    # A struct that is passed by value lies in its caller's local memory.
    mine = emitter.value(f"or i1 {or_generic(Space.LOCAL)}, {space_is(Space.PARAM)}")
    accept(*places.own_local_range(), mine)
    accept(*places.param_range(), or_generic(Space.PARAM))
    if kernel.frames:
        accept(stack_base(kernel, emitter), emitter.value("zext i32 %used to i64"), mine)
    emitter.jump(outside)
    emitter.place(outside)
    # Addresses of non-generic spaces are host addresses: report the offset instead.
    start = "0"
    for space, first in (
        (Space.LOCAL, places.own_local_range()[0]),
        (Space.CONST, places.const_range()[0]),
        (Space.PARAM, places.param_range()[0]),
    ):
        start = emitter.value(f"select i1 {space_is(space)}, i64 {first}, i64 {start}")
    shown = emitter.value(f"sub i64 %address, {start}")
    _report(emitter, Failure.ADDRESS, shown)
    emitter.end("ret i1 true")
    emitter.place(inside)
    low = emitter.value(f"and i64 %address, {emitter.value('sub i64 %align, 1')}")
    with emitter.when(emitter.value(f"icmp ne i64 {low}, 0")):
        _report(emitter, Failure.MISALIGNED, "%address")
        emitter.end("ret i1 true")
    emitter.end("ret i1 false")
    emitter.finish()


def _within(emitter: Emitter, first: str, size: str) -> str:
    off = emitter.value(f"sub i64 %address, {first}")
    fits = emitter.value(f"icmp ule i64 %span, {size}")
    last = emitter.value(f"sub i64 {size}, %span")
    return emitter.value(f"and i1 {fits}, {emitter.value(f'icmp ule i64 {off}, {last}')}")


def _report(emitter: Emitter, failure: int, address: str) -> None:
    fields = {
        "error": str(failure),
        "error_thread": "%thread",
        "error_line": "%line",
        "error_site": "%site",
        "error_claim": "%claim",
        "error_space": "%space",
        "error_address": address,
    }
    report_fields(emitter, fields)


def grid_sync_words(kernel: KernelContext, emitter: Emitter) -> str:
    """Return the i64 address of the job record's words for ``grid.sync()``."""
    hidden = max(kernel.parameters.values())
    control = load(emitter, "ptr", offset(emitter, header_field(emitter, "params"), hidden))
    job = load(emitter, "i64", offset(emitter, control, words.JOB))
    return emitter.value(f"add i64 {job}, {words.GRID_SYNC}")


def stack_base(kernel: KernelContext, emitter: Emitter) -> str:
    """Return the i64 address of the frames of functions, after the threads' local memory."""
    base = emitter.value(f"ptrtoint ptr {header_field(emitter, 'locals')} to i64")
    return emitter.value(f"add i64 {base}, {kernel.local_size * kernel.layout.padded}")


def metadata(ir: IRModule) -> None:
    """Define the metadata that the tags refer to."""
    ir.metadata(_OTHER_MEMORY, f"{_OTHER_MEMORY} = !{{!5, !6}}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
