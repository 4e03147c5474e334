"""Lockstep code: one native function that runs all threads of a block while they are converged.

``i32 @run_lockstep(ptr %b)`` starts at the stage that the block's header names and runs stage after
stage. A stage computes uniform values once, then runs one loop over all threads for the rest; LLVM
vectorises that loop, since its iterations are independent. Between stages uniform registers stay in
machine registers; varying ones go through the block's arrays.

The function returns `DIVERGED` when the threads diverge, after it has stored the uniform registers
for the scheduler to broadcast (`gpud.device.cpu.codegen.runtime.reconvergence`); `QUANTUM_EXPIRED`
after some barriers, so that other blocks of the SM can run; `DONE` when all threads have ended;
`FAILED` after a trap.

Properties:
* at the start of every stage the arrays hold each varying register that is spilled there;
* uniform registers are restored wherever threads reconverge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from gpud.compiler.analysis.cycles import retreating_edges
from gpud.compiler.analysis.effects import BARRIER, flags, read, written
from gpud.device.cpu.abi.layout import BLOCK_ARGUMENT, HEADER, Status
from gpud.device.cpu.codegen.analysis.stage_plan import Stage, StagePlan
from gpud.device.cpu.codegen.emit.boundary_guards import BoundaryTile
from gpud.device.cpu.codegen.emit.flush_to_zero import FLUSHING_ATTRIBUTES, define_with_flushing
from gpud.device.cpu.codegen.emit.kernel_context import KernelContext, state_word
from gpud.device.cpu.codegen.emit.stage_writer import StageWriter
from gpud.device.cpu.codegen.runtime.thread_scheduler import DIVERGED, DONE, FAILED, QUANTUM_EXPIRED
from gpud.device.cpu.ir.emitter import Emitter
from gpud.device.cpu.ir.thread import width, zero

__all__ = ["LockstepWriter", "define_lockstep"]

_CYCLES_PER_QUANTUM = 1_000_000
"""A block that passes barriers yields to other blocks after about 0.4 ms: often enough for them,
and rarely enough that most task blocks run in one piece."""


def define_lockstep(kernel: KernelContext, plan: StagePlan) -> bool:
    """Define ``@run_lockstep`` and ``@uniform_table``: the uniform registers at each block.

    Returns whether threads can diverge.
    """
    writer = LockstepWriter(kernel, plan)
    writer.define()
    _define_table(kernel, plan, writer.table_blocks)
    return writer.diverges


class LockstepWriter:
    """The function that runs a block in lockstep; `StageWriter` writes its stages."""

    def __init__(self, kernel: KernelContext, plan: StagePlan) -> None:
        self.kernel = kernel
        self.plan = plan
        self.flow = plan.flow
        self.varying = plan.convergence.varying
        self.back_edges = retreating_edges(plan.flow)
        header = f"define i32 @run_lockstep({BLOCK_ARGUMENT}) nounwind"
        if kernel.ir.flushes:
            name = define_with_flushing(kernel.ir, "i32", "run_lockstep", BLOCK_ARGUMENT)
            header = f"define internal i32 @{name}({BLOCK_ARGUMENT}) nounwind noinline"
            header += f" {FLUSHING_ATTRIBUTES}"
        self.emitter = Emitter(kernel.ir, header)
        self.labels = {n: self.emitter.label(f"stage{n}") for n in plan.stages}
        places = kernel.places(self.emitter, "0", ("0", "0", "0"))
        self.code = kernel.code(self.emitter, places, lambda: self.emitter.end(f"ret i32 {FAILED}"))
        self.code.varying = self.varying
        self.scalar_places = places
        self.began = self.emitter.alloca("i64", "began")
        self.tiles = self._boundary_tiles()
        """By the block at whose branch the tile is determined."""
        self.tile: BoundaryTile | None = None
        """The tile of the current stage."""
        self.table_blocks: set[int] = set(plan.entries)
        """Blocks at which threads diverge or reconverge."""
        self.diverges = 0 not in plan.entries
        """Whether there is a way out of lockstep, or the block begins outside of it."""

    def _boundary_tiles(self) -> dict[int, BoundaryTile]:
        if self.kernel.shape.threads == 1:
            return {}  # a single thread needs no vote
        alone = self.plan.convergence.voted | self.plan.convergence.solo
        return {
            number: BoundaryTile(
                self.emitter, body, taken=self.flow.blocks[number].successors[0] in body
            )
            for number, body in self.plan.convergence.bodies.items()
            if body.isdisjoint(alone)
        }

    # -- the function

    def define(self) -> None:
        """Write the whole function."""
        emitter = self.emitter
        if any(self._passes_barrier(stage) for stage in self.plan.stages.values()):
            emitter.module.declare("declare i64 @llvm.readcyclecounter()")
            emitter.do(
                f"store i64 {emitter.value('call i64 @llvm.readcyclecounter()')}, ptr {self.began}"
            )
        for name in sorted(kernel_registers(self.kernel) - self.varying):
            type_ = self.kernel.storage[name]
            emitter.do(f"store {type_} {zero(type_)}, ptr {self.code.slot(name)}")
        offset, _ = HEADER["lockstep_block"]
        at = emitter.value(
            f"load i32, ptr {emitter.value(f'getelementptr i8, ptr %b, i64 {offset}')}"
        )
        entries = {n: emitter.label(f"entry{n}") for n in sorted(self.plan.entries)}
        dead = emitter.label("dead")
        arms = " ".join(f"i32 {n}, label %{label}" for n, label in entries.items())
        emitter.end(f"switch i32 {at}, label %{dead} [{arms}]")
        for number, label in entries.items():
            emitter.place(label)
            for name in self._uniform_live(number):
                type_ = self.kernel.storage[name]
                value = emitter.value(
                    f"load {type_}, ptr {self._uniform_slot(name)}{self.kernel.spill_tags}"
                )
                emitter.do(f"store {type_} {value}, ptr {self.code.slot(name)}")
            emitter.jump(self.labels[number])
        for number, stage in sorted(self.plan.stages.items()):
            emitter.place(self.labels[number])
            if any(target == number for _, target in self.back_edges):
                self.kernel.emit_side_effect(emitter)
            around = (one for one in self.tiles.values() if stage.first in one.body)
            self.tile = next(around, None)
            StageWriter(self, stage).write()
        emitter.place(dead)
        emitter.end("unreachable")
        emitter.finish()

    def _passes_barrier(self, stage: Stage) -> bool:
        last = self.flow.blocks[stage.last].last
        return last is not None and bool(flags(last.opcode) & BARRIER)

    def _uniform_live(self, number: int) -> list[str]:
        return [n for n in self.kernel.regions.spilled_at(number) if n not in self.varying]

    def _uniform_slot(self, name: str) -> str:
        return uniform_slot(self.emitter, self.kernel, name)

    # -- control between stages

    def branch_to(self, source: int, target: int) -> None:
        """Go from block ``source`` to ``target`` with all threads in lockstep."""
        if target == self.flow.exit:
            self.emitter.end(f"ret i32 {DONE}")
        elif self.plan.diverges_at(source, target):
            yields = self.kernel.regions.yields(source, target)
            status = Status.YIELD if yields else Status.RUN
            self.diverge((target,), (state_word(status, target),))
        else:
            self.emitter.jump(self.labels[target])

    def diverge(self, targets: tuple[int, ...], words: tuple[int, ...]) -> None:
        """Return because the threads diverge.

        There is one target and state word for all threads, or there are two, and each thread's vote
        selects one. The scheduler gives every thread its own copy of the uniform registers live
        there.
        """
        emitter = self.emitter
        self.diverges = True
        names = dict.fromkeys(
            n for t in targets if t != self.flow.exit for n in self._uniform_live(t)
        )
        self._spill_uniform(list(names))
        self.table_blocks.update(t for t in targets if t != self.flow.exit)
        for field_name, value in (
            ("by_vote", len(words) - 1),
            ("taken_state", words[0]),
            ("fallthrough_state", words[-1]),
        ):
            pointer = emitter.value(f"getelementptr i8, ptr %b, i64 {HEADER[field_name][0]}")
            emitter.do(f"store i32 {value}, ptr {pointer}")
        emitter.end(f"ret i32 {DIVERGED}")

    def _spill_uniform(self, names: list[str]) -> None:
        for name in names:
            type_ = self.kernel.storage[name]
            value = self.emitter.value(f"load {type_}, ptr {self.code.slot(name)}")
            self.emitter.do(
                f"store {type_} {value}, ptr {self._uniform_slot(name)}{self.kernel.spill_tags}"
            )

    def yield_block(self, target: int) -> None:
        """Go on at ``target`` after a barrier, or yield if the quantum is used up."""
        emitter = self.emitter
        now = emitter.value("call i64 @llvm.readcyclecounter()")
        spent = emitter.value(f"sub i64 {now}, {emitter.value(f'load i64, ptr {self.began}')}")
        leave = emitter.label("leave")
        short = emitter.value(f"icmp ult i64 {spent}, {_CYCLES_PER_QUANTUM}")
        emitter.branch(short, self.labels[target], leave)
        emitter.place(leave)
        self._spill_uniform(self._uniform_live(target))
        lockstep_block = emitter.value(
            f"getelementptr i8, ptr %b, i64 {HEADER['lockstep_block'][0]}"
        )
        emitter.do(f"store i32 {target}, ptr {lockstep_block}")
        emitter.end(f"ret i32 {QUANTUM_EXPIRED}")

    @contextmanager
    def threads(
        self, thread_range: tuple[int, int] | None = None, *, optimize: bool = True
    ) -> Iterator[str]:
        """Loop over threads of the block, for LLVM to vectorise; yields the index.

        ``thread_range``: the first thread, and the one after the last; None: all. If threads are
        arranged in rows, only one or all. ``optimize``: the loop is worth optimising. Threads
        outside the stage's `BoundaryTile` are skipped.
        """
        emitter, shape, tile = self.emitter, self.kernel.shape, self.tile
        first, stop = thread_range or (0, shape.threads)
        tags = self.kernel.parallel_loop() if optimize else ", !llvm.loop !7"
        if stop - first == 1:
            plane, at = divmod(first, shape.x)
            tid = str(at), str(plane % shape.y), str(plane // shape.y)
            with nullcontext() if tile is None else emitter.when(tile.holds(at, plane)):
                self._select_thread(str(first), tid)
                yield str(first)
        elif shape.y == 1 and shape.z == 1:
            end = str(stop) if tile is None else tile.at_most(tile.across, stop)
            with emitter.count(str(first), end, metadata=tags) as thread:
                self._select_thread(thread, (thread, "0", "0"))
                yield thread
        else:
            across, down = str(shape.x), str(shape.y * shape.z)
            if tile is not None:
                across = tile.at_most(tile.across, shape.x)
                down = tile.at_most(tile.down, shape.y * shape.z)
            with emitter.count("0", down) as row:
                y = row if shape.z == 1 else emitter.value(f"urem i32 {row}, {shape.y}")
                z = "0" if shape.z == 1 else emitter.value(f"udiv i32 {row}, {shape.y}")
                base = emitter.value(f"mul nuw nsw i32 {row}, {shape.x}")
                with emitter.count("0", across, metadata=tags) as x:
                    thread = emitter.value(f"add nuw nsw i32 {base}, {x}")
                    self._select_thread(thread, (x, y, z))
                    yield thread
        self.code.places = self.code.addresses = self.scalar_places

    def _select_thread(self, thread: str, tid: tuple[str, str, str]) -> None:
        self.code.places = self.code.addresses = self.kernel.places(self.emitter, thread, tid)


# -- helpers -----------------------------------------------------------------------------------


def kernel_registers(kernel: KernelContext) -> set[str]:
    """Return the names of all registers that the kernel's code mentions."""
    names: set[str] = set()
    for number in kernel.regions.flow.order:
        for place in kernel.regions.flow.blocks[number].places:
            names.update(r.name for r in read(place.instruction))
            names.update(r.name for r in written(place.instruction))
    return names


