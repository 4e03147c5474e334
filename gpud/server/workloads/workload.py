"""What the front knows of a workload."""

from __future__ import annotations

import time

from gpud.core.workloads.zones import Need
from gpud.server.state.session import Session
from gpud.server.workloads.memory import Lent
from gpud.wire import messages as wm

__all__ = ["Workload", "workload_name"]


class Workload:
    """One workload.

    Attributes:
        number: unique in the daemon.
        owner: its session.
        need: what it asked for, in bytes; None: it does not know yet.
        weight: the length of its turns.
        mapped: whether its program maps its memory itself.
        movable: whether what it keeps may be in host memory between its turns.
        region_bytes: of its region with the offset, once it is admitted.
        device: None until it is admitted.
        address: of its persistent memory.
        lent: address and bytes of its temporary memory; None: it has none.
        ends_iteration: whether its iteration waits for its jobs to end.
        reason: why it is on its device.
        request: the request that it waits for; None: it waits for nothing.
        standing: whether it goes on without asking.
        watched: whether it is seen to that its turn ends if it does nothing.
        iterations: how many have begun, as far as the daemon was told.
        turns: how many have begun.
        ending: why it is ending; None: it is not.
        opened_ns: when it was asked for, monotonic.
        asked_ns: when it asked for its latest iteration.
        waited_ns: the time for which it has waited for turns.
    """

    def __init__(self, number: int, owner: Session, message: wm.OpenWorkload) -> None:
        self.number = number
        self.owner = owner
        self.need = _need(message)
        self.weight = message.weight
        self.mapped = message.mapped
        self.movable = message.movable
        self.region_bytes = 0
        self.device: int | None = None
        self.address = 0
        self.lent: Lent | None = None
        self.ends_iteration = False
        self.reason = ""
        self.request: int | None = message.request
        self.standing = False
        self.watched = False
        self.iterations = 0
        self.turns = 0
        self.ending: str | None = None
        self.opened_ns = time.monotonic_ns()
        self.asked_ns = 0
        self.waited_ns = 0


def _need(message: wm.OpenWorkload) -> Need | None:
    if message.persistent is None:
        return None
    return Need(message.persistent, message.temporary, message.offset)


def workload_name(number: int) -> str:
    """Return a workload's name for people, such as ``w3``."""
    return f"w{number}"
