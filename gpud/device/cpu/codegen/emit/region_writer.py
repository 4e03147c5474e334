"""The code of diverged threads: every block of a kernel once, entered at any cut.

``void @run_region(ptr %b, i32 %cut, i32 %t0, i32 %t1)`` runs threads t0 .. t1-1 from one cut: each
loads its spilled registers, runs to the next cut, spills the registers live there and writes its
state word: where it stopped and why. A range, because neighbouring threads are mostly at the same
cut.

Problem: threads can diverge at many blocks that do not end a region. With a function for each, the
code behind them is repeated in all: it grows with the square of the kernel.

Approach: a short region has a function of its own. Longer ones that share blocks have one function,
which begins with a branch to the cut. What a cut needs (its registers, and those that are
recomputed there) precedes the jump into the shared code.

``void @begin_diverged(ptr %b)`` computes, once for each divergence, what merged bounds checks
compare with.

Properties:
* ``linear``: each block of the kernel is written once, and for each cut at most `OWN_LENGTH`
  instructions besides;
* ``current``: where a thread stops, the array of a spilled register holds its value: it is stored,
  unless it was loaded at every cut from which the thread may have come, and no block since then
  has written it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import BARRIER, barrier, flags, read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import BLOCK_ARGUMENT, HEADER, Status
from gpud.device.cpu.codegen.analysis.regions import CodeRegions, waits
from gpud.device.cpu.codegen.emit.fault_reports import report
from gpud.device.cpu.codegen.emit.flush_to_zero import FLUSHING_ATTRIBUTES, define_with_flushing
from gpud.device.cpu.codegen.emit.kernel_context import KernelContext, state_word
from gpud.device.cpu.codegen.emit.strip_mining import StripMinedLoops
from gpud.device.cpu.codegen.emit.thread_code import ThreadCode
from gpud.device.cpu.codegen.hoisting.merged_checks import MergedChecks
from gpud.device.cpu.codegen.runtime.warp_exchange import array_slot
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import zero

__all__ = ["OWN_LENGTH", "define_regions"]

OWN_LENGTH = 150
"""The most instructions of a region with a function of its own: it is a little faster, since its
registers have one source, but what follows it is repeated. That of the claim of a task block has
about a hundred."""


def define_regions(kernel: KernelContext) -> None:
    """Define ``@run_region`` and ``@begin_diverged``."""
    merged = MergedChecks(kernel)
    arguments = f"{BLOCK_ARGUMENT}, i32 %cut, i32 %t0, i32 %t1"
    header = f"define void @run_region({arguments}) nounwind"
    if kernel.ir.flushes:
        name = define_with_flushing(kernel.ir, "void", "run_region", arguments)
        header = f"define internal void @{name}({arguments}) nounwind noinline"
    emitter = Emitter(kernel.ir, header)
    parts = kernel.regions.parts(kernel.region_cuts, OWN_LENGTH)
    labels = {cut: emitter.label("part") for cuts in parts for cut in cuts[:1]}
    nowhere = emitter.label("nowhere")
    arms = " ".join(f"i32 {cut}, label %{labels[cuts[0]]}" for cuts in parts for cut in cuts)
    emitter.end(f"switch i32 %cut, label %{nowhere} [{arms}]")
    for cuts in parts:
        emitter.place(labels[cuts[0]])
        emitter.do(f"call void @{_define_part(kernel, cuts, merged)}({_PASSED})")
        emitter.end("ret void")
    emitter.place(nowhere)
    emitter.end("unreachable")
    emitter.finish()
    emitter = Emitter(kernel.ir, f"define void @begin_diverged({BLOCK_ARGUMENT}) nounwind")
    places = kernel.places(emitter, "0")
    merged.prepare(emitter, kernel.code(emitter, places, lambda: emitter.end("ret void")))
    emitter.end("ret void")
    emitter.finish()


_PASSED = "ptr %b, i32 %cut, i32 %t0, i32 %t1"


def _define_part(kernel: KernelContext, cuts: tuple[int, ...], merged: MergedChecks) -> str:
    """Define the function for regions that share blocks; returns its name."""
    name = f"region.{cuts[0]}"
    # What is loaded for some cut only must not be loaded ahead of the threads for all.
    block = BLOCK_ARGUMENT if len(cuts) == 1 else "ptr noalias align 256 %b"
    header = f"define internal void @{name}({block}, i32 %cut, i32 %t0, i32 %t1) nounwind"
    if kernel.ir.flushes:
        header += f" {FLUSHING_ATTRIBUTES}"
    emitter = Emitter(kernel.ir, header)
    # Diverged threads are rare: not worth a vectorised, unrolled copy.
    with emitter.count("%t0", "%t1", metadata=", !llvm.loop !7") as thread:
        places = kernel.places(emitter, thread)
        code = kernel.code(emitter, places, lambda: emitter.end("ret void"))
        after = emitter.label("next")
        _RegionWriter(kernel, emitter, code, after, merged, cuts).write()
        emitter.place(after)
    emitter.end("ret void")
    emitter.finish()
    return name


class _RegionWriter:
    """Writes the code of one diverged thread, inside a loop over threads."""

    def __init__(
        self,
        kernel: KernelContext,
        emitter: Emitter,
        code: ThreadCode,
        after: str,
        merged: MergedChecks,
        cuts: tuple[int, ...],
    ) -> None:
        self.kernel = kernel
        self.regions = kernel.regions
        self.emitter = emitter
        self.code = code
        self.after = after
        self.merged = merged
        self.cuts = cuts
        self._registers = _Registers(kernel.regions, cuts)
        self._current = self._registers.current()
        self.order = self._registers.blocks
        self.labels = {b: emitter.label(f"b{b}") for b in self.order}
        self.loops = StripMinedLoops(code, kernel.strip_mined_loops, self.labels)

    def write(self) -> None:
        """Write the entry of every cut, then every block."""
        emitter, kernel = self.emitter, self.kernel
        for name in self._registers.names:
            type_ = kernel.storage[name]
            emitter.do(f"store {type_} {zero(type_)}, ptr {self.code.slot(name)}")
        self.loops.start()
        entries = {c: emitter.label(f"cut{c}") for c in self.cuts}
        first, *others = entries
        arms = " ".join(f"i32 {c}, label %{entries[c]}" for c in others)
        emitter.end(f"switch i32 %cut, label %{entries[first]} [{arms}]")
        for cut, label in entries.items():
            emitter.place(label)
            self._load(cut)
            emitter.jump(self.labels[cut])
        for number in self.order:
            emitter.place(self.labels[number])
            self.loops.begin(number)
            self._block(self.regions.flow.blocks[number])

    def _load(self, cut: int) -> None:
        """Load the registers that are spilled at ``cut``, and recompute those that are not."""
        emitter, code = self.emitter, self.code
        for name in self.regions.spilled_at(cut):
            type_ = self.kernel.storage[name]
            value = emitter.value(
                f"load {type_}, ptr {self.spill_slot(name)}{self.kernel.spill_tags}"
            )
            emitter.do(f"store {type_} {value}, ptr {code.slot(name)}")
        for ins in self.regions.recipe(self._registers.used_from(cut), cut):
            code.run(ins)

    def spill_slot(self, name: str) -> str:
        """Return a ``ptr`` to where this thread spills register ``name`` while it waits."""
        type_ = self.kernel.storage[name]
        thread = self.code.places.thread
        return array_slot(self.emitter, self.kernel.layout, f"reg {name}", thread, type_)

    # -- blocks

    def _block(self, block: Block) -> None:
        places = block.places
        for place in places[:-1]:
            self._instruction(place.instruction)
        last = block.last
        if last is None:
            self._go(block, block.successors[0])
        else:
            self._last(block, last)

    def _instruction(self, ins: ptx.Instruction) -> None:
        if ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "resume":
            self.kernel.collectives.resume(self.code, ins)
        elif flags(ins.opcode) & BARRIER:
            self._arrive(ins)
        elif self.loops.polls(ins):
            pass
        elif self.merged.covers(ins):
            self.merged.test(self.code, ins)
        else:
            self.code.run(ins)

    def _last(self, block: Block, ins: ptx.Instruction) -> None:
        emitter, base = self.emitter, ins.opcode.base
        if waits(ins):
            status = Status.COLLECTIVE
            if flags(ins.opcode) & BARRIER:
                status = Status.BARRIER
                self.kernel.collectives.offer_barrier(self.code, ins)
            else:
                self.kernel.collectives.offer(self.code, ins)
            self._leave(block.index, block.successors[0], status)
        elif base in ("ret", "exit", "bra"):
            if ins.guard is None:
                self._go(block, block.successors[0])
                return
            taken, falls = emitter.label("taken"), emitter.label("falls")
            emitter.branch(self.code.guard(ins.guard), taken, falls)
            emitter.place(taken)
            self._go(block, block.successors[0])
            emitter.place(falls)
            self._go(block, block.successors[-1])
        elif base == "brx":
            self._indexed(block, ins)
        elif base == "trap":
            self._trap(ins)
        else:
            self._instruction(ins)
            self._go(block, block.successors[0])

    def _indexed(self, block: Block, ins: ptx.Instruction) -> None:
        emitter = self.emitter
        index = self.code.read(ins.operands[0], "u32")
        targets = self.regions.flow.table(ins)
        arms = [emitter.label("case") for _ in targets]
        outside = arms[-1]  # an out-of-range index is undefined behaviour: take the last entry
        if ins.guard is not None:
            taken, falls = emitter.label("taken"), emitter.label("falls")
            emitter.branch(self.code.guard(ins.guard), taken, falls)
            emitter.place(falls)
            self._go(block, block.successors[-1])
            emitter.place(taken)
        cases = " ".join(f"i32 {n}, label %{arm}" for n, arm in enumerate(arms))
        emitter.end(f"switch i32 {index}, label %{outside} [{cases}]")
        for arm, target in zip(arms, targets, strict=True):
            emitter.place(arm)
            self._go(block, target)

    # -- leaving

    def _go(self, block: Block, target: int) -> None:
        regions = self.regions
        if target == regions.flow.exit:
            self._state(state_word(Status.DONE, 0))
        elif regions.is_cut(target):
            status = Status.YIELD if regions.yields(block.index, target) else Status.RUN
            self._leave(block.index, target, status)
            return
        elif self.loops.goes_back(block.index, target):
            self.loops.go_back(block.index)
            return
        else:
            self.emitter.jump(self.labels[target])
            return
        self.emitter.jump(self.after)

    def _leave(self, source: int, target: int, status: int) -> None:
        """Spill what is live at ``target`` and stop there."""
        kernel = self.kernel
        for name in self.regions.spilled_at(target):
            if name not in self._current[source]:
                type_ = kernel.storage[name]
                value = self.emitter.value(f"load {type_}, ptr {self.code.slot(name)}")
                self.emitter.do(
                    f"store {type_} {value}, ptr {self.spill_slot(name)}{kernel.spill_tags}"
                )
        self._state(state_word(status, target))
        self.emitter.jump(self.after)

    def _state(self, word: int) -> None:
        slot = array_slot(self.emitter, self.kernel.layout, "state", self.code.places.thread)
        self.emitter.do(f"store i32 {word}, ptr {slot}{self.kernel.spill_tags}")

    def _trap(self, ins: ptx.Instruction) -> None:
        report(self.emitter, self.code, self.code.places.thread, ins)
        self._state(state_word(Status.TRAP, 0))
        self.emitter.jump(self.after)

    def _arrive(self, ins: ptx.Instruction) -> None:
        """Emit ``bar.arrive``: count the thread and go on; missing lanes count with it."""
        emitter, kernel = self.emitter, self.kernel
        parts = barrier(ins)
        number = emitter.value(f"and i32 {self.code.read(parts.id, 'b32')}, 15")
        offset, _ = HEADER["arrived"]
        base = emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")
        slot = emitter.value(f"getelementptr i32, ptr {base}, i32 {number}")
        missing = kernel.layout.padded - kernel.layout.threads
        final = emitter.value(f"icmp eq i32 {self.code.places.thread}, {kernel.layout.threads - 1}")
        weight = emitter.value(f"select i1 {final}, i32 {1 + missing}, i32 1")
        sofar = emitter.value(f"load i32, ptr {slot}")
        emitter.do(f"store i32 {emitter.value(f'add i32 {sofar}, {weight}')}, ptr {slot}")


class _Registers:
    """Facts about the registers of diverged threads, as sets of names or of bits.

    Args:
        cuts: blocks at which a diverged thread can resume: all those of one function.

    Attributes:
        names: all registers of diverged threads there.
    """

    def __init__(self, regions: CodeRegions, cuts: tuple[int, ...]) -> None:
        self._regions = regions
        self._cuts = cuts
        self._from = {cut: regions.region(cut).blocks for cut in cuts}
        inside = {number for blocks in self._from.values() for number in blocks}
        self.blocks = tuple(number for number in regions.flow.order if number in inside)
        numbers: dict[str, int] = {}
        self._touched: dict[int, int] = {}
        self._written: dict[int, frozenset[str]] = {}
        recipes = (regions.recipe(regions.recomputed_at(cut), cut) for cut in cuts)
        for number in self.blocks:
            block = regions.flow.blocks[number]
            made = [r.name for p in block.places for r in written(p.instruction)]
            seen = [r.name for p in block.places for r in read(p.instruction)]
            leaving = [t for t in block.successors if regions.is_cut(t) and t != regions.flow.exit]
            seen += [name for target in leaving for name in regions.spilled_at(target)]
            self._written[number] = frozenset(made)
            self._touched[number] = 0
            for name in (*made, *seen):
                self._touched[number] |= 1 << numbers.setdefault(name, len(numbers))
        for recipe in recipes:
            for ins in recipe:
                for register in (*read(ins), *written(ins)):
                    numbers.setdefault(register.name, len(numbers))
        for cut in cuts:
            for name in regions.spilled_at(cut):
                numbers.setdefault(name, len(numbers))
        self.names = tuple(numbers)

    def used_from(self, cut: int) -> list[str]:
        """Return the registers that a thread may use between ``cut`` and the cuts after it."""
        bits = 0
        for number in self._from[cut]:
            bits |= self._touched[number]
        return [name for at, name in enumerate(self.names) if bits >> at & 1]

    def current(self) -> Mapping[int, frozenset[str]]:
        """Return the registers whose arrays hold their values at the end of each block."""
        regions, flow = self._regions, self._regions.flow
        everything = frozenset(self.names)
        entered = {cut: frozenset(regions.spilled_at(cut)) for cut in self._cuts}
        ends = dict.fromkeys(self.blocks, everything)
        changed = True
        while changed:
            changed = False
            for number in self.blocks:
                here = entered.get(number, everything)
                if not regions.is_cut(number):
                    for before in flow.blocks[number].predecessors:
                        here &= ends.get(before, everything)
                here -= self._written[number]
                if here != ends[number]:
                    ends[number], changed = here, True
        return ends
