"""What one lane has of its CUDA device: how its launches are prepared and run, and its own SMs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpud.device.cuda.execution.run import CUDARun
from gpud.device.cuda.execution.run_context import RunContext
from gpud.device.cuda.launch.sequence import CUDASequence, Preparation
from gpud.device.cuda.placement.green_context import GreenContext
from gpud.device.interface import LaunchSpec

__all__ = ["LaneParts"]


class LaneParts:
    """See `gpud.device.cuda.lanes.lane_work.LaneResources`.

    Args:
        device: what runs know of it.
        sms: how many it has.
        occupancy: the lane's slices are 1/``occupancy`` of an SM.
        partition: SMs that are the lane's alone; None: it shares SMs with others.
    """

    def __init__(
        self,
        device: RunContext,
        preparation: Preparation,
        sms: int,
        occupancy: int,
        priority: int,
        partition: GreenContext | None,
    ) -> None:
        self._device = device
        self._preparation = preparation
        self._occupancy = occupancy
        self._priority = priority
        self._partition = partition
        self.sms = sms

    def prepare(self, launches: Sequence[LaunchSpec]) -> CUDASequence:
        """Prepare a group of the lane's launches."""
        return CUDASequence(self._preparation, launches, self._occupancy, in_lane=True)

    def new_run(
        self, sequence: CUDASequence, on_left: Callable[[], None], on_over: Callable[[], None]
    ) -> CUDARun:
        """Return a run of a group."""
        return CUDARun(
            self._device, sequence, self._priority, on_left, on_over, self._partition, keeps=True
        )

    def check_site(self, spec: LaunchSpec) -> int:
        """Return M of a launch site's kernel."""
        return spec.occupancy or self._preparation.occupancy(spec.kernel, spec.block, spec.shared)

    def close(self) -> None:
        """Give the lane's partition back."""
        partition, self._partition = self._partition, None
        if partition is not None:
            with self._device.lock:
                self._device.give_partition(partition)
            self._device.watcher.notify()
