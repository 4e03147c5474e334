"""Handles requests about arrays: allocate, copy, map, free."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpud.errors import GpudError, InvalidArgument
from gpud.server.hosts.device_memory import MOST_PARTS, MOST_REGION_PARTS, DeviceArrays
from gpud.server.hosts.devices import Devices
from gpud.server.state.arenas import Arenas
from gpud.server.state.quota import ARRAY_BYTES
from gpud.server.state.session import Session
from gpud.wire import messages as wm

__all__ = ["MemoryRequests"]


class MemoryRequests:
    """Handles requests about arrays.

    Args:
        arenas: the memory of sessions' arrays.
        devices: by index.
    """

    def __init__(self, arenas: Arenas, devices: Devices) -> None:
        self._arenas = arenas
        self._devices = devices

    def allocate(self, session: Session, message: wm.Allocate) -> None:
        """Handle `Allocate`: answer `Allocated`, after `Arena` for the session's first there."""
        self._devices.usable(message.device)

        def now() -> None:
            if session.gone:
                return
            try:
                self._allocate(session, message)
            except GpudError as error:
                session.fail(message.request, error)

        self._arenas.when_zeroed(session.number, now)

    def _allocate(self, session: Session, message: wm.Allocate) -> None:
        arenas, number, index = self._arenas, session.number, message.device
        session.host_memory.charge(ARRAY_BYTES, "this array")
        try:
            address, arena = arenas.allocate(
                number, session.account, index, message.size, message.at
            )
        except GpudError:
            session.host_memory.uncharge(ARRAY_BYTES)
            raise
        device = self._devices[index]
        if arena is not None:
            session.send_with(wm.Arena(index, arena.base, arena.size), arenas.file(arena))
            device.open_arena(number)
        if device.memory is None:
            session.send(wm.Allocated(message.request, address))
            return

        def committed(_: Any, error: GpudError | None) -> None:
            if error is not None:
                if arenas.undo(number, index, address):
                    session.host_memory.uncharge(ARRAY_BYTES)
                session.fail(message.request, error)
            else:
                session.send(wm.Allocated(message.request, address))

        device.memory.commit(number, address, committed)

    def free(self, session: Session, message: wm.Free) -> None:
        """Handle `Free`: the memory is released once the jobs submitted so far have ended."""
        if (message.device, message.array) in session.blocks:
            raise InvalidArgument(
                f"the memory at {message.array:#x} is a module's variables: unload the module"
            )
        session.free(message.device, message.array)

    def upload(self, session: Session, message: wm.Upload) -> None:
        """Handle `Upload`: jobs submitted from now on see what the client has written.

        Who writes parts faster than they are copied waits: no later message is handled.
        """
        memory = self._device_arrays(message.device)
        part = message.array, message.offset, message.size
        region = (session.number, message.device, message.array) in self._arenas.regions.counted
        most = MOST_REGION_PARTS if region else MOST_PARTS

        def go_on() -> None:
            if not session.gone:
                session.stream.resume()

        if not memory.write(session.number, *part, session.last_number, most, go_on):
            session.stream.pause()

    def download(self, session: Session, message: wm.Download) -> None:
        """Handle `Download`: answer when the file holds the device's values."""

        def copied(_: Any, error: GpudError | None) -> None:
            session.reply(message.request, None, error)

        memory = self._device_arrays(message.device)
        memory.read(session.number, message.array, message.offset, message.size, copied)

    def export(self, session: Session, message: wm.ExportArray) -> None:
        """Handle `ExportArray`: answer with memory of an array that the client maps."""
        index, number = message.device, session.number
        memory = self._device_arrays(index)
        if (number, index, message.array) in self._arenas.regions.counted:
            raise InvalidArgument(
                f"the memory at {message.array:#x} is a workload's, which has it in its turns only"
            )
        session.memory.begin()

        def exported(found: Any, error: GpudError | None) -> None:
            if error is not None:
                session.memory.failed()
                session.fail(message.request, error)
                return
            host, ends = found
            answer = wm.ArrayExported(message.request, host, ends is not None)
            if ends is None:
                session.memory.failed()
                session.send(answer)
            else:
                session.memory.sent(ends, partial(session.send_with, answer))

        try:
            memory.export(number, message.array, message.first, message.known, exported)
        except GpudError:
            session.memory.failed()
            raise

    def _device_arrays(self, index: int) -> DeviceArrays:
        device = self._devices.usable(index)
        if device.memory is None:
            raise InvalidArgument(
                f"the arrays of device {index} lie in the session's file itself: nothing is to be "
                "copied"
            )
        return device.memory
