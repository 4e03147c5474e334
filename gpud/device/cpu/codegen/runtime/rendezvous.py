"""Completion of warp collectives and barriers at which diverged threads wait.

Properties:
* lanes that have ended, or that a partial warp lacks, are not waited for;
* a barrier without a count waits for all threads of the block that have not ended; one with a count
  counts whole warps: lanes that do not exist, or have ended, count as arrived once a lane of their
  warp waits. With ``bar.arrive``, lanes that do not exist count, but not those that have ended.

Source: PTX ISA 9.0, 9.7.13 (barriers, votes, shuffles).
"""

from __future__ import annotations

from gpud.device.cpu.abi.layout import Status
from gpud.device.cpu.codegen.runtime.block_functions import CUT_MASK, BlockFunctions
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["RendezvousFunctions"]


class RendezvousFunctions(BlockFunctions):
    """Writes ``@complete_collectives`` and ``@open_barriers``."""

    def define_rendezvous(self) -> None:
        """Define both."""
        self._define_complete_collectives()
        self._define_open_barriers()

    # -- collectives

    def _define_complete_collectives(self) -> None:
        """Complete every collective that all of its lanes have reached."""
        e = self.begin("define internal void @complete_collectives(ptr %b)")
        exchange = self.function(e, "exchange")
        warps = e.value(f"lshr i32 {self.padded}, 5")
        e.module.declare("declare i32 @llvm.cttz.i32(i32, i1)")
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
        self.store(e, "state", thread, e.value(f"and i32 {state}, {CUT_MASK}"))

    # -- barriers

    def _define_open_barriers(self) -> None:
        """Release every barrier at which all expected threads have arrived."""
        e = self.begin("define internal void @open_barriers(ptr %b)")
        come = e.alloca("[16 x i32]", "come")
        absent = e.alloca("[16 x i32]", "absent")
        expected = e.alloca("[16 x i32]", "expected")
        held = e.alloca("[16 x i32]", "held")
        alive = e.alloca("i32", "alive")
        missing = e.alloca("i32", "missing")
        any_ = e.alloca("i1", "any")
        e.do(f"store i32 0, ptr {alive}")
        e.do(f"store i1 false, ptr {any_}")
        for array in (come, absent, expected, held):
            e.do(f"store [16 x i32] zeroinitializer, ptr {array}")
        with e.count("0", e.value(f"lshr i32 {self.padded}, 5")) as warp:
            first = e.value(f"shl i32 {warp}, 5")
            e.module.declare("declare i32 @llvm.smin.i32(i32, i32)")
            end = e.value(f"add i32 {first}, 32")
            end = e.value(f"call i32 @llvm.smin.i32(i32 {end}, i32 {self.threads})")
            e.do(f"store i32 32, ptr {missing}")
            with e.count(first, end) as thread:
                status = self.status(e, self.load(e, "state", thread))
                lives = e.value(f"icmp ult i32 {status}, {Status.DONE}")
                self._add(e, alive, e.value(f"zext i1 {lives} to i32"))
                self._add(e, missing, e.value(f"sext i1 {lives} to i32"))
            with e.count(first, end) as thread:
                status = self.status(e, self.load(e, "state", thread))
                with e.when(e.value(f"icmp eq i32 {status}, {Status.BARRIER}")):
                    e.do(f"store i1 true, ptr {any_}")
                    number = e.value(f"and i32 {self.load(e, 'key', thread)}, 15")
                    count = self.load(e, "count", thread)
                    e.do(f"store i32 {count}, ptr {self._cell(e, expected, number)}")
                    self._add(e, self._cell(e, come, number), "1")
                    lacking = e.value(f"load i32, ptr {missing}")
                    self._add(e, self._cell(e, absent, number), lacking)
                    e.do(f"store i32 0, ptr {missing}")
                    offered = e.value(f"and i32 {self.load(e, 'xa', thread)}, 1")
                    self._add(e, self._cell(e, held, number), offered)
        with e.when(e.value(f"load i1, ptr {any_}")), e.count("0", "16") as number:
            here = e.value(f"load i32, ptr {self._cell(e, come, number)}")
            want = e.value(f"load i32, ptr {self._cell(e, expected, number)}")
            arrived = self._cell(e, self.header(e, "arrived"), number)
            living = e.value(f"load i32, ptr {alive}")
            before = e.value(f"load i32, ptr {arrived}")
            total = e.value(f"add i32 {here}, {before}")
            lacking = e.value(f"load i32, ptr {self._cell(e, absent, number)}")
            warps = e.value(f"add i32 {total}, {lacking}")
            all_ = e.value(f"icmp sge i32 {total}, {living}")
            enough = e.value(f"icmp sge i32 {warps}, {want}")
            whole = e.value(f"icmp eq i32 {want}, 0")
            opens = e.value(f"select i1 {whole}, i1 {all_}, i1 {enough}")
            some = e.value(f"icmp ne i32 {here}, 0")
            with e.when(e.value(f"and i1 {opens}, {some}")):
                e.do(f"store i32 0, ptr {arrived}")
                ones = e.value(f"load i32, ptr {self._cell(e, held, number)}")
                self._release(e, number, ones, here)
        e.end("ret void")
        e.finish()

    def _release(self, e: Emitter, number: str, ones: str, here: str) -> None:
        with e.count("0", self.threads) as thread:
            status = self.status(e, self.load(e, "state", thread))
            waits = e.value(f"icmp eq i32 {status}, {Status.BARRIER}")
            key = e.value(f"and i32 {self.load(e, 'key', thread)}, 15")
            mine = e.value(f"icmp eq i32 {key}, {number}")
            with e.when(e.value(f"and i1 {waits}, {mine}")):
                self.store(e, "result", thread, ones)
                self.store(e, "result_pred", thread, here)
                self._wake(e, thread)

    @staticmethod
    def _cell(e: Emitter, array: str, number: str) -> str:
        return e.value(f"getelementptr i32, ptr {array}, i32 {number}")

    @staticmethod
    def _add(e: Emitter, slot: str, value: str) -> None:
        sofar = e.value(f"load i32, ptr {slot}")
        e.do(f"store i32 {e.value(f'add i32 {sofar}, {value}')}, ptr {slot}")
