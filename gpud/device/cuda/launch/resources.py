"""What the runs of one device launch with: its context, its pools, and its control stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpud.device.cuda.driver.context import Context
from gpud.device.cuda.launch.active_launches import ActiveLaunches
from gpud.device.cuda.launch.armed_records import RecordPool
from gpud.device.cuda.launch.output import OutputBuffers
from gpud.device.cuda.memory.pool import Pool

__all__ = ["LaunchResources"]


@dataclass(frozen=True, slots=True)
class LaunchResources:
    """The resources that launches take, and give back when they are over.

    Attributes:
        sms: how many it has.
        launches: everything that is launched on it.
        host_blocks, device_blocks, output_buffers: memory for records and output.
        control_stream: for what is written to records while kernels run.
        control_event: recorded behind the last work on that stream.
        armed: records that are initialised ahead.
    """

    context: Context
    sms: int
    launches: ActiveLaunches
    host_blocks: Pool
    device_blocks: Pool
    output_buffers: OutputBuffers
    control_stream: Any
    control_event: Any
    armed: RecordPool
