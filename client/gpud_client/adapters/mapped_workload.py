"""A workload whose program has a context of its own on a GPU, and maps its memory there itself."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from gpud.errors import InvalidArgument
from gpud.wire import messages as wm
from gpud_client.connection.pending import Notification, Operation, Request
from gpud_client.devices import Device
from gpud_client.workloads.faces import BlockingTurn, BlockingWorkload
from gpud_client.workloads.workload import open_workload

__all__ = ["MappedTurn", "MappedWorkload", "gpu_of_daemon", "open_mapped"]

_LONGEST = 1024
"""Of what a program says went wrong, in characters."""

_OWN = "the memory of this workload is mapped by its program: allocate with the program's framework"


class MappedTurn(BlockingTurn[Any]):
    """An iteration; its program has the temporary memory."""

    def _allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Operation[Any]:
        raise InvalidArgument(_OWN)


class MappedWorkload(BlockingWorkload[Any, MappedTurn]):
    """A workload that has no arrays; addresses within its memory are offsets.

    Attributes:
        on_recall: called on another thread when others want the device.
        on_move: called on another thread when what it keeps is to go to the machine's memory
            (True), or to come back (False), of which `moved` is to tell.
    """

    _turn_class = MappedTurn

    def __init__(self, *terms: Any) -> None:
        super().__init__(*terms)
        self.on_recall: Callable[[], None] = lambda: None
        self.on_move: Callable[[bool], None] = lambda away: self.moved(0)  # it keeps nothing yet
        self._socket: int | None = None
        self._granule = 1
        self._kept = 0  # bytes that persist outside of the range
        # What it needs is said by `fit`, not as that of arrays.
        self._offset, self._learns = self._learns, None

    @property
    def learns(self) -> bool:
        """Whether it has all that is left, and is to say what it needs."""
        return self._offset is not None

    def take(self, size: int) -> int:
        """Return the offset of a part of the persistent memory, which grows if it must.

        Raises:
            OutOfMemory: its room to grow is used up.
        """
        self._check()
        offset = self._range.take(size)
        if offset is None:
            self._grow(self._range.missing(size))
            offset = self._range.take(size)
            assert offset is not None
        return offset

    def _grow(self, size: int) -> None:
        """Make the persistent memory ``size`` bytes long or more, in whole granules."""
        number, wanted = self._number, -(-size // self._granule) * self._granule + self._kept
        answer: Any = self._channel.run(
            _asks(Request(lambda request: wm.GrowWorkload(request, number, wanted)))
        )
        self._range.grow(int(answer.value) - self._kept)

    def give_back(self, offset: int, size: int) -> None:
        """Give a part of the persistent memory back."""
        self._range.give_back(offset, size)

    def continues(self) -> bool:
        """Begin the next iteration within the one under way; False: others want the device."""
        return self._continues()

    def enter(self) -> MappedTurn:
        """Wait for the turn and begin an iteration."""
        return self.iteration().__enter__()

    def leave(self, turn: MappedTurn) -> None:
        """End an iteration, and the standing turn with it."""
        with self._lock:
            self._recalled = True
        self._channel.run(turn._end())

    def zone_socket(self) -> int | None:
        """Take the descriptor on which the temporary zone came; None: there is none."""
        descriptor, self._socket = self._socket, None
        return descriptor

    def keep(self, kept: int) -> None:
        """Count bytes that persist outside of the persistent memory's range as part of it.

        Raises:
            OutOfMemory: together they are more than it can have.
        """
        before, self._kept = self._range.size, kept
        self._range.trim(0 if self.learns else max(0, before - kept))
        if self.learns or self._range.size + kept > before:
            self._grow(self._range.size)

    def fit(self, temporary: int) -> None:
        """Say what it needs, where it had all that was left, and give back the rest.

        Args:
            temporary: bytes of temporary memory.
        """
        assert self._offset is not None
        offset, self._offset = self._offset, None
        self._temporary = 0, temporary
        persistent = self._range.size + self._kept
        message = wm.FitWorkload(self._number, persistent, temporary, offset)
        self._channel.run(_notifies(message))

    def _recall(self) -> None:
        with self._lock:
            self._recalled = True
        self.on_recall()

    def moved(self, size: int, error: str = "") -> None:
        """Say that what it keeps was moved, of which ``size`` bytes were copied, or why not."""
        if not self.closed:
            self._notify(wm.RegionMoved(self._number, size, error[:_LONGEST]))

    def _move(self, *, away: bool) -> None:
        self.on_move(away)

    def _zone_lent(self, descriptor: int) -> None:
        self._drop_socket()
        self._socket = descriptor

    def _drop_socket(self) -> None:
        descriptor = self.zone_socket()
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if hasattr(self, "_socket"):
            self._drop_socket()
        super().__del__()


def open_mapped(
    session: Any,
    device: Device | None,
    sizes: tuple[int | None, int | None, int],
    weight: int,
    granule: int,
    *,
    movable: bool = False,
) -> MappedWorkload:
    """Open a workload on a GPU whose memory this program maps itself; waits until there is room.

    Args:
        session: the connection to the daemon, a blocking one.
        device: the GPU, as the daemon knows it; None is refused.
        sizes: bytes of persistent and of temporary memory, None for both to learn them, and of the
            room to grow.
        weight: the length of its turns beside those of others.
        granule: bytes in multiples of which the persistent memory grows.
        movable: whether what it keeps may be in the machine's memory between its turns.

    Raises:
        OutOfMemory: the GPU can never hold it.
    """
    opening = open_workload(
        session, MappedWorkload, device, sizes, weight, mapped=True, movable=movable
    )
    workload: MappedWorkload = session._channel.run(opening)
    workload._granule = granule
    return workload


def gpu_of_daemon(session: Any, device: Device | int | None) -> Device:
    """Return the daemon's GPU.

    Args:
        session: the connection to the daemon.
        device: which; None: its only one.

    Raises:
        InvalidArgument: it serves none, or several.
    """
    every: list[Device] = list(session.devices)
    if device is not None:
        named: Device = session._on(device)
        return named
    gpus = [one for one in every if one.arrays == "copied"]
    if len(gpus) != 1:
        names = ", ".join(f"{one.index}: {one.name}" for one in every)
        raise InvalidArgument(
            f"the daemon serves {len(gpus)} GPUs ({names}): name the device that is to be used"
        )
    return gpus[0]


def _asks(request: Request) -> Operation[Any]:
    return (yield request)


def _notifies(message: Any) -> Operation[None]:
    yield Notification(message)
