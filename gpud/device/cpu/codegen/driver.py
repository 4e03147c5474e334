"""The scheduler inside a resident block: which of its threads run next, and when waits end.

``i32 @step(ptr %b)`` runs a resident block: as one while its threads are together, and through
``@apart`` while they are not. Both are the same for all kernels, and compiled once: they reach a
kernel's own code through the functions in the block's header, and its threads' arrays through its
size. ``@apart`` runs the block's threads, each from where it stands, until

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

from gpud.device.cpu.codegen.emitter import Emitter, IRModule
from gpud.device.cpu.codegen.layout import (
    BASE_ARRAYS,
    HEADER,
    HEADER_SIZE,
    STATE_STATUS_SHIFT,
    Status,
    base_array_offset,
)

__all__ = ["APART", "DEADLOCK", "DONE", "FAILED", "TOGETHER", "TURN", "YIELDED", "define_driver"]

TOGETHER, YIELDED, DONE, FAILED, APART, TURN = range(6)
"""Results of ``@apart``, of a kernel's ``together`` and of ``@step``: the threads came together;
all of them poll; the block is done; a thread ended it; the threads parted; others shall run."""
DEADLOCK = 2
"""Value of the header's ``error`` when no thread of the block can ever go on."""

_CUT_MASK = (1 << STATE_STATUS_SHIFT) - 1


