"""Builds the error of a failed run from the job record of the launch that ran last.

The record is that of every device; the strings that it points to are read by copies, from the
program's variables and from the session's arena.
"""

from __future__ import annotations

from gpud.compiler.abi.fault_record import fault_of
from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.launch.sequence import CUDASequence
from gpud.device.cuda.memory.arenas import CUDAArenas
from gpud.device.faults import error_of
from gpud.device.readable import ReadableRanges
from gpud.errors import GpudError, InternalError

__all__ = ["failure_of"]


def failure_of(
    record: bytes, sequence: CUDASequence, number: int, context: Context, arenas: CUDAArenas
) -> GpudError | None:
    """Return the error for a job record; None if it records no failure."""
    launched = sequence.launches[number]
    try:
        fault = fault_of(record)
    except ValueError as error:
        return InternalError(
            f"the fault record of {launched.name} is none: {error}", stage="device host, CUDA"
        )
    if fault is None:
        return None
    module = sequence.prepared[number].kernel.module
    ranges = (*module.ranges(), *arenas.ranges(module.arena))
    return error_of(
        fault,
        ReadableRanges(ranges, context.read),
        kernel=launched.name,
        grid=launched.grid,
        launch=None if sequence.in_lane or len(sequence.launches) == 1 else number,
    )
