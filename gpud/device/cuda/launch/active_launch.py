"""One launch on the device with its resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpud.device.cuda.launch.launch_records import Slot
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.placement.release_order import ReleaseOrder

__all__ = ["ActiveLaunch"]


@dataclass(slots=True, eq=False)
class ActiveLaunch:
    """One launch on the device.

    Attributes:
        count: blocks that were launched.
        limit: blocks that are not told to release; only falls.
        slot: its records, None if it has none.
        event: recorded behind it; None: it is not *followed*, and known to be over when a later
            launch on its stream has begun or is over.
        order: persistent form: the order in which its blocks are released; None: other forms, whose
            blocks cannot be.
        place: the SMs that its blocks run on; None: any.
        stream: its own, reclaimed with it; None if other launches are on the stream.
        cleared: how many blocks were released because they are on a barred SM.
        gone: whether its records may be another launch's.
        lent_event: the event of its batch, if that has one behind it.
        lent: whether its records belong to a batch (`gpud.device.cuda.launch.batch`).
        untold_exits: whether blocks may have left without being told to release by `order`: because
            they began on a barred SM, or all were halted.
    """

    number: int
    count: int
    limit: int
    slot: Slot | None
    event: Any
    order: ReleaseOrder | None = None
    place: GreenContext | None = None
    stream: Any = None
    cleared: int = 0
    gone: bool = False
    untold_exits: bool = False
    lent: bool = False
    lent_event: Any = None
