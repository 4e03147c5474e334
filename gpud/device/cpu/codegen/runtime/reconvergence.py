"""Divergence and reconvergence: conversion between uniform registers and per-thread copies.

A kernel's ``uniform_table`` (`gpud.device.cpu.codegen.emit.lockstep`) lists the uniform registers
at each block, with the offsets of their per-thread arrays and of their block-wide copies.
"""

from __future__ import annotations

from gpud.device.cpu.codegen.runtime.block_functions import CUT_MASK, BlockFunctions
from gpud.device.cpu.ir.emitter import Emitter

__all__ = ["ReconvergenceFunctions"]


class ReconvergenceFunctions(BlockFunctions):
    """Writes ``@find_row``, ``@broadcast``, ``@diverge`` and ``@reconverge``."""

    def define_reconvergence(self) -> None:
        """Define these functions."""
        self._define_find_row()
        self._define_broadcast()
        self._define_divergence()
        self._define_reconvergence()

    def _define_find_row(self) -> None:
        """Find the row of a block in the kernel's ``uniform_table``; null if it has none."""
        e = self.begin("define internal ptr @find_row(ptr %b, i32 %block)")
        row = e.alloca("ptr", "row")
        e.do(f"store ptr {self.function(e, 'uniform_table')}, ptr {row}")
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
        """Load a word of a row of the table, as i32."""
        return e.value(f"load i32, ptr {e.value(f'getelementptr i32, ptr {row}, i32 {index}')}")

    def _define_broadcast(self) -> None:
        """Copy the uniform registers of a row to every thread's array element."""
        e = self.begin("define internal void @broadcast(ptr %b, i32 %block)")
        row = e.value("call ptr @find_row(ptr %b, i32 %block)")
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
        """(pointer to the array, size, pointer to the uniform copy) of a register of a row."""
        at = e.value(f"add i32 {e.value(f'mul i32 {index}, 3')}, 3")
        triple = e.value(f"getelementptr i32, ptr {row}, i32 {at}")
        array = e.value(f"getelementptr i8, ptr %b, i32 {self.word(e, triple, 0)}")
        common = e.value(f"getelementptr i8, ptr %b, i32 {self.word(e, triple, 2)}")
        return array, self.word(e, triple, 1), common

    def _define_divergence(self) -> None:
        """Leave lockstep: give each thread a state, and copies of the uniform registers."""
        e = self.begin("define internal void @diverge(ptr %b)")
        by_vote = e.value(f"load i32, ptr {self.header(e, 'by_vote')}")
        words = [
            e.value(f"load i32, ptr {self.header(e, name)}")
            for name in ("taken_state", "fallthrough_state")
        ]
        for word in words:
            block = e.value(f"and i32 {word}, {CUT_MASK}")
            e.do(f"call void @broadcast(ptr %b, i32 {block})")
        with e.count("0", self.threads) as thread:
            vote = e.value(f"icmp ne i32 {self.load(e, 'key', thread)}, 0")
            alike = e.value(f"icmp eq i32 {by_vote}, 0")
            took = e.value(f"or i1 {vote}, {alike}")
            word = e.value(f"select i1 {took}, i32 {words[0]}, i32 {words[1]}")
            self.store(e, "state", thread, word)
        e.end("ret void")
        e.finish()

    def _define_reconvergence(self) -> None:
        """Return whether the threads can go on in lockstep; then ``lockstep_block`` says where.

        They can if all are at the same block, it allows that, and they agree on its uniform
        registers.
        """
        e = self.begin("define internal i1 @reconverge(ptr %b)")
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
        found = e.value(f"call ptr @find_row(ptr %b, i32 {first})")
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
        e.do(f"store i32 {first}, ptr {self.header(e, 'lockstep_block')}")
        e.end("ret i1 true")
        e.place(no)
        e.end("ret i1 false")
        e.finish()

    @staticmethod
    def _differ(e: Emitter, slot: str, change: str) -> None:
        sofar = e.value(f"load i64, ptr {slot}")
        e.do(f"store i64 {e.value(f'or i64 {sofar}, {change}')}, ptr {slot}")
