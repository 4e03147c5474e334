"""Code of one stage: uniform instructions, the loop over threads for the rest, and the exit.

Problem: uniform instructions are mixed with varying ones in program order. Approach: the uniform
ones run first, once; then one loop runs the others for every thread, with inner blocks and their
branches; then all threads go where the last block says, or diverge. A poll that is made once for
all threads follows that loop: LLVM keeps in machine registers, across iterations of a program loop,
only memory that a stage is certain to write.

Properties:
* an instruction of the loop that precedes a uniform one reads the registers from before it
  (`gpud.device.cpu.codegen.emit.earlier_values`);
* recomputable registers are recomputed first in each iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.compiler.analysis.cfg import Block
from gpud.compiler.analysis.effects import BARRIER, flags, read, written
from gpud.compiler.ptx import model as ptx
from gpud.device.cpu.codegen.analysis.active_threads import active_range
from gpud.device.cpu.codegen.analysis.regions import waits
from gpud.device.cpu.codegen.analysis.stage_plan import Segment, Stage
from gpud.device.cpu.codegen.emit.earlier_values import EarlierValues
from gpud.device.cpu.codegen.emit.fault_reports import report
from gpud.device.cpu.codegen.emit.stage_end import StageEnd, is_whole_warp_barrier, offers
from gpud.device.cpu.codegen.emit.strip_mining import StripMinedLoops
from gpud.device.cpu.codegen.hoisting.affine import AffinePointer
from gpud.device.cpu.codegen.hoisting.hoisted_checks import HoistedChecks
from gpud.device.cpu.codegen.preparation.check_instruction import decode_check, without_claim
from gpud.device.cpu.codegen.preparation.pseudo_instructions import (
    checks_after_prints,
    is_bounds_check,
    is_check,
    is_poll,
    is_poll_of_each,
)
from gpud.device.cpu.codegen.runtime.warp_exchange import array_slot
from gpud.device.cpu.ir.thread import zero

if TYPE_CHECKING:
    from gpud.device.cpu.codegen.emit.lockstep import LockstepWriter

__all__ = ["StageWriter"]


class StageWriter:
    """Writes one stage: uniform instructions, the loop over threads, and the exit."""

    def __init__(self, writer: LockstepWriter, stage: Stage) -> None:
        self.lockstep = writer
        self.emitter = writer.emitter
        self.kernel = writer.kernel
        self.code = writer.code
        self.stage = stage
        self.convergence = writer.plan.convergence
        self.recipe: list[ptx.Instruction] = []
        self.to_spill: list[str] = []
        self.ordinal: dict[int, int] = {}
        """Order of each instruction (by identity) in the stage."""
        self.earlier = EarlierValues(self.code, self.ordinal)
        self.live_in: set[str] = set()
        """Varying registers that are spilled at the stage's start."""
        self._inline: set[int] = set()
        """Identities of the checks that the current loop contains."""
        self._affine_pointers: dict[tuple[int, bool], AffinePointer] = {}
        """Pointers that the current loop computes from thread numbers instead of as the program
        does."""
        self._thread_range = (0, self.kernel.shape.threads)
        """The first thread of the current loop, and the one after the last."""

    def write(self) -> None:
        """Emit the stage; it starts in the currently open LLVM block."""
        self.code.wraps_shared = self.kernel.arena is not None
        blocks = [self.lockstep.flow.blocks[n] for s in self.stage.segments for n in s.blocks]
        everything = [p.instruction for b in blocks for p in b.places]
        for number, ins in enumerate(everything):
            self.ordinal[id(ins)] = number
        uniform = {
            id(p.instruction)
            for s in self.stage.segments
            for p in self.lockstep.flow.blocks[s.blocks[0]].places
            if self._is_uniform(p.instruction, s.blocks[0])
        }
        uniform -= checks_after_prints(everything, uniform)
        varying_readers: dict[str, list[int]] = {}
        for ins in everything:
            if id(ins) not in uniform:
                for register in read(ins):
                    varying_readers.setdefault(register.name, []).append(self.ordinal[id(ins)])
        wanted = dict.fromkeys(
            r.name for i in everything if id(i) not in uniform for r in (*read(i), *written(i))
        )
        regions = self.kernel.regions
        self.to_spill = regions.to_spill(self.stage.first, self.lockstep.plan.exits(self.stage))
        wanted.update(dict.fromkeys(self.to_spill))
        self.recipe = regions.recipe(wanted, self.stage.first)
        for ins in self.recipe:
            for register in read(ins):
                varying_readers.setdefault(register.name, []).append(-1)
        last = self.lockstep.flow.blocks[self.stage.last].last
        polls: list[ptx.Instruction] = []
        for ins in everything:
            if id(ins) not in uniform:
                continue
            if is_poll(ins):
                polls.append(ins)
                continue
            if ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "resume":
                self.kernel.collectives.resume(self.code, ins)
                continue
            self.earlier.save(ins, varying_readers)
            self.code.run(self._without_varying_claim(ins) if is_bounds_check(ins) else ins)
        votes = self.stage.last in self.convergence.voted
        loop = [i for i in everything if id(i) not in uniform and self.has_effect(i, last)]
        agree = None
        if loop or votes or self.to_spill:  # otherwise nothing differs between threads
            agree = self._checked_loop(blocks, uniform, votes)
        for ins in polls:
            self.code.run(ins)
        StageEnd(self).write(last, agree)

    def _is_uniform(self, ins: ptx.Instruction, block: int) -> bool:
        """Return whether ``ins`` runs once for all threads, outside the loop over them."""
        if not is_check(ins):
            return self.convergence.is_uniform(ins, block)
        if block in self.convergence.inner or is_poll_of_each(ins):
            return False
        if not is_bounds_check(ins):
            return True
        # The bounds check of a load that runs once must run before it: both depend on the same
        # register and guard.
        operands = decode_check(ins)
        decisive = [operands.base, None if ins.guard is None else ins.guard.register]
        return operands.space != "local" and not any(
            isinstance(one, ptx.Register) and one.name in self.lockstep.varying for one in decisive
        )

    def _without_varying_claim(self, ins: ptx.Instruction) -> ptx.Instruction:
        """Return a bounds check to run once for all threads: it can only report uniform values."""
        if not any(r.name in self.lockstep.varying for r in read(ins)):
            return ins
        return without_claim(ins)

    def _checked_loop(self, blocks: list[Block], uniform: set[int], votes: bool) -> str | None:
        """Emit the loop over threads after the tests of its bounds checks: see `HoistedChecks`."""
        emitter = self.emitter
        self.live_in = set(self.kernel.regions.spilled_at(self.stage.first))
        agree = emitter.alloca("i32", "agree") if votes else None
        places = [(p.instruction, b.index) for b in blocks for p in b.places]
        checks = [i for i, _ in places if is_check(i) and id(i) not in uniform]
        self._thread_range = active_range(self, uniform)
        if self._thread_range[1] - self._thread_range[0] == 1:
            self._inline = {id(ins) for ins in checks}
            self._loop(blocks, uniform, agree)
            return None
        hoisted = HoistedChecks(self, [(i, b) for i, b in places if id(i) not in uniform])
        hoisted.plan(checks, self.recipe)
        misses = hoisted.emit() if hoisted.any else "false"
        self._inline = hoisted.inline
        if misses != "false":
            quick, exact, done = (
                emitter.label("quick"),
                emitter.label("exact"),
                emitter.label("checked"),
            )
            emitter.branch_unlikely(misses, exact, quick)
            emitter.place(exact)
            self._inline = {id(ins) for ins in checks}
            self._loop(blocks, uniform, agree, optimize=False)
            emitter.jump(done)
            emitter.place(quick)
            self._inline, self._affine_pointers = hoisted.inline, hoisted.affine_pointers
            self._loop(blocks, uniform, agree)
            self._affine_pointers = {}
            emitter.place(done)
        else:
            self._loop(blocks, uniform, agree)
        return None if agree is None else emitter.value(f"load i32, ptr {agree}")

    def has_effect(self, ins: ptx.Instruction, last: ptx.Instruction | None) -> bool:
        """Return whether ``ins`` needs the loop; ``last`` is the instruction at the stage's end."""
        if ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "resume":
            return bool(ins.operands)
        if is_poll(ins):
            return False  # a bounds check counts: moved out of a loop, it may be alone in its stage
        if ins is last:
            if flags(ins.opcode) & BARRIER:
                return offers(ins)
            if is_whole_warp_barrier(ins):
                return False
            if ins.opcode.base in ("bra", "ret", "exit", "brx"):
                return self.stage.segments[-1].join is not None
        return True

    # -- the loop over threads

    def _loop(
        self, blocks: list[Block], uniform: set[int], agree: str | None, *, optimize: bool = True
    ) -> None:
        """Emit the loop; ``agree`` is the counter of threads that take the branch."""
        emitter = self.emitter
        self.code.wraps_shared = self._wraps_shared(blocks, uniform, optimize=optimize)
        if agree is not None:
            emitter.do(f"store i32 0, ptr {agree}")
        numbers = [b.index for b in blocks]
        local = {n: emitter.label(f"b{n}") for n in numbers}
        used: dict[str, None] = {}
        stored: set[str] = set()
        for block in blocks:
            for place in block.places:
                ins = place.instruction
                if id(ins) in uniform:
                    continue
                used.update(dict.fromkeys(r.name for r in read(ins)))
                for register in written(ins):
                    used[register.name] = None
                    stored.add(register.name)
        regions = self.kernel.regions
        live_out: set[str] = set()
        for target in self.lockstep.plan.exits(self.stage):
            if target != self.lockstep.flow.exit:
                live_out.update(regions.spilled_at(target))
        stored.update(self.to_spill)
        for ins in self.recipe:
            used.update(dict.fromkeys(r.name for r in (*read(ins), *written(ins))))
        with self.lockstep.threads(self._thread_range, optimize=optimize):
            for name in used:
                if name not in self.lockstep.varying:
                    continue
                type_ = self.kernel.storage[name]
                value = zero(type_)
                if name in self.live_in:
                    value = emitter.value(
                        f"load {type_}, ptr {self.spill_slot(name)}{self.kernel.spill_tags}"
                    )
                emitter.do(f"store {type_} {value}, ptr {self.code.slot(name)}")
            for ins in self.recipe:
                with self.earlier.as_of(ins, -1):
                    self._emit_instruction(ins, self._affine_pointers.get((id(ins), True)))
            after = emitter.label("kept")
            for index, segment in enumerate(self.stage.segments):
                following = (
                    local[self.stage.segments[index + 1].blocks[0]]
                    if index + 1 < len(self.stage.segments)
                    else after
                )
                self._segment(segment, uniform, local, following, after)
            emitter.place(after)
            if self.stage.has_inner_loops(self.lockstep.back_edges):
                self.kernel.emit_side_effect(emitter, self.code.parallel)
            if agree is not None:
                self._vote(agree)
            for name in sorted(stored & live_out & self.lockstep.varying):
                type_ = self.kernel.storage[name]
                value = emitter.value(f"load {type_}, ptr {self.code.slot(name)}")
                emitter.do(
                    f"store {type_} {value}, ptr {self.spill_slot(name)}{self.kernel.spill_tags}"
                )

    def _wraps_shared(self, blocks: list[Block], uniform: set[int], *, optimize: bool) -> bool:
        """Return whether shared addresses in the loop may have passed their checks by wrapping.

        Checks that run where they stand let them, in the loop as well as once for all threads;
        those that are tested before the loop do not. An access is in the block of its check.
        """
        if self.kernel.arena is None:
            return False
        checks = (p.instruction for b in blocks for p in b.places if is_bounds_check(p.instruction))
        return not optimize or any(
            decode_check(ins).space == "shared"
            for ins in checks
            if id(ins) in self._inline or id(ins) in uniform
        )

    def spill_slot(self, name: str) -> str:
        """Return a ``ptr`` to where the current thread spills a register between stages."""
        thread = self.code.places.thread
        type_ = self.kernel.storage[name]
        return array_slot(self.emitter, self.kernel.layout, f"reg {name}", thread, type_)

    def _segment(
        self,
        segment: Segment,
        uniform: set[int],
        local: dict[int, str],
        following: str,
        after: str,
    ) -> None:
        emitter = self.emitter
        own = {} if segment.join is None else {n: local[n] for n in segment.blocks}
        loops = StripMinedLoops(self.code, self.kernel.strip_mined_loops, own)
        for number in segment.blocks:
            block = self.lockstep.flow.blocks[number]
            emitter.place(local[number])
            loops.begin(number)
            for place in block.places:
                ins = place.instruction
                if id(ins) not in uniform and ins is not block.last and not loops.polls(ins):
                    self._run(ins)
            last = block.last
            targets: dict[int, str] = {}
            for target in block.successors:
                targets[target] = local[target] if target in segment.blocks else following
            if segment.join is None:
                # Control leaves the stage, or goes to its next segment, in lockstep.
                if last is not None and id(last) not in uniform:
                    self._last_of_all(last)
                emitter.jump(following)
                continue
            again = next((t for t in targets if loops.goes_back(number, t)), None)
            if again is not None:
                targets[again] = emitter.label("again")
            self._branch(block, last, targets, uniform, after)
            if again is not None:
                emitter.place(targets[again])
                loops.go_back(number)

    def _run(self, ins: ptx.Instruction) -> None:
        if is_check(ins) and id(ins) not in self._inline:
            return
        with self.earlier.as_of(ins):
            if ins.opcode.base == "gpud" and ins.opcode.modifiers[0] == "resume":
                self.kernel.collectives.resume(self.code, ins)
            elif not waits(ins):
                self._emit_instruction(ins, self._affine_pointers.get((id(ins), False)))

    def _emit_instruction(self, ins: ptx.Instruction, affine_pointer: AffinePointer | None) -> None:
        """Emit ``ins``, or its result if that is known to be affine."""
        if affine_pointer is None:
            self.code.run(ins)
        else:
            pointer = affine_pointer.of(self.emitter, self.code.places.tid)
            self.emitter.do(f"store ptr {pointer}, ptr {self.code.slot(written(ins)[0].name)}")

    def _last_of_all(self, last: ptx.Instruction) -> None:
        base = last.opcode.base
        if waits(last):
            if flags(last.opcode) & BARRIER:
                if offers(last):
                    self.kernel.collectives.offer_barrier(self.code, last)
            elif not is_whole_warp_barrier(last):
                self.kernel.collectives.offer(self.code, last, lockstep=True)
        elif base not in ("bra", "ret", "exit", "brx"):
            self._run(last)

    def _branch(
        self,
        block: Block,
        last: ptx.Instruction | None,
        targets: dict[int, str],
        uniform: set[int],
        after: str,
    ) -> None:
        """Emit the end of an inner block, or the folded branch itself."""
        emitter = self.emitter
        base = "" if last is None else last.opcode.base
        if last is not None and base == "trap":
            with self.earlier.as_of(last):
                report(emitter, self.code, self.code.places.thread, last)
            emitter.jump(after)
        elif last is not None and base in ("bra", "ret", "exit") and last.guard is not None:
            with self.earlier.as_of(last):
                held = self.code.guard(last.guard)
            emitter.branch(held, targets[block.successors[0]], targets[block.successors[-1]])
        elif last is not None and base == "brx":
            self._indexed(last, targets)
        else:
            if last is not None and base not in ("bra", "ret", "exit") and id(last) not in uniform:
                self._run(last)
            emitter.jump(targets[block.successors[0]])

    def _indexed(self, last: ptx.Instruction, targets: dict[int, str]) -> None:
        with self.earlier.as_of(last):
            index = self.code.read(last.operands[0], "u32")
        labels = [targets[number] for number in self.lockstep.flow.table(last)]
        cases = " ".join(f"i32 {n}, label %{label}" for n, label in enumerate(labels))
        self.emitter.end(f"switch i32 {index}, label %{labels[-1]} [{cases}]")

    def _vote(self, agree: str) -> None:
        """Count and store this thread's vote."""
        emitter, last = self.emitter, self.lockstep.flow.blocks[self.stage.last].last
        assert last is not None
        assert last.guard is not None
        held = self.code.guard(last.guard)
        vote = emitter.value(f"zext i1 {held} to i32")
        thread = self.code.places.thread
        slot = array_slot(emitter, self.kernel.layout, "key", thread)
        emitter.do(f"store i32 {vote}, ptr {slot}{self.kernel.spill_tags}")
        sofar = emitter.value(f"load i32, ptr {agree}")
        emitter.do(f"store i32 {emitter.value(f'add i32 {sofar}, {vote}')}, ptr {agree}")
