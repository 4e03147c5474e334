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
        e = self.begin("define internal i32 @run_diverged(ptr %b)")
        left = self._quantum(e)
        with e.loop() as (again, _):
            e.do("call void @pass(ptr %b)")
            error = e.value(f"load i32, ptr {self.header(e, 'error')}")
            with e.when(e.value(f"icmp ne i32 {error}, 0")):
                e.end(f"ret i32 {FAILED}")
            e.do("call void @complete_collectives(ptr %b)")
            e.do("call void @open_barriers(ptr %b)")
            seen = e.value("call i32 @status_mask(ptr %b)")
            running = e.value(f"and i32 {seen}, {1 << Status.RUN}")
            with e.when(e.value(f"icmp ne i32 {running}, 0")):
                converged = e.value("call i1 @reconverge(ptr %b)")
                leave, stay = e.label("converged"), e.label("stay")
                e.branch(converged, leave, stay)
                e.place(leave)
                e.end(f"ret i32 {CONVERGED}")
                e.place(stay)
                self._yield_block(e, left, again)
            polling = e.value(f"and i32 {seen}, {1 << Status.YIELD}")
            with e.when(e.value(f"icmp ne i32 {polling}, 0")):
                e.end(f"ret i32 {YIELDED}")
            with e.when(e.value(f"icmp eq i32 {seen}, {1 << Status.DONE}")):
                e.end(f"ret i32 {DONE}")
            e.do(f"store i32 {Failure.DEADLOCK}, ptr {self.header(e, 'error')}")
            e.end(f"ret i32 {FAILED}")
        e.end("unreachable")
        e.finish()
        self._define_pass()
        self._define_status_mask()
        self.define_rendezvous()
        self.define_reconvergence()
        self._define_step()

    def _define_step(self) -> None:
        e = self.begin("define i32 @step(ptr %b)")
        setup, lockstep_block = self.header(e, "setup"), self.header(e, "lockstep_block")
        with e.when(e.value(f"icmp ne i32 {e.value(f'load i32, ptr {setup}')}, 0")):
            e.do(f"store i32 {Setup.NONE}, ptr {setup}")
            start = e.value(f"load i32, ptr {self.header(e, 'start')}")
            e.do(f"store i32 {start}, ptr {lockstep_block}")
            e.do(f"store i32 0, ptr {self.header(e, 'error')}")
            e.do(f"store i32 {cw.NOTHING}, ptr {self.header(e, 'claim')}")
            e.do(f"store [16 x i32] zeroinitializer, ptr {self.header(e, 'arrived')}")
            # Threads that start in lockstep get their states when they diverge.
            apart = e.value(f"icmp slt i32 {start}, 0")
            with e.when(apart), e.count("0", self.threads) as thread:
                self.store(e, "state", thread, str(Status.RUN << STATE_STATUS_SHIFT))
        left = self._quantum(e)
        with e.loop() as (again, _):
            apart, one, leave = e.label("apart"), e.label("one"), e.label("leave")
            at = e.value(f"load i32, ptr {lockstep_block}")
            e.branch(e.value(f"icmp slt i32 {at}, 0"), apart, one)
            e.place(one)
            result = e.value(f"call i32 {self.function(e, 'run_lockstep')}(ptr %b)")
            diverged = e.label("diverged")
            e.branch(e.value(f"icmp eq i32 {result}, {DIVERGED}"), diverged, leave)
            e.place(diverged)
            e.do(f"store i32 -1, ptr {lockstep_block}")
            e.do("call void @diverge(ptr %b)")
            e.jump(apart)
            e.place(apart)
            other = e.value("call i32 @run_diverged(ptr %b)")
            joined = e.label("joined")
            e.branch(e.value(f"icmp eq i32 {other}, {CONVERGED}"), joined, leave)
            e.place(joined)
            self._yield_block(e, left, again)
            e.place(leave)
            final = e.value(f"phi i32 [ {result}, %{one} ], [ {other}, %{apart} ]")
            e.end(f"ret i32 {final}")
        e.end("unreachable")
        e.finish()

    @staticmethod
    def _quantum(e: Emitter) -> str:
        """Allocate the counter of the passes left in a quantum."""
        left = e.alloca("i32", "left")
        e.do(f"store i32 {_PASSES_PER_QUANTUM}, ptr {left}")
        return left

    @staticmethod
    def _yield_block(e: Emitter, left: str, again: str) -> None:
        """Go on at ``again``, or yield to other blocks if the quantum is used up."""
        now = e.value(f"sub i32 {e.value(f'load i32, ptr {left}')}, 1")
        e.do(f"store i32 {now}, ptr {left}")
        over = e.label("over")
        e.branch(e.value(f"icmp ne i32 {now}, 0"), again, over)
        e.place(over)
        e.end(f"ret i32 {QUANTUM_EXPIRED}")

    def _define_pass(self) -> None:
        """Run every runnable thread up to its next cut."""
        e = self.begin("define internal void @pass(ptr %b)")
        run = self.function(e, "run_region")
        at = e.alloca("i32", "at")
        e.do(f"store i32 0, ptr {at}")
        with e.loop() as (again, out):
            first = e.value(f"load i32, ptr {at}")
            body = e.label("next")
            e.branch(e.value(f"icmp slt i32 {first}, {self.threads}"), body, out)
            e.place(body)
            state = self.load(e, "state", first)
            status = self.status(e, state)
            runs = e.value(f"icmp eq i32 {status}, {Status.RUN}")
            polls = e.value(f"icmp eq i32 {status}, {Status.YIELD}")
            end = e.alloca("i32", "stop")
            e.do(f"store i32 {e.value(f'add i32 {first}, 1')}, ptr {end}")
            e.do(f"store i32 {e.value(f'load i32, ptr {end}')}, ptr {at}")
            go = e.label("go")
            e.branch(e.value(f"or i1 {runs}, {polls}"), go, again)
            e.place(go)
            with e.loop() as (more, grown):
                stop = e.value(f"load i32, ptr {end}")
                check = e.label("check")
                e.branch(e.value(f"icmp slt i32 {stop}, {self.threads}"), check, grown)
                e.place(check)
                same = e.value(f"icmp eq i32 {self.load(e, 'state', stop)}, {state}")
                widen = e.label("widen")
                e.branch(same, widen, grown)
                e.place(widen)
                e.do(f"store i32 {e.value(f'add i32 {stop}, 1')}, ptr {end}")
                e.jump(more)
            last = e.value(f"load i32, ptr {end}")
            e.do(f"store i32 {last}, ptr {at}")
            cut = e.value(f"and i32 {state}, {CUT_MASK}")
            e.do(f"call void {run}(ptr %b, i32 {cut}, i32 {first}, i32 {last})")
            e.jump(again)
        e.end("ret void")
        e.finish()

    def _define_status_mask(self) -> None:
        """Return a mask of the statuses that threads have, one bit each."""
        e = self.begin("define internal i32 @status_mask(ptr %b)")
        seen = e.alloca("i32", "seen")
        e.do(f"store i32 0, ptr {seen}")
        with e.count("0", self.threads) as thread:
            bit = e.value(f"shl i32 1, {self.status(e, self.load(e, 'state', thread))}")
            sofar = e.value(f"load i32, ptr {seen}")
            e.do(f"store i32 {e.value(f'or i32 {sofar}, {bit}')}, ptr {seen}")
        e.end(f"ret i32 {e.value(f'load i32, ptr {seen}')}")
        e.finish()


def define_scheduler(ir: IRModule) -> None:
    """Define ``@step`` and the functions that it calls."""
    _Scheduler(ir).define()
