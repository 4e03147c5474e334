"""The scheduler inside a resident block: which of its threads run next, and when waits end.

``i32 @apart(ptr %b)`` runs the block's threads, each from where it stands, until

* all of them are done (`DONE`), or one ended the block (`FAILED`);
* every thread that could run polls memory: another block must have a turn (`YIELDED`);
* all threads stand at one cut at which the block can go on as one (`TOGETHER`).

Algorithm: a pass runs every thread that can run up to its next cut, neighbours at the same cut in
one call. After a pass, lanes that wait for each other at a collective exchange values, and barriers
whose threads have come are opened. A pass after which nothing can run and nothing polls is a
deadlock: on a GPU the kernel would hang, here it is reported.

Properties: threads make progress independently of each other (a thread that spins gives way at
its back edge); a collective or barrier ends only when everything it must wait for has come.
"""

from __future__ import annotations

from gpud.device.cpu.codegen.collectives import array_slot
from gpud.device.cpu.codegen.emitter import Emitter
from gpud.device.cpu.codegen.layout import HEADER, STATE_STATUS_SHIFT, Status
from gpud.device.cpu.codegen.pieces import KernelCode

__all__ = ["DEADLOCK", "DONE", "FAILED", "TOGETHER", "YIELDED", "define_apart"]

TOGETHER, YIELDED, DONE, FAILED = range(4)
DEADLOCK = 2
"""Value of the header's ``error`` when no thread of the block can ever go on."""

_CUT_MASK = (1 << STATE_STATUS_SHIFT) - 1


