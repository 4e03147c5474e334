"""The shortest way of a launch into a lane that has its launch site, and room for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpud_client.launch.dimensions import MOST_BLOCKS, Dim, as_dim3
from gpud_client.launch.lane_base import LaneBase
from gpud_client.launch.lane_job_base import LaneJobBase

__all__ = ["lanes_first"]


def lanes_first(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Make `KernelBase.submit` with a shortcut to lanes, of one that takes an operation's steps.

    These take longer than all else. They are left to a launch that is not in a lane or has other
    options, to the first one in a lane of a kernel, block and size of shared memory, and to one for
    which there is no room.
    """

    def shortened(
        kernel: Any,
        grid: Dim,
        block: Dim,
        args: Any = (),
        *,
        shared: int = 0,
        stream: Any = None,
        **options: Any,
    ) -> Any:
        if stream is not None:
            if isinstance(stream, LaneBase) and not options:
                job = _launch(stream, kernel, grid, block, args, shared)
                if job is not None:
                    return job
            options["stream"] = stream
        return submit(kernel, grid, block, args, shared=shared, **options)

    return shortened


def _launch(
    lane: LaneBase, kernel: Any, grid: Dim, block: Dim, args: Any, shared: int
) -> LaneJobBase | None:
    """Write a launch into a lane's ring, with arguments checked as ever; None if it cannot be."""
    if type(block) is not int:
        block = as_dim3("block", block)
    site = lane._sites.get((kernel, block, shared)) if type(shared) is int else None
    if site is None or site.record is None:
        return None
    if type(grid) is int and 0 < grid <= MOST_BLOCKS:
        dims, total = (grid, 1, 1), grid
    else:
        dims = as_dim3("grid", grid)
        total = dims[0] * dims[1] * dims[2]
        if total > MOST_BLOCKS:
            return None
    values, arrays = kernel._packer.values(args)
    session, device = lane._session, lane.device
    allocations = []
    for array in arrays:
        allocation = array._allocation
        if array._session is not session or array._device is not device or allocation is None:
            return None
        allocations.append(allocation)
    job: LaneJobBase = lane._job_class(lane, kernel._name, total)
    return job if lane._launch(job, site, dims, values, allocations) else None
