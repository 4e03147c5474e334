"""A workload: its persistent memory, its iterations, and its end."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import numpy as np

from gpud.errors import ConnectionLost, OutOfMemory, UnknownName
from gpud.units import byte_size
from gpud.wire import messages as wm
from gpud_client.arrays import ArrayBase
from gpud_client.connection.faces import operation
from gpud_client.connection.pending import Operation, PendingJob, Request
from gpud_client.connection.protocol_state import ProtocolState
from gpud_client.devices import Device
from gpud_client.displays import Display, Displayed
from gpud_client.workloads.array_maker import ArrayMaker, nbytes
from gpud_client.workloads.memory import MemoryRange
from gpud_client.workloads.turn import TurnBase

__all__ = ["WorkloadBase", "default_offset", "open_workload"]

_OFFSET_BYTES = 100 << 20
_OFFSET_PART = 16  # of a device that is so small that the offset would fill much of it

_CLOSED = "the workload is closed: open another one"
_BETWEEN = (
    "the array is of movable workload {}, and may be in host memory between its iterations: use it "
    "within one"
)

ArrayT = TypeVar("ArrayT", bound=ArrayBase)
TurnT = TypeVar("TurnT", bound=TurnBase[Any])


class WorkloadBase(ArrayMaker[ArrayT], Displayed, Generic[ArrayT, TurnT]):
    """A loop that keeps persistent memory, and has temporary memory in its turns.

    Made by `Session.workload`. Its own `empty`, `zeros` and `array` make persistent arrays, which
    stay at their addresses from iteration to iteration, until the workload is closed; those of an
    iteration make temporary ones, which end with it.
    """

    _turn_class: type[TurnT]

    def __init__(
        self,
        session: Any,
        opened: wm.WorkloadOpened,
        device: Device,
        learns: int | None,
    ) -> None:
        self._workload = self
        self._movable = False
        self._learns = learns  # the offset in bytes; None: its sizes are known
        self._session = session
        self._core: ProtocolState = session._core
        self._channel = session._channel
        self._device = device
        self._number = opened.workload
        self._reason = opened.reason
        self._temporary = opened.temporary, opened.temporary_bytes
        self._range = MemoryRange(
            opened.persistent, opened.persistent_bytes, self._core.jobs.keys()
        )
        self._left_behind = False  # by a session that goes on with another daemon
        self._iterations = 0
        self._current: TurnBase[Any] | None = None
        self._user: object = None
        self._lock = threading.Lock()
        self._standing = False
        self._recalled = False
        self._alone = True
        self._used_bytes = 0  # of the temporary memory, from its beginning, since it was cleared
        self._unreported = 0  # iterations since the last one that the daemon was asked for
        self._left_ns = 0  # when the last one ended
        self._arrays: weakref.WeakSet[ArrayT] = weakref.WeakSet()
        self._closed = False

    @property
    def id(self) -> str:
        """The workload's name in ``gpuctl workloads``, such as ``"w3"``."""
        return f"w{self._number}"

    @property
    def device(self) -> Device:
        """The device that has its memory, on which its kernels run."""
        return self._device

    @property
    def reason(self) -> str:
        """Why the daemon chose this device."""
        return self._reason

    @property
    def persistent(self) -> int:
        """The size of the persistent memory in bytes."""
        return self._range.size

    @property
    def temporary(self) -> int:
        """The size of the temporary memory in bytes."""
        return self._temporary[1]

    @property
    def movable(self) -> bool:
        """Whether what it keeps may be in host memory between its iterations."""
        return self._movable

    @property
    def iterations_begun(self) -> int:
        """How many iterations have begun."""
        return self._iterations

    @property
    def closed(self) -> bool:
        """Whether it was closed, or has ended with its session."""
        return self._closed or self._core.lost is not None or self._left_behind

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"iteration {self._iterations}"
        return f"<{type(self).__name__} {self.id} on device {self._device.index}: {state}>"

    def _display(self) -> Display:
        rows = [
            ("device", f"{self._device.index}: {self._device.name}"),
            ("persistent", f"{self._range.used:,} of {self._range.size:,} bytes"),
            ("temporary", f"{self._temporary[1]:,} bytes"),
            ("iterations", f"{self._iterations}"),
        ]
        return Display(f"{type(self).__name__} {self.id}", rows)

    @operation
    def close(self) -> Operation[None]:
        """End the workload: both kinds of its memory are cleared, its arrays cannot be used.

        Waits for the session's jobs that were submitted before. May be called twice. An iteration
        with ``last=True`` does the same at its end.
        """
        yield from self._leave(None)

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or self.closed:
            return
        self._notify(wm.CloseWorkload(0, self._number))

    # -- steps of operations

    def _leave(self, error: BaseException | None) -> Operation[None]:
        if self._current is not None:
            yield from self._current._end()
        yield from self._end()

    def _end(self) -> Operation[None]:
        if self._closed:
            return
        alive = not self.closed
        self._closed = True
        for array in list(self._arrays):
            array._withdraw("the array was of a workload that is closed")
        if alive:
            number = self._number
            yield Request(lambda request: wm.CloseWorkload(request, number))

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operation[ArrayT]:
        self._check()
        if self._movable and self._current is None:
            raise ValueError(
                f"workload {self.id} is movable: make its arrays within an iteration, such as the "
                "first"
            )
        size = nbytes(shape, dtype)
        address = self._range.take(size)
        if address is None:
            number, wanted = self._number, self._range.missing(size)
            answer = yield Request(lambda request: wm.GrowWorkload(request, number, wanted))
            self._range.grow(int(answer.value))
            address = self._range.take(size)
            if address is None:  # another thread was quicker
                raise OutOfMemory(size, self._range.size - self._range.used, limit="offset")
        array: ArrayT = self._make(self._range, address, shape, dtype)
        self._arrays.add(array)
        return array

    def _check(self) -> None:
        if self._closed:
            raise ValueError(_CLOSED)
        if self._core.lost is not None:
            raise ConnectionLost(f"{self._core.lost}; the workload's memory is gone")
        if self._left_behind:
            raise UnknownName(
                f"workload {self.id} has ended with its daemon, and what it kept is gone: open "
                "another one, and write its arrays again"
            )

    def _suspend(self) -> None:
        """Let the arrays of a movable workload not be used until the next iteration."""
        if self._movable:
            why = _BETWEEN.format(self.id)
            for array in list(self._arrays):
                array._suspend(why)

    def _resume(self) -> None:
        """Let them be used again."""
        if self._movable:
            for array in list(self._arrays):
                array._resume()

    def _claim(self, turn: TurnBase[Any]) -> None:
        """Make ``turn`` the iteration under way.

        Raises:
            ValueError: there is one already, or it would wait for another one of the same caller.
        """
        self._check()
        caller = _caller()
        with self._lock:
            current = self._current
            if current is not None:
                who = "this" if self._user == caller else "another"
                raise ValueError(
                    f"workload {self.id} is in an iteration, of {who} thread or task: leave that "
                    "before the next, and give each thread a workload of its own"
                )
            for other in list(self._core.workloads.values()):
                nested = other._current is not None and other._user == caller
                if nested and other is not self and other.device is self.device:
                    raise ValueError(
                        f"an iteration of {self.id} within one of {other.id} on the same device "
                        "would wait for itself: leave that first"
                    )
            self._current, self._user = turn, caller

    def _lose(self) -> None:
        """End, as the daemon has; what the arrays held is gone with it."""
        self._left_behind = True
        self._standing = False
        turn = self._current
        for array in [*self._arrays, *(() if turn is None else turn._arrays)]:
            array._withdraw(f"the array was of workload {self.id}, which has ended with its daemon")

    # -- a standing turn: until it is recalled, the daemon need not be asked

    def _granted(self, answer: dict[str, bool]) -> bool:
        """Note an iteration that the daemon has granted; returns whether a turn begins."""
        with self._lock:
            self._standing = answer["standing"] and not self._recalled
            self._alone = answer["alone"]
            self._unreported = 1
        return answer["new"]

    def _go_on(self) -> bool:
        """Begin an iteration without asking; returns False if the daemon is to be asked."""
        with self._lock:
            if self._standing:
                self._unreported += 1
            else:
                self._recalled = False
            return self._standing

    def _continues(self) -> bool:
        """Begin the next iteration within the one under way; False: others want the device."""
        with self._lock:
            if self._current is None or self._recalled or not self._standing:
                return False
            self._unreported += 1
            self._iterations += 1
            return True

    def _end_iteration(self, *, begun: bool) -> wm.EndIteration | None:
        """End the iteration under way, which had ``begun``; returns what the daemon is to know."""
        with self._lock:
            self._current = None
            self._left_ns = time.monotonic_ns()
            if self._standing and not begun:
                self._unreported -= 1
            if not self._unreported or (self._standing and not self._recalled):
                return None
            return self._report(0)

    def _recall(self) -> None:
        """Give up the standing turn at the end of the iteration; called when others want it."""
        with self._lock:
            self._recalled = True
            if self._standing and self._current is None:
                self._notify(self._report(time.monotonic_ns() - self._left_ns))

    def _report(self, idle_ns: int) -> wm.EndIteration:
        count, self._unreported = self._unreported, 0
        self._standing = False
        return wm.EndIteration(self._number, count, idle_ns)

    def _jobs(self) -> list[PendingJob]:
        """Return the session's jobs on the device that have not ended."""
        return [job for job in list(self._core.jobs.values()) if job._device is self._device]

    def _launches(self) -> list[PendingJob]:
        """Return the latest launch of each lane on the device, if it has not ended."""
        lanes: list[Any] = list(self._core.lanes.values())
        latest = (lane._latest() for lane in lanes if lane.device is self._device)
        return [launch for launch in latest if launch is not None]

    def _fitted(self, temporary: MemoryRange) -> wm.FitWorkload:
        """End learning: keep what the first iteration has used, and give back the rest."""
        assert self._learns is not None
        offset, self._learns = self._learns, None
        temporary.trim()
        self._range.trim()
        size = temporary.size if temporary.peak else 0
        self._temporary = self._temporary[0], size
        return wm.FitWorkload(self._number, self._range.size, size, offset)

    def _to_clear(self, *, new: bool) -> int:
        """Return how much of its temporary memory an iteration of the same turn has left dirty.

        0 if a turn begins, which the daemon clears; if nobody else has memory on the device; and
        where a program does not see the memory: there it is cleared with the turn only.
        """
        used, self._used_bytes = self._used_bytes, 0
        return 0 if new or self._alone or self._device.arrays != "shared" else used

    def _new_range(self) -> MemoryRange:
        return MemoryRange(*self._temporary, self._core.jobs.keys())

    def _move(self, *, away: bool) -> None:
        """Move what it keeps; the daemon asks only programs that map it themselves."""

    def _zone_lent(self, descriptor: int) -> None:
        """Take the descriptor of memory that the program maps; here there is no use for it."""
        os.close(descriptor)

    def _notify(self, message: Any) -> None:
        self._core.garbage.append(message)
        self._channel.kick()


