"""An interpreter of structured kernels, with a mask of active threads: the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.property.structured_kernels import DEPTH, LOCALS, Expr, Kernel, Statement

Words = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]


class Machine:
    """One block of a kernel, interpreted; ``out`` and ``own`` are its threads' parts of memory.

    Args:
        kernel: what to run.
        number: of the block.
        n: the kernel's last argument.
        data: 64 words that it reads.
        own: one word for each thread, changed in place.
    """

    def __init__(self, kernel: Kernel, number: int, n: int, data: Words, own: Words) -> None:
        threads = self.threads = kernel.threads
        self.functions = kernel.functions
        self.data, self.own = data, own
        self.number = number
        self.tid = np.arange(threads, dtype=np.uint32)
        same = np.ones(threads, np.uint32)
        self.registers = {
            "v": [self.tid.copy(), self.tid * np.uint32(40503), same * np.uint32(7),
                  self.tid + np.uint32(number)],
            "u": [same * np.uint32(n), same * np.uint32(number)],
            "i": [same * np.uint32(0) for _ in range(DEPTH)],
        }  # fmt: skip
        self.alive: Mask = np.ones(threads, np.bool_)
        self.broken: Mask = np.zeros(threads, np.bool_)
        self.shared = np.zeros(threads, np.uint32)
        self.cell, self.counter = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
        self.local = np.tile(np.arange(LOCALS, dtype=np.uint32), (threads, 1))
        self.run(kernel.body, self.alive.copy())

    def results(self, before: Words) -> Words:
        """What the block's threads leave in ``out``, (threads, KEPT), if it held ``before``."""
        out = before.copy()
        kept = [*self.registers["v"], *self.registers["u"]]
        for n, values in enumerate(kept):
            out[self.alive, n] = values[self.alive]
        return out

    def run(self, body: list[Statement], active: Mask) -> None:
        for statement in body:
            live = active & self.alive & ~self.broken
            if live.any():
                getattr(self, f"_{statement.kind}")(statement, live)

    # -- expressions

    def value(self, expr: Expr) -> Words:
        kind = expr[0]
        if kind in self.registers:
            return self.registers[kind][expr[1]]
        if kind in ("c", "ctaid", "tid"):
            if kind == "tid":
                return self.tid
            number = expr[1] if kind == "c" else self.number
            return np.full(self.threads, number, np.uint32)
        a = self.value(expr[1])
        b = np.uint32(expr[2]) if isinstance(expr[2], int) else self.value(expr[2])
        if kind == "sel":
            return np.where(a, b, self.value(expr[3]))
        if kind in ("maxs", "shrs"):
            signed = np.maximum if kind == "maxs" else np.right_shift
            return np.asarray(signed(a.view(np.int32), b.view(np.int32))).view(np.uint32)
        if kind == "mulhi":
            return (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)
        functions: dict[str, Any] = {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and,
            "or": np.bitwise_or, "xor": np.bitwise_xor, "min": np.minimum, "max": np.maximum,
            "shl": np.left_shift, "shr": np.right_shift, "rem": np.remainder,
            "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
            "gt": np.greater, "ge": np.greater_equal,
        }  # fmt: skip
        result: Words = functions[kind](a, b)
        return result

    def assign(self, target: Expr, values: Words, live: Mask) -> None:
        self.registers[target[0]][target[1]] = np.where(live, values, self.value(target))

    # -- statements

    def _set(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], self.value(s.operands[1]), live)

    _setu = _set

    def _if(self, s: Statement, live: Mask) -> None:
        held = self.value(s.operands[0]).astype(np.bool_)
        self.run(s.body, live & held)
        self.run(s.other, live & ~held)

    def _switch(self, s: Statement, live: Mask) -> None:
        chosen = self.value(s.operands[0]).copy()
        for number, arm in enumerate(s.arms):
            self.run(arm, live & (chosen == number))

    def _group(self, s: Statement, live: Mask) -> None:
        self.run(s.body, live & self.value(s.operands[0]).astype(np.bool_))

    def _call(self, s: Statement, live: Mask) -> None:
        target, first, second, equal, number = s.operands
        zero = np.zeros(self.threads, np.uint32)
        own = {
            "v": [self.value(first).copy(), self.value(second).copy(), self.tid.copy(), zero],
            "u": [self.value(equal).copy(), np.full(self.threads, self.number, np.uint32)],
            "i": [zero] * DEPTH,
        }
        callers = self.registers, self.alive, self.broken
        self.registers, self.alive, self.broken = own, live.copy(), np.zeros_like(live)
        self.run(self.functions[number].body, live)
        self.registers, self.alive, self.broken = callers
        self.assign(target, own["v"][0], live)

    def _loop(self, s: Statement, live: Mask) -> None:
        count, depth, _ = s.operands
        bound = self.value(count).copy()
        outer, self.broken = self.broken, np.zeros(self.threads, np.bool_)
        self.assign(("i", depth), np.zeros(self.threads, np.uint32), live)
        while True:
            live = live & self.alive & ~self.broken & (self.registers["i"][depth] < bound)
            if not live.any():
                break
            self.run(s.body, live)
            live = live & self.alive & ~self.broken
            self.assign(("i", depth), self.registers["i"][depth] + np.uint32(1), live)
        self.broken = outer

    def _break(self, s: Statement, live: Mask) -> None:
        self.broken = self.broken | (live & self.value(s.operands[0]).astype(np.bool_))

    def _return(self, s: Statement, live: Mask) -> None:
        self.alive &= ~(live & self.value(s.operands[0]).astype(np.bool_))

    def _gather(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], self.data[self.value(s.operands[1]) & 63], live)

    _loadu = _gather

    def _walk(self, s: Statement, live: Mask) -> None:
        target, start, count = s.operands
        at, left = self.value(start) & 31, self.value(count).copy()
        total = self.value(target).copy()
        for step in range(int(left[live].max())):
            total += np.where(step < left, self.data[(at + step) & 63], np.uint32(0))
        self.assign(target, total, live)

    def _local(self, s: Statement, live: Mask) -> None:
        target, where, what = s.operands
        rows = np.flatnonzero(live)
        self.local[rows, (self.value(where) & 3)[rows]] = self.value(what)[rows]
        self.assign(target, self.local[np.arange(self.threads), self.value(target) & 3], live)

    def _own(self, s: Statement, live: Mask) -> None:
        target, expr, how = s.operands
        old, new = self.own.copy(), self.value(expr).copy()
        new = {"add": old + new, "max": np.maximum(old, new)}.get(how, new)
        self.own[live] = new[live]
        self.assign(target, self.value(target) + old, live)

    def _add(self, s: Statement, live: Mask) -> None:
        self.counter += self.value(s.operands[0])[live].sum(dtype=np.uint32)

    def _barrier(self, _: Statement, __: Mask) -> None:
        pass

    def _exchange(self, s: Statement, live: Mask) -> None:
        target, shift = s.operands
        self.shared[live] = self.value(target)[live]
        self.assign(target, self.shared[(self.tid + shift) % self.threads], live)

    def _broadcast(self, s: Statement, live: Mask) -> None:
        target, expr, writer = s.operands
        if writer < self.threads and live[writer]:
            self.cell[0] = self.value(expr)[writer]
        self.assign(target, np.full(self.threads, self.cell[0], np.uint32), live)

    def _counter(self, s: Statement, live: Mask) -> None:
        self.assign(s.operands[0], np.full(self.threads, self.counter[0], np.uint32), live)

    def _count(self, s: Statement, live: Mask) -> None:
        held = np.count_nonzero(self.value(s.operands[1]).astype(np.bool_) & live)
        self.assign(s.operands[0], np.full(self.threads, held, np.uint32), live)

    def _shuffle(self, s: Statement, live: Mask) -> None:
        target, mode, by, _ = s.operands
        lane = self.tid.astype(np.int64) & 31
        source = {"bfly": lane ^ by, "up": lane - by, "down": lane + by, "idx": lane * 0 + by}[mode]
        thread = (self.tid.astype(np.int64) & ~31) + source
        thread = np.where((source >= 0) & (source < 32), thread, self.tid)
        exists = thread < self.threads
        thread = np.where(exists, thread, self.tid)
        value = self.value(target)
        self.assign(target, np.where(exists & live[thread], value[thread], 0), live)

    def _ballot(self, s: Statement, live: Mask) -> None:
        held = self.value(s.operands[1]).astype(np.bool_) & live
        bits = np.zeros(-(-self.threads // 32), np.uint32)
        np.bitwise_or.at(bits, self.tid >> 5, np.where(held, np.uint32(1) << (self.tid & 31), 0))
        self.assign(s.operands[0], bits[self.tid >> 5], live)
