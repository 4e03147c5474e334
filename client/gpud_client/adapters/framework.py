"""Gives a framework's allocations memory of a workload: what the adapters have in common.

Problem: a framework asks for memory of its process, frees it, and says no more. What outlives an
iteration must stay at its address while other programs have the GPU; the rest may use the temporary
memory that all programs share, and only in this program's turns.

Approach: kinds are learned (`gpud_client.workloads.kinds`). Persistent allocations lie in memory of
this process's own, of which the daemon counts the bytes; temporary ones in the daemon's zone, which
is mapped for the turn. Where a guess was wrong nothing is lost: a temporary allocation that is
alive when the turn ends is copied to the host's memory, and back to its address when the next turn
begins; where temporary memory does not suffice, persistent memory is used.

The first iteration is *profiled*: everything that is allocated in it lies in the zone, at addresses
of its own. When it has ended, what is alive gets memory of this process's own at the same
addresses. A workload without sizes says then what it needs.

Properties:
    same_address: an allocation keeps its address and its values until it is freed;
    only_in_turns: outside of this program's turns the zone is not mapped in it;
    ordered: memory that was freed on a stream is used on another one when that has caught up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypedDict

import numpy as np

from gpud.errors import ConnectionLost, InvalidArgument, UnknownName
from gpud.units import byte_size
from gpud_client.adapters.kept_memory import KeptMemory
from gpud_client.adapters.mapped import MappedRange, MappedZone, ProcessGpu
from gpud_client.adapters.mapped_workload import MappedTurn, gpu_of_daemon, open_mapped
from gpud_client.adapters.parts import ProfileParts
from gpud_client.devices import Device
from gpud_client.workloads.kinds import (
    Allocated,
    Allocation,
    Event,
    Freed,
    IterationEnded,
    Kind,
    KindLearner,
    needed_sizes,
)
from gpud_client.workloads.memory import MemoryRange
from gpud_client.workloads.workload import default_offset

__all__ = ["FrameworkMemory", "Terms"]

_LOG = logging.getLogger("gpud_client")

_PROFILE, _PERSISTENT, _TEMPORARY = "profile", "persistent", "temporary"


class Terms(TypedDict, total=False):
    """The terms of a workload, as `FrameworkMemory` takes them."""

    persistent: int | str | None
    temporary: int | str | None
    offset: int | str | None
    weight: int
    movable: bool
    device: Device | int | None
    gpu: ProcessGpu | None
    profiled_iterations: int


class _Block:
    """Memory that the framework has: where it lies, and on which streams it is used."""

    __slots__ = ("offset", "one", "place", "streams")

    def __init__(self, one: Allocation, place: str, offset: int, stream: int | None) -> None:
        self.one = one
        self.place = place
        self.offset = offset
        self.streams = {stream}


class FrameworkMemory:
    """A workload whose memory a framework allocates. Thread-safe.

    Args:
        session: the connection to the daemon, as `gpud_client.connect` returns it.
        persistent: bytes that live across iterations, or text such as ``"2GiB"``; None: learned.
        temporary: bytes that live within an iteration; None: learned.
        offset: room in which the persistent memory can grow.
        weight: the length of its turns beside those of others.
        movable: whether what persists may be in the machine's memory while others have their turns;
            with both sizes. The framework allocates, and uses its memory, within iterations only.
        device: the daemon's device; None: its only GPU.
        gpu: the GPU in this process; None: ``cuda:0``.
        profiled_iterations: how many iterations are profiled.

    Attributes:
        workload: at the daemon.
        held_bytes: what was copied to the host's memory at the ends of turns so far.
        failure: the last error that could not be raised where it happened; `begin` raises it.

    Raises:
        OutOfMemory: the GPU can never hold it.
        InvalidArgument: the daemon serves no GPU, or another one.
        MissingDependency: the driver's bindings are not installed.
    """

    def __init__(
        self,
        session: Any,
        *,
        persistent: int | str | None = None,
        temporary: int | str | None = None,
        offset: int | str | None = None,
        weight: int = 1,
        movable: bool = False,
        device: Device | int | None = None,
        gpu: ProcessGpu | None = None,
        profiled_iterations: int = 1,
    ) -> None:
        on = gpu_of_daemon(session, device)
        self._gpu = ProcessGpu() if gpu is None else gpu
        if self._gpu.name != on.name:
            raise InvalidArgument(
                f"device {on.index} of the daemon is {on.name}, and this process would use "
                f"{self._gpu.name}: name the device, or set CUDA_VISIBLE_DEVICES"
            )
        sizes = [
            None if size is None else self._gpu.whole(byte_size(size))
            for size in (persistent, temporary)
        ]
        bytes_ = default_offset([on]) if offset is None else byte_size(offset)
        room = self._gpu.whole(bytes_)
        wanted = sizes[0], sizes[1], room
        self.workload = open_mapped(session, on, wanted, weight, self._gpu.granule, movable=movable)
        self.workload.on_recall = self._recalled
        self._learner = KindLearner(profiled_iterations)
        self._profiled = False
        self._lock = threading.RLock()
        self._blocks: dict[int, _Block] = {}
        self._kept = KeptMemory(self._gpu, self.workload, self._parts_of)
        self._persistent, self._profile = self._kept.persistent, self._kept.profile
        self._profile_parts = ProfileParts(self.workload.temporary, self._gpu.granule)
        self._events: list[Event] = []
        self._zone = MappedZone(self._gpu)
        self._temporary_parts = MemoryRange(0, 0, ())
        self._held: dict[int, np.ndarray[Any, Any]] = {}
        self._turn: MappedTurn | None = None
        self._within = False
        self._closed = False
        self._freed_on: set[int | None] = set()
        self.held_bytes = 0
        self.failure: Exception | None = None

    # -- memory

    def allocate(self, size: int, stream: int | None = 0) -> int:
        """Return the address of memory that the framework has until `free`.

        Args:
            size: bytes; 0 is as 1.
            stream: the driver's number of the stream on which it is used; None: not known.

        Raises:
            OutOfMemory: neither kind of the workload's memory has room.
            InvalidArgument: it is closed; or it is movable, and this is in no iteration.
        """
        with self._lock:
            self._check_open()
            if self.workload.movable and not self._within:
                raise InvalidArgument(
                    f"workload {self.workload.id} is movable: allocate within an iteration, such "
                    "as the first"
                )
            self._catch_up(stream)
            one = self._learner.allocated(max(1, size))
            try:
                place, offset = self._placed(one)
            except BaseException:
                self._learner.freed(one)
                raise
            address = self._base(place) + offset
            self._blocks[address] = _Block(one, place, offset, stream)
            if not self._profiled:
                self._events.append(Allocated(address, one.size))
            return address

    def free(self, address: int) -> None:
        """Take memory back, which work that is queued may still use.

        Raises:
            InvalidArgument: the framework does not have it.
        """
        with self._lock:
            block = self._blocks.pop(address, None)
            if block is None:
                raise InvalidArgument(
                    f"the framework frees {address:#x}, which it never allocated here, or has "
                    f"freed already; it has {len(self._blocks)} allocations. Memory from before "
                    "the adapter was installed is freed by what allocated it"
                )
            self._learner.freed(block.one)
            self._freed_on |= block.streams
            self._held.pop(address, None)
            if self._closed:
                return
            if not self._profiled:
                self._events.append(Freed(address))
            if block.place == _TEMPORARY:
                self._temporary_parts.give_back(block.offset, block.one.size)
            elif block.place == _PROFILE:
                self._profile_parts.give_back(block.offset, block.one.size)
            else:
                self.workload.give_back(block.offset, block.one.size)

    def use_on(self, address: int, stream: int) -> None:
        """Note that memory is used on another stream, too."""
        with self._lock:
            if address in self._blocks:
                self._blocks[address].streams.add(stream)

    def place(self, address: int) -> str:
        """Return where an allocation lies: "persistent", "temporary" or, profiled, "profile"."""
        with self._lock:
            return self._blocks[address].place

    def info(self) -> tuple[int, int]:
        """Return the bytes that are free of both kinds of memory together, and all."""
        with self._lock:
            total = self.workload.persistent + self.workload.temporary
            used = sum(block.one.size for block in self._blocks.copy().values())
            return max(0, total - used), total

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    # -- iterations

    def begin(self) -> None:
        """Begin an iteration: waits for the turn, and maps the temporary memory.

        Raises:
            InvalidArgument: there is one already, or it is closed; or what could not be raised
                where it happened, see `failure`.
        """
        with self._lock:
            self._check_open()
            if self.failure is not None:
                error, self.failure = self.failure, None
                raise error
            if self._within:
                raise InvalidArgument(
                    "the framework is in an iteration: end it before the next one begins"
                )
            if self._turn is not None and not self.workload.continues():
                self._give_up_turn()
            if self._turn is None:
                self._take_turn()
            self._within = True
            self._learner.begin_iteration()

    def end(self) -> None:
        """End the iteration; others have their turns then, if there are any.

        Raises:
            InvalidArgument: there is none.
        """
        with self._lock:
            if not self._within:
                raise InvalidArgument("the framework is in no iteration: begin one")
            self._end_iteration()
            if not self.workload._standing or self.workload._recalled:
                self._give_up_turn()

    def step(self) -> None:
        """End the iteration and begin the next; the first call only begins one."""
        with self._lock:
            if self._within:
                self._end_iteration()
            self.begin()

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Context manager of an iteration, for loops that say where theirs begin and end."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    def close(self) -> None:
        """End the workload. The framework's memory is gone then: free it before."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._gpu.synchronize()
            self._within = False
            turn, self._turn = self._turn, None
            self._zone.unmap()
            with suppress(ConnectionLost):
                if turn is not None:
                    self.workload.leave(turn)
            self._zone.close()
            self._kept.close()
            self._gpu.close()
            # With its daemon, or by somebody who manages that, the workload may have ended already.
            with suppress(ConnectionLost, UnknownName):
                self.workload.close()

    # -- helpers

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidArgument("the framework's memory is closed: install the adapter again")

    def _base(self, place: str) -> int:
        if place == _TEMPORARY:
            return self._zone.address
        if place == _PROFILE:
            return self._profile.address
        return self._persistent.address

    def _placed(self, one: Allocation) -> tuple[str, int]:
        # The zone has what is temporary or, in the profile, what is not known yet.
        if one.kind is not Kind.PERSISTENT and self._zone.size:
            place = _TEMPORARY if self._profiled else _PROFILE
            offset = self._parts_in_zone.take(one.size)
            if offset is not None:
                return place, offset
        if self._profiled:
            offset = self._profile_parts.take(one.size)
            if offset is not None:
                return _PROFILE, offset
        offset = self.workload.take(one.size)
        self._persistent.back(offset, one.size)
        return _PERSISTENT, offset

    @property
    def _parts_in_zone(self) -> MemoryRange | ProfileParts:
        return self._temporary_parts if self._profiled else self._profile_parts

    def _blocks_in_zone(self) -> list[tuple[int, _Block]]:
        place = _TEMPORARY if self._profiled else _PROFILE
        return [one for one in self._blocks.copy().items() if one[1].place == place]

    def _catch_up(self, stream: int | None) -> None:
        """Wait for other streams if they may still use memory that was freed on them."""
        if self._freed_on and (stream is None or self._freed_on != {stream}):
            self._gpu.synchronize()
            self._freed_on.clear()

    def _end_iteration(self) -> None:
        self._within = False
        self._learner.end_iteration()
        if not self._profiled:
            self._events.append(IterationEnded())
            if not self._learner.profiling:
                self._give_up_turn()

    def _parts_of(self, memory: MappedRange) -> list[tuple[int, int]]:
        """Return offset and bytes of what lies in memory that is this process's own."""
        place = _PERSISTENT if memory is self._persistent else _PROFILE
        blocks = self._blocks.copy().values()
        return [(block.offset, block.one.size) for block in blocks if block.place == place]

    def _take_turn(self) -> None:
        try:
            turn = self.workload.enter()
        except ConnectionLost:
            self._kept.rescue()
            raise
        descriptor = self.workload.zone_socket()
        try:
            if descriptor is not None:
                at = self._zone if self._profiled else self._profile
                self._zone.map(descriptor, at.address)
        except BaseException:
            self.workload.leave(turn)
            raise
        self._turn = turn
        self._restore()

    def _restore(self) -> None:
        """Write what was held back to its addresses."""
        while self._held:  # finalizers may free some meanwhile
            self._gpu.write(*self._held.popitem())

    def _give_up_turn(self) -> None:
        turn, self._turn = self._turn, None
        if turn is None:
            return
        self._gpu.synchronize()
        self._freed_on.clear()
        for address, block in self._blocks_in_zone():
            self._held[address] = self._gpu.read(address, block.one.size)
            self.held_bytes += block.one.size
        self._zone.unmap()
        with self._kept.lock:  # it may be asked for as soon as the turn is left
            self.workload.leave(turn)
            if not self._profiled and not self._learner.profiling:
                self._end_profile()

    def _recalled(self) -> None:
        """Others want the device: give the turn up now, if no iteration is under way."""
        threading.Thread(target=self._give_up_idle, name="gpud turn", daemon=True).start()

    def _give_up_idle(self) -> None:
        with self._lock:
            if not self._within and not self._closed:
                try:
                    self._give_up_turn()
                except Exception as error:  # noqa: BLE001 - the next iteration raises it
                    self.failure = error
                    _LOG.exception("the turn of %s cannot be given up", self.workload.id)

    def _end_profile(self) -> None:
        """Give what is alive memory of its own at its addresses, and say what is needed."""
        parts = [(block.offset, block.one.size) for _, block in self._blocks_in_zone()]
        pieces = self._profile.pieces(parts)
        self.workload.keep(sum(end - start for start, end in pieces))
        for start, end in pieces:
            self._profile.back(start, end - start)
        self._restore()
        self._profile_parts.restrict(pieces)
        self._profiled = True
        if self.workload.learns:
            self.workload.fit(self._gpu.whole(needed_sizes(self._events).temporary))
        self._events.clear()
        self._temporary_parts = MemoryRange(0, self.workload.temporary, ())
