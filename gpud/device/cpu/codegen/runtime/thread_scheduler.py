"""Thread scheduler of a resident block: chooses the threads to run next and ends their waits.

``i32 @step(ptr %b)`` runs a resident block: in lockstep where its threads have converged, and
through ``@run_diverged`` where they have not. Both are the same for all kernels, and compiled once:
they reach a kernel's own code through the functions in the block's header, and its threads' arrays
through its size. ``@run_diverged`` runs the block's threads, each from its own cut, until

* all of them are done (`DONE`), or one ended the block (`FAILED`);
* every thread that could run polls memory: another block must have a turn (`YIELDED`);
* all threads are at one cut at which the block can go on in lockstep (`CONVERGED`).

Algorithm: a pass runs every runnable thread up to its next cut, neighbours at the same cut in one
call. After a pass, lanes that have all reached their collective exchange values, and complete
barriers are released. If after a pass no thread is runnable and none polls, that is a deadlock: on
a GPU the kernel would hang, here it is reported.

Properties: threads make progress independently of each other (a thread in a polling loop yields at
its back edge); a collective or barrier ends only when all threads that it must wait for have
arrived.
"""

from __future__ import annotations

from gpud.compiler.abi import control_words as cw
from gpud.device.cpu.abi.layout import STATE_STATUS_SHIFT, Failure, Setup, Status
from gpud.device.cpu.codegen.runtime.block_functions import CUT_MASK
from gpud.device.cpu.codegen.runtime.reconvergence import ReconvergenceFunctions
from gpud.device.cpu.codegen.runtime.rendezvous import RendezvousFunctions
from gpud.device.cpu.ir.emitter import Emitter, IRModule

__all__ = [
    "CONVERGED",
    "DIVERGED",
    "DONE",
    "FAILED",
    "QUANTUM_EXPIRED",
    "YIELDED",
    "define_scheduler",
]

CONVERGED, YIELDED, DONE, FAILED, DIVERGED, QUANTUM_EXPIRED = range(6)
"""Results of ``@run_diverged``, of a kernel's ``run_lockstep`` and of ``@step``: the threads have
converged; all of them poll; the block is done; a thread ended it; the threads have diverged; the
block's quantum has expired."""

_PASSES_PER_QUANTUM = 64
"""A block whose threads have diverged, or that polls through collectives, yields after this many
passes."""


