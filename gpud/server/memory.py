"""Requests about memory: allocate and free arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpud.errors import GpudError
from gpud.units import SessionId
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.session import Session

__all__ = ["allocate", "free"]


def allocate(session: Session, message: wm.Allocate) -> None:
    """`Allocated` follows, after `Arena` if it is the session's first there, or `Failed`."""
    session.front.usable_device(message.device)

    def now() -> None:
        if session.gone:
            return
        try:
            _allocate(session, message)
        except GpudError as error:
            session.send(wm.Failed(message.request, error.to_wire()))

    session.front.arenas.when_zero(SessionId(session.number), now)


def _allocate(session: Session, message: wm.Allocate) -> None:
    arenas = session.front.arenas
    number = SessionId(session.number)
    address, arena = arenas.allocate(number, session.peer.uid, message.device, message.size)
    if arena is not None:
        told = wm.Arena(message.device, arena.base, arena.size)
        session.send_with(told, arenas.file(arena))
        session.front.devices[message.device].open_arena(session.number)
    session.send(wm.Allocated(message.request, address))


def free(session: Session, message: wm.Free) -> None:
    """The array's memory is given back when the jobs that were submitted before have ended."""
    number = SessionId(session.number)
    arenas = session.front.arenas
    arenas.free_after(number, message.device, message.array, session.last_number)
    arenas.settle(number, session.oldest_job)
