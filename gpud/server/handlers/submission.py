"""Handles submissions: validates a `gpud.wire.messages.Submit` and makes a job of it.

This is the hot path. Services submit the same sequence of launches again and again, so a validated
sequence is kept by its bytes, for as long as its modules are loaded. A job of one launch is
recognised by all but its parameters.
"""

from __future__ import annotations

import time
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from gpud.core.events import FailureSeen, JobRefused, JobSubmitted, LaunchShape
from gpud.device.host.messages import HOST_PROTOCOL
from gpud.errors import GpudError, InvalidArgument, LaunchConfigError, UnknownName, from_wire
from gpud.server.handlers.residency import LoadedModules
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.state.job_tables import ActiveJobs
from gpud.server.state.modules import Kernel, Module, Shape
from gpud.server.state.sequence import ValidatedSequence
from gpud.server.state.session import Session
from gpud.server.state.submitted_job import SubmittedJob
from gpud.server.workloads.use import check_use
from gpud.server.workloads.workloads import Workloads
from gpud.units import JobId, SessionId, job_id
from gpud.wire.beginnings import is_short
from gpud.wire.messages import (
    CLIENT_PROTOCOL,
    Finished,
    LaunchRecord,
    Resume,
    StreamFailure,
    Submit,
)

__all__ = ["Submission", "refuse"]

_MOST_TASK_BLOCKS = 2**31 - 1
_MOST_LAUNCHES = 4096
_MOST_SEQUENCE_BYTES = 1 << 25  # the most that a device host reads, see `StartRun`


