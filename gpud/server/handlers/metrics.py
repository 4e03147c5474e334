"""Makes the metrics' text, in slices as other answers."""

from __future__ import annotations

import asyncio
import time

from gpud.server.handlers.queries import Queries
from gpud.telemetry.metrics import Totals, exposition

__all__ = ["metrics_text"]

_SLICE_S = 0.002


async def metrics_text(queries: Queries, totals: Totals) -> bytes:
    """Return the metrics as OpenMetrics text, see `gpud.telemetry.metrics.exposition`."""
    steps = queries.status()
    until = time.monotonic() + _SLICE_S
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return exposition(end.value, totals)
        if time.monotonic() > until:
            await asyncio.sleep(0)
            until = time.monotonic() + _SLICE_S
