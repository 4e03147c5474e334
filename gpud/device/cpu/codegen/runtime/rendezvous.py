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
        emitter = self.begin("define internal void @complete_collectives(ptr %b)")
        exchange = self.function(emitter, "exchange")
        warps = emitter.value(f"lshr i32 {self.padded}, 5")
        emitter.module.declare("declare i32 @llvm.cttz.i32(i32, i1)")
        todo = emitter.alloca("i32", "todo")
        waiting = emitter.alloca("i32", "waiting")
        alive = emitter.alloca("i32", "alive")
        group = emitter.alloca("i32", "group")
        with emitter.count("0", warps) as warp:
            first = emitter.value(f"mul i32 {warp}, 32")
            emitter.do(f"store i32 0, ptr {waiting}")
            emitter.do(f"store i32 0, ptr {alive}")
            with emitter.count("0", "32") as lane:
                thread = emitter.value(f"add i32 {first}, {lane}")
                with emitter.when(emitter.value(f"icmp slt i32 {thread}, {self.threads}")):
                    status = self.status(emitter, self.load(emitter, "state", thread))
                    bit = emitter.value(f"shl i32 1, {lane}")
                    self._or_if(emitter, waiting, bit, f"icmp eq i32 {status}, {Status.COLLECTIVE}")
                    self._or_if(emitter, alive, bit, f"icmp ult i32 {status}, {Status.DONE}")
            emitter.do(f"store i32 {emitter.value(f'load i32, ptr {waiting}')}, ptr {todo}")
            with emitter.loop() as (again, out):
                left = emitter.value(f"load i32, ptr {todo}")
                body = emitter.label("offer")
                emitter.branch(emitter.value(f"icmp ne i32 {left}, 0"), body, out)
                emitter.place(body)
                lane = emitter.value(f"call i32 @llvm.cttz.i32(i32 {left}, i1 true)")
                thread = emitter.value(f"add i32 {first}, {lane}")
                key = self.load(emitter, "key", thread)
                mask = self.load(emitter, "mask", thread)
                state = self.load(emitter, "state", thread)
                alone = emitter.value(f"icmp eq i32 {mask}, 0")
                emitter.do(f"store i32 {emitter.value(f'shl i32 1, {lane}')}, ptr {group}")
                with emitter.count("0", "32") as other_lane:
                    bit = emitter.value(f"shl i32 1, {other_lane}")
                    come = emitter.value(f"load i32, ptr {waiting}")
                    come = emitter.value(
                        f"icmp ne i32 {emitter.value(f'and i32 {come}, {bit}')}, 0"
                    )
                    with emitter.when(come):
                        other = emitter.value(f"add i32 {first}, {other_lane}")
                        same = self._equal(emitter, "key", other, key)
                        same = emitter.value(
                            f"and i1 {same}, {self._equal(emitter, 'mask', other, mask)}"
                        )
                        here = self._equal(emitter, "state", other, state)
                        here = emitter.value(
                            f"or i1 {here}, {emitter.value(f'xor i1 {alone}, true')}"
                        )
                        named = emitter.value(
                            f"icmp ne i32 {emitter.value(f'and i32 {mask}, {bit}')}, 0"
                        )
                        named = emitter.value(f"or i1 {named}, {alone}")
                        same = emitter.value(f"and i1 {same}, {here}")
                        self._or_if(emitter, group, bit, f"and i1 {same}, {named}")
                members = emitter.value(f"load i32, ptr {group}")
                rest = emitter.value(f"and i32 {left}, {emitter.value(f'xor i32 {members}, -1')}")
                emitter.do(f"store i32 {rest}, ptr {todo}")
                need = emitter.value(f"and i32 {mask}, {emitter.value(f'load i32, ptr {alive}')}")
                missing = emitter.value(
                    f"and i32 {need}, {emitter.value(f'xor i32 {members}, -1')}"
                )
                complete = emitter.label("complete")
                emitter.branch(emitter.value(f"icmp eq i32 {missing}, 0"), complete, again)
                emitter.place(complete)
                emitter.do(f"call void {exchange}(ptr %b, i32 {first}, i32 {members}, i32 {key})")
                with emitter.count("0", "32") as other_lane:
                    bit = emitter.value(f"shl i32 1, {other_lane}")
                    member = emitter.value(
                        f"icmp ne i32 {emitter.value(f'and i32 {members}, {bit}')}, 0"
                    )
                    with emitter.when(member):
                        other = emitter.value(f"add i32 {first}, {other_lane}")
                        self._wake(emitter, other)
                emitter.jump(again)
        emitter.end("ret void")
        emitter.finish()

    def _equal(self, emitter: Emitter, name: str, thread: str, value: str) -> str:
        return emitter.value(f"icmp eq i32 {self.load(emitter, name, thread)}, {value}")

    def _or_if(self, emitter: Emitter, slot: str, bit: str, condition: str) -> None:
        add = emitter.value(f"select i1 {emitter.value(condition)}, i32 {bit}, i32 0")
        sofar = emitter.value(f"load i32, ptr {slot}")
        emitter.do(f"store i32 {emitter.value(f'or i32 {sofar}, {add}')}, ptr {slot}")

    def _wake(self, emitter: Emitter, thread: str) -> None:
        state = self.load(emitter, "state", thread)
        self.store(emitter, "state", thread, emitter.value(f"and i32 {state}, {CUT_MASK}"))

    # -- barriers

    def _define_open_barriers(self) -> None:
        """Release every barrier at which all expected threads have arrived."""
        emitter = self.begin("define internal void @open_barriers(ptr %b)")
        come = emitter.alloca("[16 x i32]", "come")
        absent = emitter.alloca("[16 x i32]", "absent")
        expected = emitter.alloca("[16 x i32]", "expected")
        held = emitter.alloca("[16 x i32]", "held")
        alive = emitter.alloca("i32", "alive")
        missing = emitter.alloca("i32", "missing")
        any_ = emitter.alloca("i1", "any")
        emitter.do(f"store i32 0, ptr {alive}")
        emitter.do(f"store i1 false, ptr {any_}")
        for array in (come, absent, expected, held):
            emitter.do(f"store [16 x i32] zeroinitializer, ptr {array}")
        with emitter.count("0", emitter.value(f"lshr i32 {self.padded}, 5")) as warp:
            first = emitter.value(f"shl i32 {warp}, 5")
            emitter.module.declare("declare i32 @llvm.smin.i32(i32, i32)")
            end = emitter.value(f"add i32 {first}, 32")
            end = emitter.value(f"call i32 @llvm.smin.i32(i32 {end}, i32 {self.threads})")
            emitter.do(f"store i32 32, ptr {missing}")
            with emitter.count(first, end) as thread:
                status = self.status(emitter, self.load(emitter, "state", thread))
                lives = emitter.value(f"icmp ult i32 {status}, {Status.DONE}")
                self._add(emitter, alive, emitter.value(f"zext i1 {lives} to i32"))
                self._add(emitter, missing, emitter.value(f"sext i1 {lives} to i32"))
            with emitter.count(first, end) as thread:
                status = self.status(emitter, self.load(emitter, "state", thread))
                with emitter.when(emitter.value(f"icmp eq i32 {status}, {Status.BARRIER}")):
                    emitter.do(f"store i1 true, ptr {any_}")
                    number = emitter.value(f"and i32 {self.load(emitter, 'key', thread)}, 15")
                    count = self.load(emitter, "count", thread)
                    emitter.do(f"store i32 {count}, ptr {self._cell(emitter, expected, number)}")
                    self._add(emitter, self._cell(emitter, come, number), "1")
                    lacking = emitter.value(f"load i32, ptr {missing}")
                    self._add(emitter, self._cell(emitter, absent, number), lacking)
                    emitter.do(f"store i32 0, ptr {missing}")
                    offered = emitter.value(f"and i32 {self.load(emitter, 'xa', thread)}, 1")
                    self._add(emitter, self._cell(emitter, held, number), offered)
        with (
            emitter.when(emitter.value(f"load i1, ptr {any_}")),
            emitter.count("0", "16") as number,
        ):
            here = emitter.value(f"load i32, ptr {self._cell(emitter, come, number)}")
            want = emitter.value(f"load i32, ptr {self._cell(emitter, expected, number)}")
            arrived = self._cell(emitter, self.header(emitter, "arrived"), number)
            living = emitter.value(f"load i32, ptr {alive}")
            before = emitter.value(f"load i32, ptr {arrived}")
            total = emitter.value(f"add i32 {here}, {before}")
            lacking = emitter.value(f"load i32, ptr {self._cell(emitter, absent, number)}")
            warps = emitter.value(f"add i32 {total}, {lacking}")
            all_ = emitter.value(f"icmp sge i32 {total}, {living}")
            enough = emitter.value(f"icmp sge i32 {warps}, {want}")
            whole = emitter.value(f"icmp eq i32 {want}, 0")
            opens = emitter.value(f"select i1 {whole}, i1 {all_}, i1 {enough}")
            some = emitter.value(f"icmp ne i32 {here}, 0")
            with emitter.when(emitter.value(f"and i1 {opens}, {some}")):
                emitter.do(f"store i32 0, ptr {arrived}")
                ones = emitter.value(f"load i32, ptr {self._cell(emitter, held, number)}")
                self._release(emitter, number, ones, here)
        emitter.end("ret void")
        emitter.finish()

    def _release(self, emitter: Emitter, number: str, ones: str, here: str) -> None:
        with emitter.count("0", self.threads) as thread:
            status = self.status(emitter, self.load(emitter, "state", thread))
            waits = emitter.value(f"icmp eq i32 {status}, {Status.BARRIER}")
            key = emitter.value(f"and i32 {self.load(emitter, 'key', thread)}, 15")
            mine = emitter.value(f"icmp eq i32 {key}, {number}")
            with emitter.when(emitter.value(f"and i1 {waits}, {mine}")):
                self.store(emitter, "result", thread, ones)
                self.store(emitter, "result_pred", thread, here)
                self._wake(emitter, thread)

    @staticmethod
    def _cell(emitter: Emitter, array: str, number: str) -> str:
        return emitter.value(f"getelementptr i32, ptr {array}, i32 {number}")

    @staticmethod
    def _add(emitter: Emitter, slot: str, value: str) -> None:
        sofar = emitter.value(f"load i32, ptr {slot}")
        emitter.do(f"store i32 {emitter.value(f'add i32 {sofar}, {value}')}, ptr {slot}")
