"""One launch on the device with its resources, and where changes of its orders are numbered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpud.device.cuda.launch.release_path import Slot
from gpud.device.cuda.launch.sequence import CUDASequence, PreparedLaunch
from gpud.device.cuda.memory.pool import MappedBlock
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.cuda.placement.release_order import ReleaseOrder
from gpud.device.cuda.program.by_value import NO_NEWS, News
from gpud.device.cuda.program.forward_news import look_limit

__all__ = ["UNREAD", "ActiveLaunch", "NewsWords", "news_words"]


class NewsWords(NamedTuple):
    """Where changes of orders to the launches of one job record are numbered.

    Attributes:
        word: the number in host memory, as an array of one.
        said, seen: addresses of that, and of the news in device memory; 0: nobody reads them.
    """

    word: npt.NDArray[np.uint32] | None = None
    said: int = 0
    seen: int = 0

    def of(self, what: PreparedLaunch, count: int) -> News:
        """Return what a launch of ``count`` blocks is given of it."""
        if not self.said:
            return NO_NEWS
        return News(self.said, self.seen, look_limit(count, what.kernel.block_ns.get(what.block)))


UNREAD = NewsWords()
"""Of release paths without news."""


def news_words(sequence: CUDASequence, page: MappedBlock, records: int, number: int) -> NewsWords:
    """Return where changes of orders to a launch and its helpers are numbered.

    Args:
        sequence: of the launch.
        page: host memory of its run.
        records: address of the run's first job record.
        number: of the launch.
    """
    at = sequence.numbers_at + 4 * number
    word = page.words[at // 4 : at // 4 + 1]
    return NewsWords(word, page.address + at, records + sequence.news + 4 * number)


@dataclass(slots=True, eq=False)
class ActiveLaunch:
    """One launch on the device.

    Attributes:
        number: of the launch in its sequence.
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