def open_workload(
    session: Any,
    cls: type[Any],
    device: Device | None,
    sizes: tuple[int | str | None, int | str | None, int | str | None],
    weight: int,
    *,
    mapped: bool = False,
    movable: bool = False,
) -> Operation[Any]:
    """Ask for memory for a workload, and wait until there is room for it.

    ``mapped``: the program maps it itself, see `gpud_client.adapters`.
    """
    persistent, temporary = (
        None if size is None else _size(name, size)
        for name, size in zip(("persistent", "temporary"), sizes, strict=False)
    )
    able = session._devices if device is None else [device]
    offset = default_offset(able) if sizes[2] is None else _size("offset", sizes[2])
    if (persistent is None) != (temporary is None):
        raise ValueError(
            "give both persistent and temporary, or neither: then the first iteration shows them"
        )
    if persistent == 0:
        raise ValueError("persistent is the memory that the workload keeps, 1 byte or more, not 0")
    if isinstance(weight, bool) or not isinstance(weight, int):
        raise TypeError(f"weight is a whole number from 1 to 1000, not {weight!r}")
    if not 1 <= weight <= 1000:
        raise ValueError(f"weight is a whole number from 1 to 1000, not {weight}")
    if movable and persistent is None:
        raise ValueError(
            "a movable workload says what it needs: give persistent and temporary; gpuctl "
            "workloads shows what a run without sizes has learned"
        )
    core: ProtocolState = session._core
    index = None if device is None else device.index
    opened = yield Request(
        lambda request: wm.OpenWorkload(
            request, index, persistent, temporary or 0, offset, weight, mapped, movable
        ),
        undo=lambda opened: core.garbage.append(wm.CloseWorkload(0, opened.workload)),
    )
    learns = offset if persistent is None else None
    workload = cls(session, opened, session._devices[opened.device], learns)
    workload._movable = movable
    core.workloads[opened.workload] = workload
    early = core.moves.pop(opened.workload, None)
    if early is not None:
        workload._move(away=early)
    return workload


def default_offset(devices: Iterable[Device]) -> int:
    """Return the bytes in which persistent memory can grow on the devices that may have it."""
    return min(_OFFSET_BYTES, *(device.memory // _OFFSET_PART for device in devices))


# -- helpers -----------------------------------------------------------------------------------


def _size(what: str, value: int | str) -> int:
    try:
        return byte_size(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{what}: {error}") from None


def _caller() -> object:
    """Return what identifies the thread or, in asyncio, the task."""
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else task
