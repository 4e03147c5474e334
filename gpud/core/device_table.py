"""The table of devices: what follows for their jobs when one comes up, is lost, or is paused.

Problem: hosts crash, hang and are replaced. Each job on one must then either wait for the next
host, if it had not begun, or fail with the reason, and with the job to blame if that is known.

Approach: device records are made at a device's first report and stay for good. `DeviceTable.ready`
and `DeviceTable.failed` apply the reports, `DeviceTable.replace` asks for another host because of a
job that does not end.

Properties (of the same names in `gpud.core.scheduler`): once, gives_up.
"""

from __future__ import annotations

from gpud.core import commands as out
from gpud.core import events as ev
from gpud.core.admission import check_caps
from gpud.core.device import DeviceRecord
from gpud.core.job import Because, JobRecord
from gpud.core.job_table import JobTable
from gpud.core.lifecycles import DeviceInput, JobInput, JobState
from gpud.core.pause import PauseState
from gpud.core.policy import Policy
from gpud.core.settings import Settings
from gpud.core.sort_keys import preparation_key
from gpud.units import job_name

__all__ = ["DeviceTable"]


class DeviceTable:
    """The devices of one scheduler.

    Args:
        devices: the records by device index, which the job table has too; this adds to them.
        job_table: the jobs.
        policy: computes the sizes of jobs.
        settings: the scheduler's; assigned anew when they change.
    """

    def __init__(
        self,
        devices: dict[int, DeviceRecord],
        job_table: JobTable,
        policy: Policy,
        settings: Settings,
    ) -> None:
        self._devices = devices
        self._job_table = job_table
        self._jobs = job_table.jobs
        self._policy = policy
        self.settings = settings

    def ready(self, event: ev.DeviceReady) -> None:
        """Prepare a host that is up for the jobs that wait for it."""
        now_ns = self._job_table.now_ns
        device = self._devices.get(event.device)
        if device is None:
            device = self._devices[event.device] = DeviceRecord(
                event.device,
                self.settings,
                separates_online=self._policy.separates_online,
                counts_service=self._policy.counts_service,
                now_ns=now_ns,
            )
        device.step(DeviceInput.UP, now_ns)
        device.now_ns = now_ns
        device.name = event.name or device.name
        device.mark_ready(event.sms, self.settings.floor(event.sms), event.partitions)
        jobs = [job for job in self._jobs.values() if job.device == event.device]
        unprepared = [job for job in jobs if job.state is JobState.PREPARING]
        # Sizes depend on S, and what fitted before may not fit now.
        for job in jobs:
            if job.id not in self._jobs:  # it has failed with one before it in its stream
                continue
            user = self._job_table.sessions[job.session].user
            error = self._policy.size(job, device) or check_caps(job, user, device)
            if error is not None:
                self._job_table.finish(job, error)
        for job in sorted(unprepared, key=preparation_key):
            if job.state is JobState.PREPARING:
                self._job_table.prepare(job)

    def failed(self, event: ev.DeviceFailed) -> None:
        """Take notice that the device's host is lost, and with it what ran there."""
        device = self._devices.get(event.device)
        if device is None:
            return
        now_ns = self._job_table.now_ns
        finish = self._job_table.finish
        culprit, device.culprit = device.culprit, None
        device.now_ns = now_ns
        device.host_generation += 1
        device.step(DeviceInput.GIVE_UP if event.final else DeviceInput.FAIL, now_ns)
        preparing = [
            job
            for job in self._jobs.values()
            if job.device == event.device and job.state is JobState.PREPARING
        ]
        reason = event.reason
        if culprit is not None:
            reason = f"was replaced because job {job_name(culprit)} did not end when it was told to"
        elif event.culprit is not None:
            culprit = event.culprit
            reason = f"{reason}; job {job_name(culprit)} was the only one that ran on it"
        for job in list(device.jobs.values()):
            if job.state is JobState.ENDING and job.cause is None:  # a lane that was closed
                self._job_table.ended(job, JobInput.CLOSE)
            elif not job.started or (job.id in event.unstarted and job.cause is None):
                device.requeue(job)
            else:
                lost = device.lost_error(f"{reason}; submit the job again", culprit)
                finish(job, job.cause or lost)
        device.mark_lost()
        if event.final:
            for job in list(self._jobs.values()):
                if job.device == event.device and job.id in self._jobs:
                    finish(job, device.lost_error(f"{reason}, and is not started again"))
            return
        for job in preparing:
            # Preparing for this job may be what crashes the host, so the retries are limited.
            if job.preparations >= self.settings.max_preparations:
                times = f"{job.preparations} times while job {job.name} was being made ready on it"
                what = f"was lost {times}, the last time because it {reason}"
                finish(job, device.lost_error(what))

    def pause(self, event: ev.PauseRequested) -> None:
        """Start nothing more on a device, and with ``now`` have its jobs give up what they have."""
        device = self._devices.get(event.device)
        if device is None:
            return
        device.now_ns = self._job_table.now_ns
        at_ns = device.now_ns if device.pause is None else device.pause.at_ns
        by, since = event.by, event.since
        if device.pause is not None:
            by, since = device.pause.by, device.pause.since
        device.set_pause(PauseState(by, since, event.now, at_ns))
        if event.now and self._policy.resizes:
            with device.changing(Because.PAUSE):
                idle = [lane for lane in device.lending.values() if not lane.online]
                for job in [*device.sharing(), *idle]:
                    if job.live and job.slices:
                        device.resize(job, 0)

    def resume(self, event: ev.ResumeRequested) -> None:
        """Let a device go on."""
        device = self._devices.get(event.device)
        if device is not None and device.pause is not None:
            device.now_ns = self._job_table.now_ns
            device.set_pause(None)

    def replace(self, device: DeviceRecord, culprit: JobRecord) -> None:
        """Command another host for a device, because a job does not end."""
        device.step(DeviceInput.REPLACE, self._job_table.now_ns)
        device.culprit = culprit.id
        grace_s = self.settings.grace_ns / 1e9
        reason = f"job {culprit.name} did not end within {grace_s:g} s of being told to"
        self._job_table.out.append(out.ReplaceDevice(device.index, culprit.id, reason))
