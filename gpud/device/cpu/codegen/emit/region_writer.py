"""A region as a native function over a range of diverged threads.

``void @region.K(ptr %b, i32 %t0, i32 %t1)`` runs the region of cut K for threads t0 .. t1-1: each
loads its spilled registers, runs to the next cut, spills the registers live there and writes its
state word: where it stopped and why. A range, because neighbouring threads are mostly at the same
cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import BARRIER, barrier, flags, read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.abi.layout import (
    HEADER,
    STATE_STATUS_SHIFT,
    BlockLayout,
    ModuleLayout,
    Shape,
    Status,
)
from gpud.device.cpu.codegen.analysis.canonical_nans import noncanonical_registers
from gpud.device.cpu.codegen.analysis.regions import Region, Regions, waits
from gpud.device.cpu.codegen.emit.addresses import KernelAddresses
from gpud.device.cpu.codegen.emit.fault_reports import report
from gpud.device.cpu.codegen.emit.strip_mining import StripMinedLoops, strip_mined_loops
from gpud.device.cpu.codegen.emit.thread_code import CallInfo, ThreadCode
from gpud.device.cpu.codegen.hoisting.merged_checks import MergedChecks
from gpud.device.cpu.codegen.runtime.collectives import Collectives
from gpud.device.cpu.codegen.runtime.warp_exchange import array_slot
from gpud.device.cpu.ir.emitter import Emitter, IRModule
from gpud.device.cpu.ir.thread import zero

__all__ = ["KernelContext", "RegionWriter", "state_word"]


def state_word(status: int, block: int) -> int:
    """Return the state word of a thread that will resume at ``block``."""
    return status << STATE_STATUS_SHIFT | block


class KernelContext:
    """State shared by the writers of one kernel's code."""

    def __init__(
        self,
        ir: IRModule,
        regions: Regions,
        storage: Mapping[str, str],
        shape: Shape,
        module: ModuleLayout,
        program: CallInfo,
        parameters: tuple[Mapping[str, int], int],
        locals_: Mapping[str, int],
        local_size: int,
    ) -> None:
        self.ir = ir
        self.regions = regions
        self.storage = storage
        self.noncanonical = noncanonical_registers(regions.flow.function.body or (), dict(storage))
        self.shape = shape
        self.module = module
        self.program = program
        self.parameters, self.parameter_size = parameters
        self.parameter_window = self.parameter_size
        """Bytes of the parameters that the program may read by computed addresses."""
        self.locals = locals_
        self.local_size = local_size
        self.layout = BlockLayout(shape.threads)
        self.spill_tags = ", !alias.scope !2, !noalias !3, !llvm.access.group !4"
        self.user_tags = ", !alias.scope !3, !noalias !2, !llvm.access.group !4"
        self.ordered_tags = ", !alias.scope !3, !noalias !2"
        self.collectives = Collectives(self.layout, self.spill_tags)
        self.region_cuts: tuple[int, ...] = regions.cuts
        """Blocks at which a diverged thread can resume."""
        self.arena: tuple[int, int] | None = None
        """Base and size of the memory that accesses are checked against; None: no checks."""
        self.heap: tuple[int, int] | None = None
        """Address and size of the program's own heap."""
        self.syncs_grid = False
        """Whether the kernel synchronises its grid: then accesses to the job record's words for
        that are legal."""
        self.strip_mined_loops = strip_mined_loops(regions.flow, regions.cuts)
        """Loops of diverged threads that poll once in many iterations."""
        self.frames = 0
        """Bytes for the frames of functions; 0: local variables are on the stack of the OS thread.
        """
        self._loops = 0

    def parallel_loop(self) -> str:
        """Return the metadata for the back edge of a loop whose iterations are different threads.

        LLVM attaches it to the branch of the back edge, and may transfer it to loops of the
        program, whose iterations depend on each other. An outer loop that ends in the same branch
        gets it with the loop over threads, and keeps it when that is unrolled or deleted: so a
        non-parallel `emit_side_effect` is placed at the start of those. An inner loop gets it when
        nothing is left between its end and the branch: so a parallel `emit_side_effect` is placed
        there.
        """
        self._loops += 1
        number = 100 + self._loops
        parallel = '!{!"llvm.loop.parallel_accesses", !4}'
        self.ir.metadata(f"!{number}", f"!{number} = distinct !{{!{number}, {parallel}}}")
        return f", !llvm.loop !{number}"

    def emit_side_effect(self, emitter: Emitter, tags: str = "") -> None:
        """Emit a pseudo-access that LLVM does not move or remove; it generates no machine code."""
        self.ir.declare("declare void @llvm.sideeffect()")
        emitter.do(f"call void @llvm.sideeffect(){tags}")

    def places(
        self, emitter: Emitter, thread: str, tid: tuple[str, str, str] | None = None
    ) -> KernelAddresses:
        """Return the special registers and symbols of ``thread`` in the function being written."""

        def local(name: str) -> str | None:
            offset = self.locals.get(name)
            if offset is None:
                return None
            base, _ = places.local_range()
            index = emitter.value(f"zext i32 {thread} to i64")
            mine = emitter.value(f"mul i64 {index}, {self.local_size}")
            start = emitter.value(f"add i64 {base}, {mine}")
            return emitter.value(f"add i64 {start}, {offset}")

        places = KernelAddresses(
            emitter,
            self.shape,
            self.module,
            self.layout,
            thread,
            tid,
            self.parameters,
            self.parameter_window,
            local,
        )
        places.local_size = str(self.local_size * self.layout.padded)
        places.own_local_size = self.local_size
        return places

    def code(
        self, emitter: Emitter, places: KernelAddresses, fail: Callable[[], None]
    ) -> ThreadCode:
        """Return a thread of the kernel's own body; ``fail`` as in `ThreadCode`."""
        code = ThreadCode(
            emitter, self.storage, places, self.program, self.user_tags, self.ordered_tags
        )
        code.noncanonical = self.noncanonical
        code.arena = self.arena
        code.heap = self.heap
        code.fail = fail
        return code


