"""An iteration of a workload, with its temporary memory."""

from __future__ import annotations

import weakref
from typing import Any, TypeVar

import numpy as np

from gpud.errors import OutOfMemory
from gpud.wire import messages as wm
from gpud_client.arrays import ArrayBase
from gpud_client.connection.pending import Notification, Operation, Request
from gpud_client.workloads.array_maker import ArrayMaker, nbytes
from gpud_client.workloads.memory import MemoryRange

__all__ = ["TurnBase"]

_OVER = (
    "the array was temporary, and its iteration has ended: make it anew in each iteration, or keep "
    "it with the workload's own empty(), zeros() or array()"
)

ArrayT = TypeVar("ArrayT", bound=ArrayBase)


class TurnBase(ArrayMaker[ArrayT]):
    """An iteration of a workload, with its temporary memory; see `WorkloadBase.iteration`.

    Attributes:
        number: Of the iteration, from 0.
        new: Whether a turn began with it: others may have had the device since the last one.
    """

    def __init__(self, workload: Any, last: bool) -> None:
        self._workload = workload
        self._channel = workload._channel
        self._last = last
        self._entered = False
        self._open = False
        self._arrays: weakref.WeakSet[ArrayT] = weakref.WeakSet()
        self._range: MemoryRange
        self.number = -1
        self.new = False

    @property
    def workload(self) -> Any:
        """Whose iteration this is."""
        return self._workload

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operation[ArrayT]:
        if not self._open:
            raise ValueError("the iteration has ended, or not begun: make arrays within it")
        yield from ()  # an operation, as that of persistent memory
        size = nbytes(shape, dtype)
        address = self._range.take(size)
        if address is None:
            free = self._range.size - self._range.used
            raise OutOfMemory(size, free, limit="temporary")
        array: ArrayT = self._make(self._range, address, shape, dtype)
        self._arrays.add(array)
        return array

    def _enter(self) -> Operation[None]:
        if self._entered:
            raise ValueError("an iteration is entered once: ask the workload for the next one")
        self._entered = True
        workload = self._workload
        workload._claim(self)
        try:
            if workload._go_on():
                # The memory of the last iteration is used again: nothing may run in it.
                jobs = workload._jobs()
                if jobs:
                    yield jobs
            else:
                number = workload._number
                answer = yield Request(
                    lambda request: wm.BeginIteration(request, number),
                    undo=lambda _: workload._notify(wm.EndIteration(number)),
                )
                self.new = workload._granted(answer.value)
        except BaseException:
            workload._end_iteration(begun=False)
            raise
        self.number = workload._iterations
        workload._iterations += 1
        self._range = workload._new_range()
        workload._resume()
        self._open = True
        dirty = workload._to_clear(new=self.new)
        if dirty:
            whole: ArrayT = yield from self._allocate((dirty,), np.dtype(np.uint8))
            yield from whole._put(np.zeros(dirty, np.uint8))
            del whole
            self._range.peak = 0

    def _leave(self, error: BaseException | None) -> Operation[None]:
        yield from self._end()

    def _end(self) -> Operation[None]:
        workload = self._workload
        if not self._open:
            return
        in_lanes = workload._launches()
        if in_lanes:
            yield in_lanes  # of which the daemon, which waits for jobs, knows nothing
        self._open = False
        workload._used_bytes = max(workload._used_bytes, self._range.peak)
        for array in list(self._arrays):
            array._withdraw(_OVER)
        workload._suspend()
        ended = workload._end_iteration(begun=True)
        if not workload.closed:
            if ended is not None:
                yield Notification(ended)
            if workload._learns is not None and not self._last:
                yield Notification(workload._fitted(self._range))
        if self._last:
            yield from workload._end()