class _Driver:
    """Writes the functions.

    In each, ``self.threads`` and ``self.padded`` are values of the block at hand, loaded by
    `begin`.
    """

    def __init__(self, ir: IRModule) -> None:
        self.ir = ir
        self.threads = ""
        self.padded = ""

    def begin(self, header: str) -> Emitter:
        """A new function with a first argument ``ptr %b``."""
        e = Emitter(self.ir, f"{header} nounwind")
        self.threads = e.value(f"load i32, ptr {self.header(e, 'threads')}")
        self.padded = e.value(f"load i32, ptr {self.header(e, 'padded')}")
        return e

    # -- small accesses

    def slot(self, e: Emitter, name: str, thread: str) -> str:
        unit = base_array_offset(name)
        at = e.value(f"mul i32 {self.padded}, {unit}")
        at = e.value(f"add i32 {at}, {HEADER_SIZE}")
        base = e.value(f"getelementptr i8, ptr %b, i32 {at}")
        return e.value(f"getelementptr {BASE_ARRAYS[name]}, ptr {base}, i32 {thread}")

    def load(self, e: Emitter, name: str, thread: str) -> str:
        return e.value(f"load {BASE_ARRAYS[name]}, ptr {self.slot(e, name, thread)}")

    def store(self, e: Emitter, name: str, thread: str, value: str) -> None:
        e.do(f"store {BASE_ARRAYS[name]} {value}, ptr {self.slot(e, name, thread)}")

    def function(self, e: Emitter, name: str) -> str:
        """One of the kernel's own functions."""
        return e.value(f"load ptr, ptr {self.header(e, name)}")

    def status(self, e: Emitter, state: str) -> str:
        return e.value(f"lshr i32 {state}, {STATE_STATUS_SHIFT}")

    def header(self, e: Emitter, name: str) -> str:
        return e.value(f"getelementptr i8, ptr %b, i64 {HEADER[name][0]}")

    # -- the passes

    def define(self) -> None:
        e = self.begin("define internal i32 @apart(ptr %b)")
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
        self._define_find()
        self._define_spread()
        self._define_part()
        self._define_gather()
        self._define_step()

    def _define_step(self) -> None:
        e = self.begin("define i32 @step(ptr %b)")
        fresh, together = self.header(e, "fresh"), self.header(e, "together")
        with e.when(e.value(f"icmp ne i32 {e.value(f'load i32, ptr {fresh}')}, 0")):
            e.do(f"store i32 0, ptr {fresh}")
            start = e.value(f"load i32, ptr {self.header(e, 'start')}")
            e.do(f"store i32 {start}, ptr {together}")
            e.do(f"store i32 0, ptr {self.header(e, 'error')}")
            e.do(f"store [16 x i32] zeroinitializer, ptr {self.header(e, 'arrived')}")
            # Threads that begin together get their states when they part.
            apart = e.value(f"icmp slt i32 {start}, 0")
            with e.when(apart), e.count("0", self.threads) as thread:
                self.store(e, "state", thread, str(Status.RUN << STATE_STATUS_SHIFT))
        with e.loop() as (again, _):
            apart, one, leave = e.label("apart"), e.label("one"), e.label("leave")
            at = e.value(f"load i32, ptr {together}")
            e.branch(e.value(f"icmp slt i32 {at}, 0"), apart, one)
            e.place(one)
            result = e.value(f"call i32 {self.function(e, 'run_together')}(ptr %b)")
            parted = e.label("parted")
            e.branch(e.value(f"icmp eq i32 {result}, {APART}"), parted, leave)
            e.place(parted)
            e.do(f"store i32 -1, ptr {together}")
            e.do("call void @part(ptr %b)")
            e.jump(apart)
            e.place(apart)
            other = e.value("call i32 @apart(ptr %b)")
            e.branch(e.value(f"icmp eq i32 {other}, {TOGETHER}"), again, leave)
            e.place(leave)
            final = e.value(f"phi i32 [ {result}, %{one} ], [ {other}, %{apart} ]")
            e.end(f"ret i32 {final}")
        e.end("unreachable")
        e.finish()

    def _define_pass(self) -> None:
        """Run every thread that can run up to its next cut."""
        e = self.begin("define internal void @pass(ptr %b)")
        run = self.function(e, "run_piece")
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
            e.do(f"call void {run}(ptr %b, i32 {cut}, i32 {first}, i32 {last})")
            e.jump(again)
        e.end("ret void")
        e.finish()

    def _define_census(self) -> None:
        """One bit for each status that any thread has."""
        e = self.begin("define internal i32 @census(ptr %b)")
        seen = e.alloca("i32", "seen")
        e.do(f"store i32 0, ptr {seen}")
        with e.count("0", self.threads) as thread:
            bit = e.value(f"shl i32 1, {self.status(e, self.load(e, 'state', thread))}")
            sofar = e.value(f"load i32, ptr {seen}")
            e.do(f"store i32 {e.value(f'or i32 {sofar}, {bit}')}, ptr {seen}")
        e.end(f"ret i32 {e.value(f'load i32, ptr {seen}')}")
        e.finish()

    # -- parting and coming together

    def _define_find(self) -> None:
        """The row of a block in the kernel's table ``common`` (see `stages`), null if none."""
        e = self.begin("define internal ptr @find(ptr %b, i32 %block)")
        row = e.alloca("ptr", "row")
        e.do(f"store ptr {self.function(e, 'common')}, ptr {row}")
        with e.loop() as (_, out):
            here = e.value(f"load ptr, ptr {row}")
            number = e.value(f"load i32, ptr {here}")
            with e.when(e.value(f"icmp eq i32 {number}, %block")):
                e.end(f"ret ptr {here}")
            onward = e.label("onward")
            e.branch(e.value(f"icmp slt i32 {number}, 0"), out, onward)
            e.place(onward)
            count = self.word(e, here, 2)
            words = e.value(f"add i32 {e.value(f'mul i32 {count}, 3')}, 3")
            e.do(f"store ptr {e.value(f'getelementptr i32, ptr {here}, i32 {words}')}, ptr {row}")
        e.end("ret ptr null")
        e.finish()

    @staticmethod
    def word(e: Emitter, row: str, index: int) -> str:
        return e.value(f"load i32, ptr {e.value(f'getelementptr i32, ptr {row}, i32 {index}')}")

    def _define_spread(self) -> None:
        """Give every thread its own copy of the registers of a row."""
        e = self.begin("define internal void @spread(ptr %b, i32 %block)")
        row = e.value("call ptr @find(ptr %b, i32 %block)")
        found, done = e.label("found"), e.label("spread")
        e.branch(e.value(f"icmp ne ptr {row}, null"), found, done)
        e.place(found)
        with e.count("0", self.word(e, row, 2)) as index:
            array, size, common = self._entry(e, row, index)
            for bits in (8, 16, 32, 64):
                with e.when(e.value(f"icmp eq i32 {size}, {bits // 8}")):
                    value = e.value(f"load i{bits}, ptr {common}")
                    with e.count("0", self.threads) as thread:
                        mine = e.value(f"getelementptr i{bits}, ptr {array}, i32 {thread}")
                        e.do(f"store i{bits} {value}, ptr {mine}")
        e.place(done)
        e.end("ret void")
        e.finish()

    def _entry(self, e: Emitter, row: str, index: str) -> tuple[str, str, str]:
        """(pointer to the array, size, pointer to the common copy) of a register of a row."""
        at = e.value(f"add i32 {e.value(f'mul i32 {index}, 3')}, 3")
        triple = e.value(f"getelementptr i32, ptr {row}, i32 {at}")
        array = e.value(f"getelementptr i8, ptr %b, i32 {self.word(e, triple, 0)}")
        common = e.value(f"getelementptr i8, ptr %b, i32 {self.word(e, triple, 2)}")
        return array, self.word(e, triple, 1), common

    def _define_part(self) -> None:
        """The threads part: copies of what is uniform, and a state, for each of them."""
        e = self.begin("define internal void @part(ptr %b)")
        votes = e.value(f"load i32, ptr {self.header(e, 'votes')}")
        words = [e.value(f"load i32, ptr {self.header(e, name)}") for name in ("taken", "falls")]
        for word in words:
            block = e.value(f"and i32 {word}, {_CUT_MASK}")
            e.do(f"call void @spread(ptr %b, i32 {block})")
        with e.count("0", self.threads) as thread:
            vote = e.value(f"icmp ne i32 {self.load(e, 'key', thread)}, 0")
            alike = e.value(f"icmp eq i32 {votes}, 0")
            took = e.value(f"or i1 {vote}, {alike}")
            word = e.value(f"select i1 {took}, i32 {words[0]}, i32 {words[1]}")
            self.store(e, "state", thread, word)
        e.end("ret void")
        e.finish()

    def _define_gather(self) -> None:
        """Whether the threads may go on as one; the header then says where.

        They may if all stand at one place that allows it and agree on what is uniform there.
        """
        e = self.begin("define internal i1 @gather(ptr %b)")
        no = e.label("no")
        differ = e.alloca("i64", "differ")
        e.do(f"store i64 0, ptr {differ}")
        first = self.load(e, "state", "0")
        with e.count("0", self.threads) as thread:
            other = e.value(f"xor i32 {self.load(e, 'state', thread)}, {first}")
            self._differ(e, differ, e.value(f"zext i32 {other} to i64"))
        row, same = e.label("row"), e.label("same")
        e.branch(e.value(f"icmp eq i64 {e.value(f'load i64, ptr {differ}')}, 0"), row, no)
        e.place(row)
        found = e.value(f"call ptr @find(ptr %b, i32 {first})")
        known = e.label("known")
        e.branch(e.value(f"icmp ne ptr {found}, null"), known, no)
        e.place(known)
        may = e.value(f"icmp ne i32 {self.word(e, found, 1)}, 0")
        compare = e.label("compare")
        e.branch(may, compare, no)
        e.place(compare)
        with e.count("0", self.word(e, found, 2)) as index:
            array, size, common = self._entry(e, found, index)
            for bits in (8, 16, 32, 64):
                with e.when(e.value(f"icmp eq i32 {size}, {bits // 8}")):
                    value = e.value(f"load i{bits}, ptr {array}")
                    e.do(f"store i{bits} {value}, ptr {common}")
                    with e.count("0", self.threads) as thread:
                        mine = e.value(f"getelementptr i{bits}, ptr {array}, i32 {thread}")
                        other = e.value(f"load i{bits}, ptr {mine}")
                        change = e.value(f"xor i{bits} {value}, {other}")
                        wide = f"zext i{bits} {change} to i64"
                        self._differ(e, differ, change if bits == 64 else e.value(wide))
        e.branch(e.value(f"icmp eq i64 {e.value(f'load i64, ptr {differ}')}, 0"), same, no)
        e.place(same)
        e.do(f"store i32 {first}, ptr {self.header(e, 'together')}")
        e.end("ret i1 true")
        e.place(no)
        e.end("ret i1 false")
        e.finish()

    @staticmethod
    def _differ(e: Emitter, slot: str, change: str) -> None:
        sofar = e.value(f"load i64, ptr {slot}")
        e.do(f"store i64 {e.value(f'or i64 {sofar}, {change}')}, ptr {slot}")

    # -- collectives

    def _define_meet(self) -> None:
        """Complete every collective whose lanes have all come."""
        e = self.begin("define internal void @meet(ptr %b)")
        exchange = self.function(e, "exchange")
        warps = e.value(f"lshr i32 {self.padded}, 5")
        e.module.declare("cttz32", "declare i32 @llvm.cttz.i32(i32, i1)")
        todo = e.alloca("i32", "todo")
        waiting = e.alloca("i32", "waiting")
        alive = e.alloca("i32", "alive")
        group = e.alloca("i32", "group")
        with e.count("0", warps) as warp:
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
                e.do(f"call void {exchange}(ptr %b, i32 {first}, i32 {found}, i32 {key})")
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

    # -- barriers

    def _define_open(self) -> None:
        """Open every barrier whose threads have come.

        A barrier without a count waits for all threads that have not ended. One with a count
        counts whole warps: lanes that do not exist arrive with the last thread of the block.
        """
        e = self.begin("define internal void @open(ptr %b)")
        come = e.alloca("[16 x i32]", "come")
        expected = e.alloca("[16 x i32]", "expected")
        held = e.alloca("[16 x i32]", "held")
        alive = e.alloca("i32", "alive")
        any_ = e.alloca("i1", "any")
        e.do(f"store i32 0, ptr {alive}")
        e.do(f"store i1 false, ptr {any_}")
        for array in (come, expected, held):
            e.do(f"store [16 x i32] zeroinitializer, ptr {array}")
        missing = e.value(f"sub i32 {self.padded}, {self.threads}")
        lanes = e.value(f"add i32 {missing}, 1")
        final_thread = e.value(f"sub i32 {self.threads}, 1")
        with e.count("0", self.threads) as thread:
            status = self.status(e, self.load(e, "state", thread))
            lives = e.value(f"icmp ult i32 {status}, {Status.DONE}")
            self._add(e, alive, e.value(f"zext i1 {lives} to i32"))
            with e.when(e.value(f"icmp eq i32 {status}, {Status.BARRIER}")):
                e.do(f"store i1 true, ptr {any_}")
                number = e.value(f"and i32 {self.load(e, 'key', thread)}, 15")
                count = self.load(e, "count", thread)
                e.do(f"store i32 {count}, ptr {self._cell(e, expected, number)}")
                final = e.value(f"icmp eq i32 {thread}, {final_thread}")
                counted = e.value(f"icmp ne i32 {count}, 0")
                padded = e.value(f"and i1 {final}, {counted}")
                weight = e.value(f"select i1 {padded}, i32 {lanes}, i32 1")
                self._add(e, self._cell(e, come, number), weight)
                offered = e.value(f"trunc i64 {self.load(e, 'xa', thread)} to i32")
                self._add(e, self._cell(e, held, number), e.value(f"and i32 {offered}, 1"))
        with e.when(e.value(f"load i1, ptr {any_}")), e.count("0", "16") as number:
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


def define_driver(ir: IRModule) -> None:
    """Define ``@step`` and what it needs."""
    _Driver(ir).define()
