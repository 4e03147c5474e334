"""Handles requests about arrays: allocate, copy, free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError, InvalidArgument
from gpud.server.hosts.device_memory import DeviceArrays
from gpud.server.state.quota import ARRAY_BYTES
from gpud.units import SessionId
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.state.session import Session

__all__ = ["allocate", "download", "free", "upload"]


def allocate(session: Session, message: wm.Allocate) -> None:
    """Handle `Allocate`: answers `Allocated`, after `Arena` for the session's first there."""
    session.front.usable_device(message.device)

    def now() -> None:
        if session.gone:
            return
        try:
            _allocate(session, message)
        except GpudError as error:
            session.fail(message.request, error)

    session.front.arenas.when_zeroed(SessionId(session.number), now)


def _allocate(session: Session, message: wm.Allocate) -> None:
    arenas = session.front.arenas
    number = SessionId(session.number)
    session.host_memory.charge(ARRAY_BYTES, "this array")
    try:
        address, arena = arenas.allocate(number, session.peer.uid, message.device, message.size)
    except GpudError:
        session.host_memory.uncharge(ARRAY_BYTES)
        raise
    if arena is not None:
        told = wm.Arena(message.device, arena.base, arena.size)
        session.send_with(told, arenas.file(arena))
        session.front.devices[message.device].open_arena(session.number)
    memory = session.front.devices[message.device].memory
    if memory is None:
        session.send(wm.Allocated(message.request, address))
        return

    def committed(_: Any, error: GpudError | None) -> None:
        if error is not None:
            if arenas.undo(number, message.device, address):
                session.host_memory.uncharge(ARRAY_BYTES)
            session.fail(message.request, error)
        else:
            session.send(wm.Allocated(message.request, address))

    memory.commit(number, address, committed)


def free(session: Session, message: wm.Free) -> None:
    """Handle `Free`: the memory is released once the jobs submitted so far have ended."""
    session.free(message.device, message.array)


def upload(session: Session, message: wm.Upload) -> None:
    """Handle `Upload`: jobs submitted from now on see what the client has written to the file."""
    memory = _device_arrays(session, message.device)
    part = message.array, message.offset, message.size
    memory.write(SessionId(session.number), *part, session.last_number)


def download(session: Session, message: wm.Download) -> None:
    """Handle `Download`: answers when the file holds the device's values."""

    def copied(_: Any, error: GpudError | None) -> None:
        session.reply(message.request, None, error)

    memory = _device_arrays(session, message.device)
    number = SessionId(session.number)
    memory.read(number, message.array, message.offset, message.size, copied)


def _device_arrays(session: Session, index: int) -> DeviceArrays:
    device = session.front.usable_device(index)
    if device.memory is None:
        raise InvalidArgument(
            f"the arrays of device {index} lie in the session's file itself: nothing is to be "
            "copied"
        )
    return device.memory
