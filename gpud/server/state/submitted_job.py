"""The front's record of each job: its sequence, owner, progress, result and statistics.

The scheduler keeps a job's shape and shares (`gpud.core.job`); this is the rest.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Protocol

from gpud.core.capacity import SCALE
from gpud.core.job import JobRecord, ShareChange
from gpud.device.host import messages as hm
from gpud.errors import GpudError
from gpud.server.state.modules import Module
from gpud.server.state.sequence import ValidatedSequence
from gpud.units import JobId, SessionId, job_name

__all__ = ["JobOwner", "SubmittedJob", "exact"]


_NO_TERMS = (None, None, 1)


class JobOwner(Protocol):
    """Whoever has submitted a job; implemented by `gpud.server.state.session.Session`."""

    number: SessionId
    program: str

    @property
    def uid(self) -> int:
        """The user."""

    @property
    def account(self) -> int:
        """The user for whom the job is counted."""

    def job_begins(self, job: SubmittedJob) -> None:
        """Take notice that a job is about to be sent to its device."""

    def lane_opened(self, lane: int, size: int, descriptor: int) -> None:
        """Take the ring of a lane."""

    def launch_ended(self, lane: int, launch: hm.LaneLaunchEnded, error: GpudError | None) -> None:
        """Take notice of how a launch of a lane has ended."""

    def job_finished(self, job: SubmittedJob, state: str, error: GpudError | None) -> None:
        """Take notice that a job has ended; called once for each."""


class SubmittedJob:
    """One job, from its submission until it leaves the history.

    Attributes:
        record: the scheduler's record until the job has ended; None if it was refused.
        state: how it ended; None before.
        error: the error it failed with on its device.
        memory_bytes: of its session's arrays on its device when it ended; None before.
        started_ns: when it was sent to its device, monotonic; None: it was not.
        lane: whether it is a lane, which stays open and has no launches of its own.
        sites: the modules of a lane's launch sites, by their numbers.
        follows: how many jobs it must wait for.
        sequence: the launches; only until the job has ended.
        packed: the launches as its device gets them; likewise.
        owner: is notified of its end; only until then.
        changes: of its share, the latest; once it has ended.
        progress: task blocks done, and their total, as last reported.
        progressed_ns: when the first number was first seen to be what it is; None: it is not known.
    """

    __slots__ = (
        "_stats", "_terms", "changes", "device", "ended_ns", "error", "first_block_ns", "follows",
        "id", "kernels", "lane", "launches", "memory_bytes", "number", "occupancy", "online",
        "output", "owner", "packed", "program", "progress", "progressed_ns", "record", "release_ns",
        "resizes", "sequence", "session", "sites", "started_ns", "state", "submitted_ns", "uid",
        "ways",
    )  # fmt: skip

    def __init__(
        self,
        job: JobId,
        number: int,
        owner: JobOwner,
        device: int,
        sequence: ValidatedSequence,
        now_ns: int,
        packed: bytes = b"",
    ) -> None:
        self.id = job
        self.number = number
        self.owner = owner
        self.session = owner.number
        self.uid = owner.uid
        self.program = owner.program
        self.device = device
        self.sequence = sequence
        self.packed = packed
        self.kernels = sequence.kernels
        self.launches = len(sequence.shapes)
        self.occupancy = sequence.occupancy
        self.submitted_ns = now_ns
        self.started_ns: int | None = None
        self.record: JobRecord | None = None
        self.online = False
        self.lane = False
        self.sites: dict[int, Module] = {}
        self.follows = 0
        self.error: GpudError | None = None
        self.output = b""
        self.progress = (0, sequence.total)
        self.progressed_ns: int | None = None
        self.first_block_ns = 0
        self.release_ns = 0
        self.ways: dict[str, Any] | None = None
        self.resizes = 0
        self.state: str | None = None
        self.ended_ns: int | None = None
        self.memory_bytes: int | None = None
        self._stats: dict[str, Any] | None = None
        self.changes: tuple[ShareChange, ...] = ()
        self._terms: tuple[Fraction | None, Fraction | None, int] = _NO_TERMS

    @property
    def allocation(self) -> Fraction:
        """Its current allocation in CapSM."""
        return Fraction(0) if self.record is None else self.record.allocation

    @property
    def present_state(self) -> str:
        """The state that is shown to people; a lane that runs is idle while nothing comes."""
        record = self.record
        if self.state is not None or record is None:
            return self.state or "waiting"
        return "idle" if record.idle_epoch and record.live else record.state.value

    def end(
        self,
        state: str,
        error: GpudError | None,
        now_ns: int,
        stats: dict[str, Any],
        memory_bytes: int,
    ) -> None:
        """Mark it as ended, with its final ``stats``; drop what the history does not need."""
        record = self.record
        if record is not None:
            self._terms = (record.reservation, record.quota, record.submission.weight)
            self.changes = tuple(record.changes)
        self.state, self.error, self.ended_ns, self._stats = state, error, now_ns, stats
        self.memory_bytes = memory_bytes
        self.record = None
        self.output = b""
        del self.sequence, self.packed, self.owner

    def stats(self, now_ns: int) -> dict[str, Any]:
        """Return the fields of `gpud.wire.messages.Finished`; final once the job has ended."""
        if self._stats is not None:
            return self._stats
        started_ns, record = self.started_ns, self.record
        if started_ns is None:
            queued_s, run_s = (now_ns - self.submitted_ns) / 1e9, None
        else:
            queued_s = (started_ns - self.submitted_ns) / 1e9
            run_s = (now_ns - started_ns) / 1e9
        capsm_s = None
        if record is not None:
            since_ns = max(0, now_ns - record.counted_to_ns)
            capsm_s = (record.capsm_scaled_ns + record.alloc * since_ns) / SCALE / 1e9
        return {
            "queued_s": queued_s,
            "first_block_s": self.first_block_ns / 1e9 if self.first_block_ns else None,
            "run_s": run_s,
            "release_s": self.release_ns / 1e9 if self.release_ns else None,
            "resizes": self.resizes,
            "capsm_seconds": capsm_s,
            "queued_as": self.ways,
        }

    def row(self, now_ns: int, user: str, epoch_ns: int) -> dict[str, Any]:
        """Return the job as a row of the topics "jobs" and "history"."""
        allocation = self.allocation
        ended_ns = self.ended_ns
        reservation, quota, weight = self._terms
        record = self.record
        if record is not None:
            reservation, quota, weight = record.reservation, record.quota, record.submission.weight
        return {
            "id": job_name(self.id),
            "session": self.session,
            "user": user,
            "uid": self.uid,
            "program": self.program,
            "kernels": list(self.kernels),
            "launches": self.launches,
            "state": self.present_state,
            "kind": "online" if self.online else "offline",
            "reservation": exact(reservation),
            "quota": exact(quota),
            "weight": weight,
            "allocation": str(allocation),
            "allocation_sms": float(allocation),
            "occupancy": self.occupancy,
            "device": self.device,
            "progress": list(self.progress),
            "memory_bytes": self.memory_bytes,
            "submitted_at_s": (self.submitted_ns + epoch_ns) / 1e9,
            "ended_at_s": None if ended_ns is None else (ended_ns + epoch_ns) / 1e9,
            "error": None if self.error is None else self.error.to_wire(),
            **self.stats(now_ns),
        }


def exact(amount: Fraction | None) -> str | None:
    """Return an amount of CapSM as exact text, such as "7/2"; None for None."""
    return None if amount is None else str(amount)