class RegionWriter:
    """Writes the code of one region for one thread, inside a loop over threads."""

    def __init__(
        self,
        kernel: KernelContext,
        emitter: Emitter,
        code: ThreadCode,
        region: Region,
        after: str,
        merged: MergedChecks,
    ) -> None:
        self.kernel = kernel
        self.emitter = emitter
        self.code = code
        self.region = region
        self.after = after
        self.merged = merged
        self.labels = {b: emitter.label(f"b{b}") for b in region.blocks}
        self.loops = StripMinedLoops(code, kernel.strip_mined_loops, self.labels)

    def write(self) -> None:
        """Load the thread's spilled registers, then write every block of the region."""
        self._load()
        for number in self.region.blocks:
            self.emitter.place(self.labels[number])
            self.loops.begin(number)
            self._block(self.kernel.regions.flow.blocks[number])

    def _load(self) -> None:
        regions, emitter, code = self.kernel.regions, self.emitter, self.code
        cut = self.region.cut
        kept = set(regions.spilled_at(cut))
        used: dict[str, None] = {}
        for number in self.region.blocks:
            for place in regions.flow.blocks[number].places:
                used.update(dict.fromkeys(r.name for r in read(place.instruction)))
        used.update(dict.fromkeys(sorted(self.region.written)))
        targets = [
            s
            for number in self.region.blocks
            for s in regions.flow.blocks[number].successors
            if regions.is_cut(s)
        ]
        used.update(dict.fromkeys(regions.to_spill(cut, targets)))
        recipe = regions.recipe(used, cut)
        for ins in recipe:
            used.update(dict.fromkeys(r.name for r in (*read(ins), *written(ins))))
        for name in used:
            type_ = self.kernel.storage[name]
            value = zero(type_)
            if name in kept:
                value = emitter.value(
                    f"load {type_}, ptr {self.spill_slot(name)}{self.kernel.spill_tags}"
                )
            emitter.do(f"store {type_} {value}, ptr {code.slot(name)}")
        for ins in recipe:
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
            self._leave(block.successors[0], status)
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
        targets = self.kernel.regions.flow.table(ins)
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
        regions = self.kernel.regions
        if target == regions.flow.exit:
            self._state(state_word(Status.DONE, 0))
        elif regions.is_cut(target):
            status = Status.YIELD if regions.yields(block.index, target) else Status.RUN
            self._leave(target, status)
            return
        elif self.loops.goes_back(block.index, target):
            self.loops.go_back(block.index)
            return
        else:
            self.emitter.jump(self.labels[target])
            return
        self.emitter.jump(self.after)

    def _leave(self, target: int, status: int) -> None:
        """Spill what is live at ``target`` and stop there."""
        kernel = self.kernel
        # A register that was loaded here and did not change is still in its array.
        here = kernel.regions.spilled_at(self.region.cut)
        for name in kernel.regions.spilled_at(target):
            if name in self.region.written or name not in here:
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
