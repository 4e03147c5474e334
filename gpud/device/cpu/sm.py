"""A virtual SM: one OS thread that takes turns between its resident blocks, outside the GIL.

Problem: blocks must run at native speed and at the same time as Python, and blocks that wait for
each other must all make progress on one OS thread.

Approach: the SM loop is generated code too (`_define_loop`). Each turn steps one resident block
until it is done, gives way or fails. A block that is done is replaced by the next block of the same
launch at once, without Python. The loop returns to Python only for what Python must decide: a
launch has no further block for a slot, a block failed, or somebody rang the doorbell.

Terms: a *slot* is room for one resident block; the *doorbell* is a word that any thread may set to
make the loop return at the next turn; a *turn* ends when a block finishes a task block or a few
barriers, or when all its threads poll.

Properties:
* a block stays in its slot until it is done: started blocks are never evicted;
* with nothing to run the OS thread sleeps; with only polling blocks it yields the CPU every round.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpud.device.cpu import jit
from gpud.device.cpu.codegen.driver import DONE, FAILED, YIELDED, define_driver
from gpud.device.cpu.codegen.emitter import Emitter, IRModule
from gpud.device.cpu.codegen.layout import HEADER, Fresh

if TYPE_CHECKING:
    from gpud.device.cpu.launch import Launch

__all__ = ["LAUNCH_WORDS", "MAX_SLOTS", "Resident", "VirtualSM"]

MAX_SLOTS = 64
"""Slots of one SM; no real SM holds more than 32 blocks."""

_DOORBELL, _COUNT, _BLOCKS = 0, 4, 64
_SM_BYTES = _BLOCKS + 8 * MAX_SLOTS

LAUNCH_WORDS = {"next": 0, "total": 4, "x": 8, "y": 12, "stop": 16}
"""Byte offsets in the record that the slots of a launch share: the next raw block, how many there
are, the raw grid's x and y, and whether no further block may start."""

_RANG = -1


class Resident:
    """A slot's block: its memory and what it runs.

    ``memory`` holds header, arrays, local and shared memory; ``address`` is where the header is.
    """

    def __init__(self, launch: Launch, memory: npt.NDArray[np.uint8], address: int) -> None:
        self.launch = launch
        self.memory = memory
        self.address = address


class VirtualSM:
    """One OS thread and the blocks that reside on it.

    Args:
        index: its number, what ``%smid`` reads.
        finished: called on the SM's thread with a resident whose launch has nothing more for it.
        failed: called likewise with one whose block failed.
    """

    def __init__(
        self,
        index: int,
        finished: Callable[[VirtualSM, Resident], None],
        failed: Callable[[VirtualSM, Resident], None],
    ) -> None:
        self.index = index
        self.threads_used = 0
        self.blocks_used = 0
        self.shared_used = 0
        self._finished = finished
        self._failed = failed
        self._words = np.zeros(_SM_BYTES, np.uint8)
        self._doorbell = self._words[_DOORBELL : _DOORBELL + 4].view(np.uint32)
        self._slots: list[Resident] = []
        self._inbox: deque[Resident] = deque()
        self._condition = threading.Condition()
        self._closing = False
        # Compiled here, not on the SM's own thread: LLVM must not be at work when Python ends.
        self._loop = _loop()
        self._thread = threading.Thread(target=self._run, name=f"sm{index}", daemon=True)
        self._thread.start()

    def add(self, resident: Resident) -> None:
        """Give the SM another block; it begins at the next turn."""
        with self._condition:
            self._inbox.append(resident)
            self._doorbell[0] = 1
            self._condition.notify()

    def close(self) -> None:
        """End the thread after the current turn; blocks that still run are dropped."""
        with self._condition:
            self._closing = True
            self._doorbell[0] = 1
            self._condition.notify()
        if self._thread is not threading.current_thread():
            # A kernel that never gives way cannot be stopped from outside.
            self._thread.join(timeout=5)

    # -- the SM's own thread

    def _run(self) -> None:
        loop = self._loop
        address = self._words.ctypes.data
        while True:
            with self._condition:
                while not (self._inbox or self._slots or self._closing):
                    self._condition.wait()
                if self._closing:
                    return
                self._doorbell[0] = 0
                self._slots.extend(self._inbox)
                self._inbox.clear()
                self._publish()
            event = loop(address)
            if event == _RANG:
                continue
            resident = self._slots.pop(event & 0xFF)
            tell = self._failed if event >> 8 == FAILED else self._finished
            try:
                tell(self, resident)
            except Exception:  # noqa: BLE001 - whatever a caller's code raises
                # A caller's callback raised: report it, and keep the SM for the others.
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))

    def _publish(self) -> None:
        count = len(self._slots)
        self._words[_COUNT : _COUNT + 4].view(np.uint32)[0] = count
        blocks = self._words[_BLOCKS:].view(np.uint64)
        for index, resident in enumerate(self._slots):
            blocks[index] = resident.address


# -- the loop in native code -------------------------------------------------------------------


@cache
def _loop() -> Callable[[int], int]:
    ir = IRModule()
    define_driver(ir)
    _define_loop(ir)
    code = jit.assemble(ir.text(), ("sm_loop",))
    function: Callable[[int], int] = code.function(
        "sm_loop", ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
    )
    _keep.append(code)
    return function


_keep: list[jit.NativeCode] = []