class Submission:
    """Handles submissions.

    Args:
        devices: by index.
        jobs: those that have not ended.
        runner: feeds the scheduler.
        workloads: in whose memory arguments can lie.
        loaded: keeps the modules few that hosts have loaded.
    """

    def __init__(
        self,
        devices: Devices,
        jobs: ActiveJobs,
        runner: Runner,
        workloads: Workloads,
        loaded: LoadedModules,
    ) -> None:
        self._loaded = loaded
        self._workloads = workloads
        self._devices = devices
        self._jobs = jobs
        self._runner = runner

    def submit(self, session: Session, message: Submit) -> None:
        """Handle `Submit`: pass the job to the scheduler, or tell the client why not."""
        number = message.number
        if number != session.last_number + 1:
            problem = (
                f"jobs are numbered 1, 2, 3 ...: after {session.last_number} comes "
                f"{session.last_number + 1}, not {number}"
            )
            refuse(session, number, InvalidArgument(problem))
            return
        session.last_number = number
        try:
            self._submit(session, message)
        except GpudError as error:
            refuse(session, number, error)
            if message.sticky:
                self._fail_stream(session, message.stream, number)

    def stream_failure(self, session: Session, message: StreamFailure) -> None:
        """Handle `StreamFailure`: let what comes in the stream run, or not."""
        if not message.seen:
            self._fail_stream(session, message.stream, message.job)
            return
        job = job_id(session.number, message.job)
        self._runner.feed(FailureSeen(time.monotonic_ns(), session.number, message.stream, job))

    def _fail_stream(self, session: Session, stream: int, number: int) -> None:
        """Have sticky jobs that come in a stream fail, because of one that was not run."""
        job = job_id(session.number, number)
        self._runner.feed(JobRefused(time.monotonic_ns(), job, session.number, stream))

    def resume(self, session: Session, message: Resume) -> None:
        """Handle `Resume`: number jobs on from another session's, and report when they begin.

        Raises:
            InvalidArgument: jobs were submitted in this session.
        """
        if session.last_number:
            raise InvalidArgument("Resume comes before the first job of a session")
        session.last_number = message.last_job
        session.reports_begins = True
        session.reply(message.request, None, None)

    def _submit(self, session: Session, message: Submit) -> None:
        self._runner.check_strikes(session.account)
        device = self._devices.usable(message.device)
        # An online job keeps its share whatever it does, so it is spared the cost of kill polls.
        online = message.reservation is not None
        killable = device.always_polls or (message.timeout_ns is not None and not online)
        data = message.launches
        alike = session.alike.find((message.device, killable), data)
        if alike is not None:
            (sequence, head), parameters = alike
            packed = head + parameters
        else:
            kept = session.sequences.get((message.device, data, killable))
            sequence = kept or self._validated(session, message.device, data, killable=killable)
            packed = sequence.launches
        if message.memory is not None:
            check_use(self._workloads, session, message, sequence)
        after = self._after(session, message) if message.after else ()
        now_ns = time.monotonic_ns()
        number = message.number
        job_number = job_id(session.number, number)
        job = SubmittedJob(job_number, number, session, device.index, sequence, now_ns, packed)
        job.online = online
        job.follows = len(after)
        session.add_job(job)
        self._jobs[job_number] = job
        for module, _ in sequence.needs:
            self._loaded.use(session, module)
        deadline_ns = message.deadline_ns
        # The job's owner is notified of its end, maybe before this returns.
        self._runner.feed(
            JobSubmitted(
                now_ns,
                job_number,
                session.number,
                device.index,
                sequence.shapes,
                _fraction(message.reservation),
                _fraction(message.quota),
                message.stream,
                after,
                None if deadline_ns is None else now_ns + deadline_ns,
                message.timeout_ns,
                message.weight,
                killable,
                message.exclusive,
                device.jobs.is_prepared(sequence, session.number, number),
                sticky=message.sticky,
            )
        )

    def _after(self, session: Session, message: Submit) -> tuple[JobId, ...]:
        """Return the jobs to wait for, without those of other users, unknown and ended ones."""
        followed = []
        for number, job in message.after:
            if number == session.number and job >= message.number:
                raise InvalidArgument(
                    f"job {message.number} cannot follow job {job}, which is later"
                )
            known = self._jobs.visible(session.peer, job_id(SessionId(number), job))
            if known is not None:
                followed.append(known.id)
        return tuple(followed)

    def _validated(
        self, session: Session, device: int, data: bytes, *, killable: bool
    ) -> ValidatedSequence:
        """Validate the launches of a submission, and keep the sequence that they make.

        Raises:
            GpudError: one of the launches is invalid; the message says which.
        """
        launches = CLIENT_PROTOCOL.decode_records(LaunchRecord, data, least=1, most=_MOST_LAUNCHES)
        wire: list[list[Any]] = []
        shapes: list[LaunchShape] = []
        needs: list[tuple[Module, Shape]] = []
        kernels: list[str] = []
        together = False  # its grid must fit the present host
        for index, launch in enumerate(launches):
            try:
                module, kernel, occupancy, form = self._checked(
                    session, device, launch, killable=killable
                )
            except GpudError as error:
                if len(launches) > 1:
                    fields = error.to_wire()
                    fields["message"] = f"launch {index}: {error.message}"
                    raise from_wire(fields) from None
                raise
            together |= kernel.info.cooperative
            total = prod(launch.grid)
            wire.append(
                [
                    module.number,
                    kernel.info.entry_for(launch.block, killable=killable),
                    form,
                    list(launch.grid),
                    list(launch.block),
                    launch.shared,
                    occupancy,
                    launch.parameters,
                ]
            )
            shapes.append(LaunchShape(occupancy, total, form != "whole"))
            polls = killable and kernel.info.killable
            needs.append((module, (launch.kernel, launch.block, launch.shared, polls)))
            kernels.append(kernel.name)
        packed = HOST_PROTOCOL.encode_records(wire)
        if len(packed) > _MOST_SEQUENCE_BYTES:
            raise InvalidArgument(
                f"the launches take {len(packed)} bytes, and those of one job may take "
                f"{_MOST_SEQUENCE_BYTES}: split the job"
            )
        sequence = ValidatedSequence(
            packed, tuple(shapes), needs, kernels, len(data), killable=killable
        )
        if len(launches) > 1 or not is_short(data) or together:
            session.keep_sequence((device, data, killable), sequence)
        else:
            size = len(launches[0].parameters)
            known = sequence, packed[: len(packed) - size]
            session.alike.keep((device, killable), data, size, known)
        return sequence

    def _checked(
        self, session: Session, device: int, launch: LaunchRecord, *, killable: bool
    ) -> tuple[Module, Kernel, int, str]:
        """Validate a launch; return its module, kernel, M and form."""
        module = session.module(launch.module)
        if module.device != device:
            raise InvalidArgument(
                f"module {launch.module} is on device {module.device}, the job on device {device}"
            )
        kernel = session.kernel(module, launch.kernel)
        task_blocks = prod(launch.grid)
        if task_blocks > _MOST_TASK_BLOCKS:
            raise LaunchConfigError(
                "grid",
                launch.grid,
                f"{task_blocks} task blocks are over {_MOST_TASK_BLOCKS}; split the work",
                limit=_MOST_TASK_BLOCKS,
            )
        if len(launch.parameters) != kernel.parameter_bytes:
            raise InvalidArgument(
                f"{kernel.name} has {kernel.parameter_bytes} bytes of parameters, not "
                f"{len(launch.parameters)}"
            )
        shape = (launch.kernel, launch.block, launch.shared)
        measured = module.measured.get((*shape, killable and kernel.info.killable))
        if measured is None:  # the variant with kill polls is compiled when the job starts
            measured = module.measured.get((*shape, False))
        if measured is None:
            raise UnknownName(
                f"{kernel.name} was not measured for blocks of {launch.block} with {launch.shared} "
                "bytes of dynamic shared memory; send Measure first"
            )
        info = self._devices[device].info
        if kernel.info.cooperative and info is not None:
            LaunchConfigError.check_together(launch.grid, measured[0], info.sms)
        return module, kernel, *measured


def refuse(session: Session, number: int, error: GpudError) -> None:
    """Tell a client that its job ``number`` was refused.

    Raises:
        GpudError: ``error`` itself, if ``number`` is that of a job that the scheduler has accepted.
    """
    if number in session.jobs:
        raise error
    if number == session.last_number + 1:
        session.last_number = number
    session.send(Finished(number, "failed", error.to_wire(), b"", {}, (0, 0)))


@lru_cache(maxsize=1024)
def _fraction(amount: tuple[int, int] | None) -> Fraction | None:
    return None if amount is None else Fraction(*amount)
