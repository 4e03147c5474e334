"""Handles messages about lanes: open, prepare a launch site, cancel a launch, close.

A lane is a job of the scheduler that stays open. Its launches do not come here: clients write them
into the lane's ring, which the device's process reads.
"""

from __future__ import annotations

import time
from fractions import Fraction
from typing import Any

from gpud.core.events import JobSubmitted, LaneCloseRequested
from gpud.device.host import messages as hm
from gpud.errors import GpudError, InvalidArgument, UnknownName
from gpud.server.handlers.residency import LoadedModules
from gpud.server.handlers.submission import refuse
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.units import job_id
from gpud.wire import messages as wm

__all__ = ["LaneRequests"]

_NAME = "(lane)"


class LaneRequests:
    """Handles messages about lanes.

    Args:
        devices: by index.
        jobs: those that have not ended.
        runner: feeds the scheduler.
        loaded: keeps the modules few that hosts have loaded.
    """

    def __init__(
        self, devices: Devices, jobs: ActiveJobs, runner: Runner, loaded: LoadedModules
    ) -> None:
        self._loaded = loaded
        self._devices = devices
        self._jobs = jobs
        self._runner = runner

    def open(self, session: Session, message: wm.OpenLane) -> None:
        """Handle `OpenLane`: pass the lane to the scheduler, or tell the client why not."""
        number = message.number
        if number != session.last_number + 1:
            refuse(
                session,
                number,
                InvalidArgument(
                    f"after job {session.last_number} comes its successor, not {number}"
                ),
            )
            return
        session.last_number = number
        try:
            self._open(session, message)
        except GpudError as error:
            refuse(session, number, error)

    def _open(self, session: Session, message: wm.OpenLane) -> None:
        self._runner.check_strikes(session.account)
        device = self._devices.usable(message.device)
        now_ns = time.monotonic_ns()
        identity = job_id(session.number, message.number)
        sequence = ValidatedSequence(b"", (), (), (_NAME,), 0, killable=True)
        job = SubmittedJob(identity, message.number, session, device.index, sequence, now_ns)
        job.lane = True
        job.online = message.reservation is not None
        session.add_job(job)
        self._jobs[identity] = job
        self._runner.feed(
            JobSubmitted(
                now_ns,
                identity,
                session.number,
                device.index,
                (),
                None if message.reservation is None else Fraction(*message.reservation),
                None if message.quota is None else Fraction(*message.quota),
                deadline_ns=None if message.deadline_ns is None else now_ns + message.deadline_ns,
                weight=message.weight,
                killable=True,
                exclusive=message.exclusive,
                prepared=device.jobs.is_prepared(sequence, session.number, message.number),
                lane=True,
            )
        )

    def prepare(self, session: Session, message: wm.PrepareLaunch) -> None:
        """Handle `PrepareLaunch`: answer with the number of the launch site."""
        job = self._lane(session, message.lane)
        module = session.module(message.module)
        if module.device != job.device:
            raise InvalidArgument(
                f"module {message.module} is on device {module.device}, the lane on {job.device}"
            )
        kernel = session.kernel(module, message.kernel)
        shape = (message.kernel, message.block, message.shared)
        measured = module.measured.get((*shape, kernel.info.killable)) or module.measured.get(
            (*shape, False)
        )
        if measured is None:
            raise UnknownName(f"{kernel.name} was not measured for this block; send Measure first")
        occupancy, form = measured
        entry = kernel.info.entry_for(message.block, killable=True)

        def command(ticket: int) -> hm.AddLaunchSite:
            return hm.AddLaunchSite(
                ticket, job.id, module.number, entry, form, message.block, message.shared,
                occupancy, message.replaces,
            )  # fmt: skip

        def replied(site: Any, error: GpudError | None) -> None:
            module.pending -= 1
            if error is None:
                job.sites[site] = module
            session.reply(message.request, site, error)

        module.pending += 1
        self._loaded.use(session, module)
        self._devices[job.device].requests.prepare_launch(
            module, (*shape, kernel.info.killable), command, replied
        )

    def cancel(self, session: Session, message: wm.CancelLaunch) -> None:
        """Handle `CancelLaunch`."""
        job = self._lane(session, message.lane)
        process = self._devices[job.device].process
        if process is not None:
            process.send(hm.CancelLaneLaunch(job.id, message.launch))

    def close(self, session: Session, message: wm.CloseLane) -> None:
        """Handle `CloseLane`: end the lane, unless it has ended."""
        job = session.jobs.get(message.lane)
        if job is not None and job.lane:
            self._runner.feed(LaneCloseRequested(time.monotonic_ns(), job.id))

    def _lane(self, session: Session, number: int) -> SubmittedJob:
        job = session.jobs.get(number)
        if job is None or not job.lane:
            raise UnknownName(f"the session has no lane {number}, or it has ended; open another")
        return job