def _define_loop(ir: IRModule) -> None:
    ir.declare("sched_yield", "declare i32 @sched_yield()")
    ir.metadata("!0", "!0 = !{}")
    e = Emitter(ir, "define i32 @sm_loop(ptr %sm)")
    busy = e.alloca("i1", "busy")
    at = e.alloca("i32", "at")
    e.do(f"store i32 0, ptr {at}")
    e.do(f"store i1 false, ptr {busy}")
    count = e.value(f"load i32, ptr {e.value(f'getelementptr i8, ptr %sm, i64 {_COUNT}')}")
    with e.loop() as (again, _):
        bell = e.value("load atomic i32, ptr %sm acquire, align 4")
        with e.when(e.value(f"icmp ne i32 {bell}, 0")):
            e.end(f"ret i32 {_RANG}")
        index = e.value(f"load i32, ptr {at}")
        with e.when(e.value(f"icmp sge i32 {index}, {count}")):
            # A whole round: with nothing but polling blocks, let other OS threads run.
            was_busy = e.value(f"load i1, ptr {busy}")
            with e.when(e.value(f"xor i1 {was_busy}, true")):
                e.do("call i32 @sched_yield()")
            e.do(f"store i1 false, ptr {busy}")
            e.do(f"store i32 0, ptr {at}")
            e.jump(again)
        e.do(f"store i32 {e.value(f'add i32 {index}, 1')}, ptr {at}")
        block = _slot(e, _BLOCKS, index)
        fresh = e.value(f"getelementptr i8, ptr {block}, i64 {HEADER['fresh'][0]}")
        unclaimed = e.value(f"icmp eq i32 {e.value(f'load i32, ptr {fresh}')}, {Fresh.COORDINATES}")
        claim, run = e.label("claim"), e.label("run")
        e.branch(unclaimed, claim, run)
        e.place(run)
        result = e.value(f"call i32 @step(ptr {block})")
        polls, failed = e.label("polls"), e.label("failed")
        turn = e.label("turn")
        e.end(
            f"switch i32 {result}, label %{turn} [i32 {YIELDED}, label %{polls} "
            f"i32 {DONE}, label %{claim} i32 {FAILED}, label %{failed}]"
        )
        e.place(polls)
        e.jump(again)
        e.place(turn)
        e.do(f"store i1 true, ptr {busy}")
        e.jump(again)
        e.place(failed)
        e.end(f"ret i32 {e.value(f'or i32 {index}, {FAILED << 8}')}")
        e.place(claim)
        e.do(f"store i1 true, ptr {busy}")
        _claim(e, block, fresh, index)
    e.end("unreachable")
    e.finish()


def _slot(e: Emitter, offset: int, index: str) -> str:
    array = e.value(f"getelementptr i8, ptr %sm, i64 {offset}")
    return e.value(f"load ptr, ptr {e.value(f'getelementptr ptr, ptr {array}, i32 {index}')}")


def _claim(e: Emitter, block: str, fresh: str, index: str) -> None:
    """The next raw block of the launch for a slot whose block is done, or back to Python."""
    field = e.value(f"getelementptr i8, ptr {block}, i64 {HEADER['launch'][0]}")
    launch = e.value(f"load ptr, ptr {field}")

    def word(name: str) -> str:
        return e.value(f"getelementptr i8, ptr {launch}, i64 {LAUNCH_WORDS[name]}")

    finished, more = e.label("finished"), e.label("more")
    stop = e.value(f"load atomic i32, ptr {word('stop')} monotonic, align 4")
    go_on = e.label("go_on")
    e.branch(e.value(f"icmp eq i32 {stop}, 0"), go_on, finished)
    e.place(go_on)
    number = e.value(f"atomicrmw add ptr {word('next')}, i32 1 monotonic")
    total = e.value(f"load i32, ptr {word('total')}")
    e.branch(e.value(f"icmp ult i32 {number}, {total}"), more, finished)
    e.place(finished)
    e.end(f"ret i32 {e.value(f'or i32 {index}, {DONE << 8}')}")
    e.place(more)
    width = e.value(f"load i32, ptr {word('x')}")
    # A grid of one row needs no division, and divisions take longer than the rest of this.
    row, rows_, placed = e.label("row"), e.label("rows"), e.label("placed")
    e.branch(e.value(f"icmp ult i32 {number}, {width}"), row, rows_)
    e.place(row)
    e.jump(placed)
    e.place(rows_)
    height = e.value(f"load i32, ptr {word('y')}")
    rest = e.value(f"urem i32 {number}, {width}")
    rows = e.value(f"udiv i32 {number}, {width}")
    lower = e.value(f"urem i32 {rows}, {height}")
    upper = e.value(f"udiv i32 {rows}, {height}")
    e.jump(placed)
    e.place(placed)
    x = e.value(f"phi i32 [ {number}, %{row} ], [ {rest}, %{rows_} ]")
    y = e.value(f"phi i32 [ 0, %{row} ], [ {lower}, %{rows_} ]")
    z = e.value(f"phi i32 [ 0, %{row} ], [ {upper}, %{rows_} ]")
    for axis, value in (("x", x), ("y", y), ("z", z)):
        target = e.value(f"getelementptr i8, ptr {block}, i64 {HEADER[f'ctaid_{axis}'][0]}")
        e.do(f"store i32 {value}, ptr {target}")
    e.do(f"store i32 {Fresh.STATES}, ptr {fresh}")