def uniform_slot(emitter: Emitter, kernel: KernelContext, name: str) -> str:
    """Return a ``ptr`` to where a block that leaves ``@run_lockstep`` stores a uniform register."""
    offset, _ = kernel.layout.word(f"common {name}")
    return emitter.value(f"getelementptr i8, ptr %b, i64 {offset}")


def _define_table(kernel: KernelContext, plan: StagePlan, blocks: set[int]) -> None:
    """Define ``@uniform_table``: the uniform registers at each block where threads diverge or join.

    A row is: block, whether threads may reconverge there, number of registers, then for each
    register the offset of its array, its size in bytes, and the offset of its uniform copy. A row
    that begins with -1 is the last.
    """
    words: list[int] = []
    for number in sorted(blocks):
        names = [n for n in kernel.regions.spilled_at(number) if n not in plan.convergence.varying]
        words += [number, int(number in plan.entries and number in kernel.regions.cuts), len(names)]
        for name in names:
            type_ = kernel.storage[name]
            offset, _ = kernel.layout.array(f"reg {name}", type_)
            size = 1 if type_ == "i1" else 8 if type_ == "ptr" else width(type_) // 8
            words += [offset, size, kernel.layout.word(f"common {name}")[0]]
    words.append(-1)
    values = ", ".join(f"i32 {word}" for word in words)
    kernel.ir.declare(f"@uniform_table = constant [{len(words)} x i32] [{values}]")
