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
        emitter = self.begin("define internal ptr @find_row(ptr %b, i32 %block)")
        row = emitter.alloca("ptr", "row")
        emitter.do(f"store ptr {self.function(emitter, 'uniform_table')}, ptr {row}")
        with emitter.loop() as (_, out):
            here = emitter.value(f"load ptr, ptr {row}")
            number = emitter.value(f"load i32, ptr {here}")
            with emitter.when(emitter.value(f"icmp eq i32 {number}, %block")):
                emitter.end(f"ret ptr {here}")
            onward = emitter.label("onward")
            emitter.branch(emitter.value(f"icmp slt i32 {number}, 0"), out, onward)
            emitter.place(onward)
            count = self.word(emitter, here, 2)
            words = emitter.value(f"add i32 {emitter.value(f'mul i32 {count}, 3')}, 3")
            next_row = emitter.value(f"getelementptr i32, ptr {here}, i32 {words}")
            emitter.do(f"store ptr {next_row}, ptr {row}")
        emitter.end("ret ptr null")
        emitter.finish()

    @staticmethod
    def word(emitter: Emitter, row: str, index: int) -> str:
        """Load a word of a row of the table, as i32."""
        return emitter.value(
            f"load i32, ptr {emitter.value(f'getelementptr i32, ptr {row}, i32 {index}')}"
        )

    def _define_broadcast(self) -> None:
        """Copy the uniform registers of a row to every thread's array element."""
        emitter = self.begin("define internal void @broadcast(ptr %b, i32 %block)")
        row = emitter.value("call ptr @find_row(ptr %b, i32 %block)")
        has_row, done = emitter.label("found"), emitter.label("spread")
        emitter.branch(emitter.value(f"icmp ne ptr {row}, null"), has_row, done)
        emitter.place(has_row)
        with emitter.count("0", self.word(emitter, row, 2)) as index:
            array, size, common = self._entry(emitter, row, index)
            for bits in (8, 16, 32, 64):
                with emitter.when(emitter.value(f"icmp eq i32 {size}, {bits // 8}")):
                    value = emitter.value(f"load i{bits}, ptr {common}")
                    with emitter.count("0", self.threads) as thread:
                        mine = emitter.value(f"getelementptr i{bits}, ptr {array}, i32 {thread}")
                        emitter.do(f"store i{bits} {value}, ptr {mine}")
        emitter.place(done)
        emitter.end("ret void")
        emitter.finish()

    def _entry(self, emitter: Emitter, row: str, index: str) -> tuple[str, str, str]:
        """Return (pointer to the array, size, pointer to the uniform copy) of a row's register."""
        at = emitter.value(f"add i32 {emitter.value(f'mul i32 {index}, 3')}, 3")
        triple = emitter.value(f"getelementptr i32, ptr {row}, i32 {at}")
        array = emitter.value(f"getelementptr i8, ptr %b, i32 {self.word(emitter, triple, 0)}")
        common = emitter.value(f"getelementptr i8, ptr %b, i32 {self.word(emitter, triple, 2)}")
        return array, self.word(emitter, triple, 1), common

    def _define_divergence(self) -> None:
        """Leave lockstep: give each thread a state, and copies of the uniform registers."""
        emitter = self.begin("define internal void @diverge(ptr %b)")
        by_vote = emitter.value(f"load i32, ptr {self.header(emitter, 'by_vote')}")
        words = [
            emitter.value(f"load i32, ptr {self.header(emitter, name)}")
            for name in ("taken_state", "fallthrough_state")
        ]
        for word in words:
            block = emitter.value(f"and i32 {word}, {CUT_MASK}")
            emitter.do(f"call void @broadcast(ptr %b, i32 {block})")
        with emitter.count("0", self.threads) as thread:
            vote = emitter.value(f"icmp ne i32 {self.load(emitter, 'key', thread)}, 0")
            alike = emitter.value(f"icmp eq i32 {by_vote}, 0")
            took = emitter.value(f"or i1 {vote}, {alike}")
            word = emitter.value(f"select i1 {took}, i32 {words[0]}, i32 {words[1]}")
            self.store(emitter, "state", thread, word)
        emitter.end("ret void")
        emitter.finish()

    def _define_reconvergence(self) -> None:
        """Return whether the threads can go on in lockstep; then ``lockstep_block`` says where.

        They can if all are at the same block, it allows that, and they agree on its uniform
        registers.
        """
        emitter = self.begin("define internal i1 @reconverge(ptr %b)")
        no = emitter.label("no")
        differ = emitter.alloca("i64", "differ")
        emitter.do(f"store i64 0, ptr {differ}")
        first = self.load(emitter, "state", "0")
        with emitter.count("0", self.threads) as thread:
            other = emitter.value(f"xor i32 {self.load(emitter, 'state', thread)}, {first}")
            self._differ(emitter, differ, emitter.value(f"zext i32 {other} to i64"))
        row, same = emitter.label("row"), emitter.label("same")
        emitter.branch(
            emitter.value(f"icmp eq i64 {emitter.value(f'load i64, ptr {differ}')}, 0"), row, no
        )
        emitter.place(row)
        pointer = emitter.value(f"call ptr @find_row(ptr %b, i32 {first})")
        known = emitter.label("known")
        emitter.branch(emitter.value(f"icmp ne ptr {pointer}, null"), known, no)
        emitter.place(known)
        may = emitter.value(f"icmp ne i32 {self.word(emitter, pointer, 1)}, 0")
        compare = emitter.label("compare")
        emitter.branch(may, compare, no)
        emitter.place(compare)
        with emitter.count("0", self.word(emitter, pointer, 2)) as index:
            array, size, common = self._entry(emitter, pointer, index)
            for bits in (8, 16, 32, 64):
                with emitter.when(emitter.value(f"icmp eq i32 {size}, {bits // 8}")):
                    value = emitter.value(f"load i{bits}, ptr {array}")
                    emitter.do(f"store i{bits} {value}, ptr {common}")
                    with emitter.count("0", self.threads) as thread:
                        mine = emitter.value(f"getelementptr i{bits}, ptr {array}, i32 {thread}")
                        other = emitter.value(f"load i{bits}, ptr {mine}")
                        change = emitter.value(f"xor i{bits} {value}, {other}")
                        wide = f"zext i{bits} {change} to i64"
                        self._differ(emitter, differ, change if bits == 64 else emitter.value(wide))
        emitter.branch(
            emitter.value(f"icmp eq i64 {emitter.value(f'load i64, ptr {differ}')}, 0"), same, no
        )
        emitter.place(same)
        emitter.do(f"store i32 {first}, ptr {self.header(emitter, 'lockstep_block')}")
        emitter.end("ret i1 true")
        emitter.place(no)
        emitter.end("ret i1 false")
        emitter.finish()

    @staticmethod
    def _differ(emitter: Emitter, slot: str, change: str) -> None:
        sofar = emitter.value(f"load i64, ptr {slot}")
        emitter.do(f"store i64 {emitter.value(f'or i64 {sofar}, {change}')}, ptr {slot}")
