"""The lanes of a device host: opens them, prepares launch sites, and reports what ends unusually.

The launches themselves pass by: native code reads them from the lanes' rings. To the front, and to
most of the host, a lane is a job whose run stays open (`gpud.device.host.running_job`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpud.device.host import messages as m
from gpud.device.host.lane_watch import LaneWatch
from gpud.device.host.lending import Lending
from gpud.device.host.link import Link
from gpud.device.host.running_job import RunningJob
from gpud.device.interface import LaunchSpec
from gpud.device.lane_reports import EndedLaunch
from gpud.errors import InvalidArgument, PredecessorFailed, UnknownName
from gpud.units import JobId, job_name

__all__ = ["HostLanes"]


class _Observer:
    """Tells the front what happens to one lane."""

    def __init__(self, running: RunningJob, send: Callable[[Any], None]) -> None:
        self._running = running
        self._send = send
        self.on_left = running.on_left
        self.on_over = running.on_over

    def launch_ended(self, launch: EndedLaunch) -> None:
        """Report the end of a launch."""
        number, error = self._running.number, launch.error
        if launch.behind is not None:
            failed = f"{job_name(JobId(number))}:{launch.behind}"
            error = PredecessorFailed(
                f"launch {launch.number} of the lane was not run: {failed}, before it, has failed, "
                "and nobody had asked for its error",
                job=failed,
            )
        self._send(
            m.LaneLaunchEnded(
                number, launch.number, launch.site, launch.state,
                None if error is None else error.to_wire(), launch.output, *launch.progress,
            )
        )  # fmt: skip


class HostLanes:
    """The lanes of a device.

    Args:
        device: has them; its `open_lane` makes one.
        jobs: all jobs of the host by number, which lanes join.
        kernel: finds a loaded kernel by module number and name.
        new_job: makes the `RunningJob` of a command.
        lending: takes back what lanes have lent.
        hold_s: how long nothing must have come in a lane before it lends its share.
        lost: called with an exception that nobody expects.
    """

    def __init__(
        self,
        device: Any,
        link: Link,
        jobs: dict[int, RunningJob],
        kernel: Callable[[int, str], Any],
        new_job: Callable[[Any], RunningJob],
        lending: Lending,
        hold_s: float,
        lost: Callable[[BaseException], None],
    ) -> None:
        self._device = device
        self._link = link
        self._jobs = jobs
        self._kernel = kernel
        self._new_job = new_job
        self._lending = lending
        self._hold_s = hold_s
        self._lost = lost
        self._lanes: dict[int, Any] = {}
        self._watches: dict[int, LaneWatch] = {}

    def open(self, command: m.StartLane) -> None:
        """Execute `StartLane`.

        Raises:
            InvalidArgument: the device has no lanes, or no descriptor came with the command.
        """
        descriptor = self._link.take_descriptor()
        try:
            open_lane = getattr(self._device, "open_lane", None)
            if open_lane is None:
                raise InvalidArgument(
                    f"{self._device.name} has no lanes yet: submit to a stream of gpu.stream()"
                )
            if descriptor is None:
                raise InvalidArgument("StartLane came without a file descriptor")
            running = self._new_job(command)
            observer = _Observer(running, self._link.send)
            lane = open_lane(
                descriptor, command.occupancy, int(command.online), observer, command.exclusive
            )
        finally:
            if descriptor is not None:
                os.close(descriptor)
        self._jobs[command.job] = running
        self._lanes[command.job] = lane
        watch = self._watches[command.job] = LaneWatch(
            command.job, lane, self._lending, self._hold_s, self._lost, self._lending_pays
        )
        try:
            running.start(lane)
        except BaseException:
            self.forget(command.job)
            lane.end()
            raise
        finally:
            watch.start()

    def prepare(self, command: m.AddLaunchSite) -> None:
        """Execute `AddLaunchSite`.

        Raises:
            GpudError: as the device's lane raises for the launch site.
        """
        lane = self._lane(command.job)
        form: Any = command.form
        spec = LaunchSpec(
            self._kernel(command.module, command.entry), form, (1, 1, 1), command.block, b"",
            command.shared, command.occupancy,
        )  # fmt: skip
        ticket = command.ticket
        replied = lambda site: self._link.send(m.Replied(ticket, site))  # noqa: E731
        lane.add_site(spec, replied, command.replaces)

    def cancel(self, command: m.CancelLaneLaunch) -> None:
        """Execute `CancelLaneLaunch`."""
        lane = self._lanes.get(command.job)
        if lane is not None:
            lane.cancel(command.launch)

    def forget(self, job: int) -> None:
        """Drop a lane that has ended."""
        self._lanes.pop(job, None)
        watch = self._watches.pop(job, None)
        if watch is not None:
            watch.stop()

    def _lending_pays(self) -> bool:
        """Return whether anything but lanes runs. From any thread."""
        return len(self._jobs) > len(self._lanes)

    def _lane(self, job: int) -> Any:
        lane = self._lanes.get(job)
        if lane is None:
            raise UnknownName("the lane has ended; open another")
        return lane