class _Driver:
    def __init__(self, kernel: KernelCode) -> None:
        self.kernel = kernel
        self.layout = kernel.layout
        self.threads = str(kernel.layout.threads)

    # -- small accesses

    def load(self, e: Emitter, name: str, thread: str) -> str:
        _, type_ = self.layout.array(name, "i32")
        return e.value(f"load {type_}, ptr {array_slot(e, self.layout, name, thread)}")

    def store(self, e: Emitter, name: str, thread: str, value: str) -> None:
        _, type_ = self.layout.array(name, "i32")
        e.do(f"store {type_} {value}, ptr {array_slot(e, self.layout, name, thread)}")

    def status(self, e: Emitter, state: str) -> str:
        return e.value(f"lshr i32 {state}, {STATE_STATUS_SHIFT}")

    def header(self, e: Emitter, name: str) -> str:
        return e.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")

    # -- the passes

    def define(self) -> None:
        e = Emitter(self.kernel.ir, "define internal i32 @apart(ptr %b)")
        with e.loop() as (again, _):
            e.do("call void @pass(ptr %b)")
            error = e.value(f"load i32, ptr {self.header(e, 'error')}")
            with e.when(e.value(f"icmp ne i32 {error}, 0")):
                e.end(f"ret i32 {FAILED}")
            e.do("call void @meet(ptr %b)")
            e.do("call void @open(ptr %b)")
            seen = e.value("call i32 @census(ptr %b)")
            running = e.value(f"and i32 {seen}, {1 << Status.RUN}")
            with e.when(e.value(f"icmp ne i32 {running}, 0")):
                together = e.value("call i1 @gather(ptr %b)")
                leave = e.label("together")
                e.branch(together, leave, again)
                e.place(leave)
                e.end(f"ret i32 {TOGETHER}")
            polling = e.value(f"and i32 {seen}, {1 << Status.YIELD}")
            with e.when(e.value(f"icmp ne i32 {polling}, 0")):
                e.end(f"ret i32 {YIELDED}")
            with e.when(e.value(f"icmp eq i32 {seen}, {1 << Status.DONE}")):
                e.end(f"ret i32 {DONE}")
            e.do(f"store i32 {DEADLOCK}, ptr {self.header(e, 'error')}")
            e.end(f"ret i32 {FAILED}")
        e.end("unreachable")
        e.finish()
        self._define_pass()
        self._define_census()
        self._define_meet()
        self._define_open()
        self._define_exchange()

    def _define_pass(self) -> None:
        """Run every thread that can run up to its next cut."""
        kernel = self.kernel
        e = Emitter(kernel.ir, "define internal void @pass(ptr %b)")
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
            cut = e.value(f"and i32 {state}, {_CUT_MASK}")
            labels = {c: e.label("piece") for c in kernel.pieces}
            arms = " ".join(f"i32 {c}, label %{label}" for c, label in labels.items())
            e.end(f"switch i32 {cut}, label %{again} [{arms}]")
            for c, label in labels.items():
                e.place(label)
                e.do(f"call void @piece.{c}(ptr %b, i32 {first}, i32 {last})")
                e.jump(again)
        e.end("ret void")
        e.finish()

    def _define_census(self) -> None:
        """One bit for each status that any thread has."""
        e = Emitter(self.kernel.ir, "define internal i32 @census(ptr %b)")
        seen = e.alloca("i32", "seen")
        e.do(f"store i32 0, ptr {seen}")
        with e.count("0", self.threads) as thread:
            bit = e.value(f"shl i32 1, {self.status(e, self.load(e, 'state', thread))}")
            sofar = e.value(f"load i32, ptr {seen}")
            e.do(f"store i32 {e.value(f'or i32 {sofar}, {bit}')}, ptr {seen}")
        e.end(f"ret i32 {e.value(f'load i32, ptr {seen}')}")
        e.finish()

    # -- collectives

    def _define_meet(self) -> None:
        """Complete every collective whose lanes have all come."""
        e = Emitter(self.kernel.ir, "define internal void @meet(ptr %b)")
        e.module.declare("cttz32", "declare i32 @llvm.cttz.i32(i32, i1)")
        todo = e.alloca("i32", "todo")
        waiting = e.alloca("i32", "waiting")
        alive = e.alloca("i32", "alive")
        group = e.alloca("i32", "group")
        with e.count("0", str(self.layout.warps)) as warp:
            first = e.value(f"mul i32 {warp}, 32")
            e.do(f"store i32 0, ptr {waiting}")
            e.do(f"store i32 0, ptr {alive}")
            with e.count("0", "32") as lane:
                thread = e.value(f"add i32 {first}, {lane}")
                with e.when(e.value(f"icmp slt i32 {thread}, {self.threads}")):
                    status = self.status(e, self.load(e, "state", thread))
                    bit = e.value(f"shl i32 1, {lane}")
                    self._or_if(e, waiting, bit, f"icmp eq i32 {status}, {Status.COLLECTIVE}")
                    self._or_if(e, alive, bit, f"icmp ult i32 {status}, {Status.DONE}")
            e.do(f"store i32 {e.value(f'load i32, ptr {waiting}')}, ptr {todo}")
            with e.loop() as (again, out):
                left = e.value(f"load i32, ptr {todo}")
                body = e.label("offer")
                e.branch(e.value(f"icmp ne i32 {left}, 0"), body, out)
                e.place(body)
                lane = e.value(f"call i32 @llvm.cttz.i32(i32 {left}, i1 true)")
                thread = e.value(f"add i32 {first}, {lane}")
                key = self.load(e, "key", thread)
                mask = self.load(e, "mask", thread)
                state = self.load(e, "state", thread)
                alone = e.value(f"icmp eq i32 {mask}, 0")
                e.do(f"store i32 {e.value(f'shl i32 1, {lane}')}, ptr {group}")
                with e.count("0", "32") as other_lane:
                    bit = e.value(f"shl i32 1, {other_lane}")
                    come = e.value(f"load i32, ptr {waiting}")
                    come = e.value(f"icmp ne i32 {e.value(f'and i32 {come}, {bit}')}, 0")
                    with e.when(come):
                        other = e.value(f"add i32 {first}, {other_lane}")
                        same = self._equal(e, "key", other, key)
                        same = e.value(f"and i1 {same}, {self._equal(e, 'mask', other, mask)}")
                        here = self._equal(e, "state", other, state)
                        here = e.value(f"or i1 {here}, {e.value(f'xor i1 {alone}, true')}")
                        named = e.value(f"icmp ne i32 {e.value(f'and i32 {mask}, {bit}')}, 0")
                        named = e.value(f"or i1 {named}, {alone}")
                        same = e.value(f"and i1 {same}, {here}")
                        self._or_if(e, group, bit, f"and i1 {same}, {named}")
                found = e.value(f"load i32, ptr {group}")
                rest = e.value(f"and i32 {left}, {e.value(f'xor i32 {found}, -1')}")
                e.do(f"store i32 {rest}, ptr {todo}")
                need = e.value(f"and i32 {mask}, {e.value(f'load i32, ptr {alive}')}")
                missing = e.value(f"and i32 {need}, {e.value(f'xor i32 {found}, -1')}")
                complete = e.label("complete")
                e.branch(e.value(f"icmp eq i32 {missing}, 0"), complete, again)
                e.place(complete)
                e.do(f"call void @exchange(ptr %b, i32 {first}, i32 {found}, i32 {key})")
                with e.count("0", "32") as other_lane:
                    bit = e.value(f"shl i32 1, {other_lane}")
                    member = e.value(f"icmp ne i32 {e.value(f'and i32 {found}, {bit}')}, 0")
                    with e.when(member):
                        other = e.value(f"add i32 {first}, {other_lane}")
                        self._wake(e, other)
                e.jump(again)
        e.end("ret void")
        e.finish()

    def _equal(self, e: Emitter, name: str, thread: str, value: str) -> str:
        return e.value(f"icmp eq i32 {self.load(e, name, thread)}, {value}")

    def _or_if(self, e: Emitter, slot: str, bit: str, condition: str) -> None:
        add = e.value(f"select i1 {e.value(condition)}, i32 {bit}, i32 0")
        sofar = e.value(f"load i32, ptr {slot}")
        e.do(f"store i32 {e.value(f'or i32 {sofar}, {add}')}, ptr {slot}")

    def _wake(self, e: Emitter, thread: str) -> None:
        state = self.load(e, "state", thread)
        self.store(e, "state", thread, e.value(f"and i32 {state}, {_CUT_MASK}"))

    def _define_exchange(self) -> None:
        e = Emitter(
            self.kernel.ir,
            "define internal void @exchange(ptr %b, i32 %first, i32 %group, i32 %key)",
        )
        self.kernel.collectives.define_exchange(e)
        e.finish()

    # -- barriers

    def _define_open(self) -> None:
        """Open every barrier whose threads have come.

        A barrier without a count waits for all threads that have not ended. One with a count
        counts whole warps: lanes that do not exist arrive with the last thread of the block.
        """
        e = Emitter(self.kernel.ir, "define internal void @open(ptr %b)")
        come = e.alloca("[16 x i32]", "come")
        expected = e.alloca("[16 x i32]", "expected")
        held = e.alloca("[16 x i32]", "held")
        alive = e.alloca("i32", "alive")
        any_ = e.alloca("i1", "any")
        e.do(f"store i32 0, ptr {alive}")
        e.do(f"store i1 false, ptr {any_}")
        for array in (come, expected, held):
            e.do(f"store [16 x i32] zeroinitializer, ptr {array}")
        missing = self.layout.padded - self.layout.threads
        with e.count("0", self.threads) as thread:
            status = self.status(e, self.load(e, "state", thread))
            lives = e.value(f"icmp ult i32 {status}, {Status.DONE}")
            self._add(e, alive, e.value(f"zext i1 {lives} to i32"))
            with e.when(e.value(f"icmp eq i32 {status}, {Status.BARRIER}")):
                e.do(f"store i1 true, ptr {any_}")
                number = e.value(f"and i32 {self.load(e, 'key', thread)}, 15")
                count = self.load(e, "count", thread)
                e.do(f"store i32 {count}, ptr {self._cell(e, expected, number)}")
                final = e.value(f"icmp eq i32 {thread}, {self.layout.threads - 1}")
                counted = e.value(f"icmp ne i32 {count}, 0")
                padded = e.value(f"and i1 {final}, {counted}")
                weight = e.value(f"select i1 {padded}, i32 {1 + missing}, i32 1")
                self._add(e, self._cell(e, come, number), weight)
                offered = e.value(f"trunc i64 {self.load(e, 'xa', thread)} to i32")
                self._add(e, self._cell(e, held, number), e.value(f"and i32 {offered}, 1"))
        with e.when(e.value(f"load i1, ptr {any_}")):
            with e.count("0", "16") as number:
                here = e.value(f"load i32, ptr {self._cell(e, come, number)}")
                want = e.value(f"load i32, ptr {self._cell(e, expected, number)}")
                arrived = self._cell(e, self.header(e, "arrived"), number)
                whole = e.value(f"icmp eq i32 {want}, 0")
                living = e.value(f"load i32, ptr {alive}")
                total = e.value(f"add i32 {here}, {e.value(f'load i32, ptr {arrived}')}")
                target = e.value(f"select i1 {whole}, i32 {living}, i32 {want}")
                enough = e.value(f"icmp sge i32 {total}, {target}")
                some = e.value(f"icmp ne i32 {here}, 0")
                with e.when(e.value(f"and i1 {enough}, {some}")):
                    e.do(f"store i32 0, ptr {arrived}")
                    ones = e.value(f"load i32, ptr {self._cell(e, held, number)}")
                    self._release(e, number, ones, here)
        e.end("ret void")
        e.finish()

    def _release(self, e: Emitter, number: str, ones: str, here: str) -> None:
        high = e.value(f"shl i64 {e.value(f'zext i32 {here} to i64')}, 32")
        result = e.value(f"or i64 {high}, {e.value(f'zext i32 {ones} to i64')}")
        with e.count("0", self.threads) as thread:
            status = self.status(e, self.load(e, "state", thread))
            waits = e.value(f"icmp eq i32 {status}, {Status.BARRIER}")
            key = e.value(f"and i32 {self.load(e, 'key', thread)}, 15")
            mine = e.value(f"icmp eq i32 {key}, {number}")
            with e.when(e.value(f"and i1 {waits}, {mine}")):
                self.store(e, "result", thread, result)
                self._wake(e, thread)

    @staticmethod
    def _cell(e: Emitter, array: str, number: str) -> str:
        return e.value(f"getelementptr i32, ptr {array}, i32 {number}")

    @staticmethod
    def _add(e: Emitter, slot: str, value: str) -> None:
        sofar = e.value(f"load i32, ptr {slot}")
        e.do(f"store i32 {e.value(f'add i32 {sofar}, {value}')}, ptr {slot}")


def define_apart(kernel: KernelCode) -> None:
    """Define ``@apart`` and its helpers; ``@piece.*`` and ``@gather`` are defined elsewhere."""
    _Driver(kernel).define()