class _Scheduler(RendezvousFunctions, ReconvergenceFunctions):
    """Writes ``@step``, ``@run_diverged`` and their parts."""

    def define(self) -> None:
        emitter = self.begin("define internal i32 @run_diverged(ptr %b)")
        left = self._quantum(emitter)
        with emitter.loop() as (again, _):
            emitter.do("call void @pass(ptr %b)")
            error = emitter.value(f"load i32, ptr {self.header(emitter, 'error')}")
            with emitter.when(emitter.value(f"icmp ne i32 {error}, 0")):
                emitter.end(f"ret i32 {FAILED}")
            emitter.do("call void @complete_collectives(ptr %b)")
            emitter.do("call void @open_barriers(ptr %b)")
            seen = emitter.value("call i32 @status_mask(ptr %b)")
            running = emitter.value(f"and i32 {seen}, {1 << Status.RUN}")
            with emitter.when(emitter.value(f"icmp ne i32 {running}, 0")):
                converged = emitter.value("call i1 @reconverge(ptr %b)")
                leave, stay = emitter.label("converged"), emitter.label("stay")
                emitter.branch(converged, leave, stay)
                emitter.place(leave)
                emitter.end(f"ret i32 {CONVERGED}")
                emitter.place(stay)
                self._yield_block(emitter, left, again)
            polling = emitter.value(f"and i32 {seen}, {1 << Status.YIELD}")
            with emitter.when(emitter.value(f"icmp ne i32 {polling}, 0")):
                emitter.end(f"ret i32 {YIELDED}")
            with emitter.when(emitter.value(f"icmp eq i32 {seen}, {1 << Status.DONE}")):
                emitter.end(f"ret i32 {DONE}")
            emitter.do(f"store i32 {Failure.DEADLOCK}, ptr {self.header(emitter, 'error')}")
            emitter.end(f"ret i32 {FAILED}")
        emitter.end("unreachable")
        emitter.finish()
        self._define_pass()
        self._define_status_mask()
        self.define_rendezvous()
        self.define_reconvergence()
        self._define_step()

    def _define_step(self) -> None:
        emitter = self.begin("define i32 @step(ptr %b)")
        setup, lockstep_block = (
            self.header(emitter, "setup"),
            self.header(emitter, "lockstep_block"),
        )
        with emitter.when(
            emitter.value(f"icmp ne i32 {emitter.value(f'load i32, ptr {setup}')}, 0")
        ):
            emitter.do(f"store i32 {Setup.NONE}, ptr {setup}")
            start = emitter.value(f"load i32, ptr {self.header(emitter, 'start')}")
            emitter.do(f"store i32 {start}, ptr {lockstep_block}")
            emitter.do(f"store i32 0, ptr {self.header(emitter, 'error')}")
            emitter.do(f"store i32 {cw.NOTHING}, ptr {self.header(emitter, 'claim')}")
            emitter.do(f"store [16 x i32] zeroinitializer, ptr {self.header(emitter, 'arrived')}")
            # Threads that start in lockstep get their states when they diverge.
            apart = emitter.value(f"icmp slt i32 {start}, 0")
            with emitter.when(apart), emitter.count("0", self.threads) as thread:
                self.store(emitter, "state", thread, str(Status.RUN << STATE_STATUS_SHIFT))
            with emitter.when(apart):
                emitter.do(f"call void {self.function(emitter, 'begin_diverged')}(ptr %b)")
        left = self._quantum(emitter)
        with emitter.loop() as (again, _):
            apart, one, leave = emitter.label("apart"), emitter.label("one"), emitter.label("leave")
            at = emitter.value(f"load i32, ptr {lockstep_block}")
            emitter.branch(emitter.value(f"icmp slt i32 {at}, 0"), apart, one)
            emitter.place(one)
            result = emitter.value(f"call i32 {self.function(emitter, 'run_lockstep')}(ptr %b)")
            diverged = emitter.label("diverged")
            emitter.branch(emitter.value(f"icmp eq i32 {result}, {DIVERGED}"), diverged, leave)
            emitter.place(diverged)
            emitter.do(f"store i32 -1, ptr {lockstep_block}")
            emitter.do("call void @diverge(ptr %b)")
            emitter.do(f"call void {self.function(emitter, 'begin_diverged')}(ptr %b)")
            emitter.jump(apart)
            emitter.place(apart)
            other = emitter.value("call i32 @run_diverged(ptr %b)")
            joined = emitter.label("joined")
            emitter.branch(emitter.value(f"icmp eq i32 {other}, {CONVERGED}"), joined, leave)
            emitter.place(joined)
            self._yield_block(emitter, left, again)
            emitter.place(leave)
            final = emitter.value(f"phi i32 [ {result}, %{one} ], [ {other}, %{apart} ]")
            emitter.end(f"ret i32 {final}")
        emitter.end("unreachable")
        emitter.finish()

    @staticmethod
    def _quantum(emitter: Emitter) -> str:
        """Allocate the counter of the passes left in a quantum."""
        left = emitter.alloca("i32", "left")
        emitter.do(f"store i32 {_PASSES_PER_QUANTUM}, ptr {left}")
        return left

    @staticmethod
    def _yield_block(emitter: Emitter, left: str, again: str) -> None:
        """Go on at ``again``, or yield to other blocks if the quantum is used up."""
        now = emitter.value(f"sub i32 {emitter.value(f'load i32, ptr {left}')}, 1")
        emitter.do(f"store i32 {now}, ptr {left}")
        over = emitter.label("over")
        emitter.branch(emitter.value(f"icmp ne i32 {now}, 0"), again, over)
        emitter.place(over)
        emitter.end(f"ret i32 {QUANTUM_EXPIRED}")

    def _define_pass(self) -> None:
        """Run every runnable thread up to its next cut."""
        emitter = self.begin("define internal void @pass(ptr %b)")
        run = self.function(emitter, "run_region")
        at = emitter.alloca("i32", "at")
        emitter.do(f"store i32 0, ptr {at}")
        with emitter.loop() as (again, out):
            first = emitter.value(f"load i32, ptr {at}")
            body = emitter.label("next")
            emitter.branch(emitter.value(f"icmp slt i32 {first}, {self.threads}"), body, out)
            emitter.place(body)
            state = self.load(emitter, "state", first)
            status = self.status(emitter, state)
            runs = emitter.value(f"icmp eq i32 {status}, {Status.RUN}")
            polls = emitter.value(f"icmp eq i32 {status}, {Status.YIELD}")
            end = emitter.alloca("i32", "stop")
            emitter.do(f"store i32 {emitter.value(f'add i32 {first}, 1')}, ptr {end}")
            emitter.do(f"store i32 {emitter.value(f'load i32, ptr {end}')}, ptr {at}")
            go = emitter.label("go")
            emitter.branch(emitter.value(f"or i1 {runs}, {polls}"), go, again)
            emitter.place(go)
            with emitter.loop() as (more, grown):
                stop = emitter.value(f"load i32, ptr {end}")
                check = emitter.label("check")
                emitter.branch(emitter.value(f"icmp slt i32 {stop}, {self.threads}"), check, grown)
                emitter.place(check)
                same = emitter.value(f"icmp eq i32 {self.load(emitter, 'state', stop)}, {state}")
                widen = emitter.label("widen")
                emitter.branch(same, widen, grown)
                emitter.place(widen)
                emitter.do(f"store i32 {emitter.value(f'add i32 {stop}, 1')}, ptr {end}")
                emitter.jump(more)
            last = emitter.value(f"load i32, ptr {end}")
            emitter.do(f"store i32 {last}, ptr {at}")
            cut = emitter.value(f"and i32 {state}, {CUT_MASK}")
            emitter.do(f"call void {run}(ptr %b, i32 {cut}, i32 {first}, i32 {last})")
            emitter.jump(again)
        emitter.end("ret void")
        emitter.finish()

    def _define_status_mask(self) -> None:
        """Return a mask of the statuses that threads have, one bit each."""
        emitter = self.begin("define internal i32 @status_mask(ptr %b)")
        seen = emitter.alloca("i32", "seen")
        emitter.do(f"store i32 0, ptr {seen}")
        with emitter.count("0", self.threads) as thread:
            bit = emitter.value(
                f"shl i32 1, {self.status(emitter, self.load(emitter, 'state', thread))}"
            )
            sofar = emitter.value(f"load i32, ptr {seen}")
            emitter.do(f"store i32 {emitter.value(f'or i32 {sofar}, {bit}')}, ptr {seen}")
        emitter.end(f"ret i32 {emitter.value(f'load i32, ptr {seen}')}")
        emitter.finish()


def define_scheduler(ir: IRModule) -> None:
    """Define ``@step`` and the functions that it calls."""
    _Scheduler(ir).define()
