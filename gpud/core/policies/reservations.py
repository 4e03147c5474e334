"""The contract: online jobs have their reservations at once, offline jobs share what is left.

Problem: an online job must start when it arrives, though the device is full of offline work that
should lose no more than is needed and get it back soon.

Approach: capacity is *allocated* by decision and *charged* while blocks hold it. An online job
takes what is not allocated; if that is too little, offline jobs are told to release the rest, which
is taken from them at once. Its blocks wait in the device's queue for theirs to leave. Offline jobs
take only what nothing holds, so that their quotas hold on the device and not only in the books.

Rules:
    1. Waiting online jobs start in the order of deadline, then arrival. The first one holds those
       behind it, even if they would fit, so that a large one is not passed over for ever.
    2. An online job starts if reservations leave room for its own, in slices, beside the floor of
       the offline jobs, and what is missing can be released.
    3. Room that nothing holds goes to offline jobs: those that run, and those that wait, in order
       of arrival as far as they fit. It is shared by weighted max-min fairness.
    4. An offline job that waits and does not fit holds those behind it. If what it lacks is on its
       way (blocks that were told to leave, jobs that end), the room is kept for it; else jobs that
       run grow meanwhile. So a job with large slices, or one in form whole, is never starved by
       small ones that come later.
    5. An exclusive job has whole SMs of its own, as the device can set them apart. They are all its
       own until it has ended, and it is not resized.
    6. A job in form whole starts with all that it needs and keeps it. No such offline job is
       started while an online job waits.

Properties: those of `gpud.core.validate`.
"""

from __future__ import annotations

from itertools import islice
from typing import ClassVar

from gpud.core import admission
from gpud.core.board import Board
from gpud.core.capacity import to_fraction
from gpud.core.job import JobRecord
from gpud.core.order import level_key
from gpud.core.policies import victims
from gpud.core.policies.growth import Taker, fill
from gpud.errors import AdmissionError, GpudError, InvalidArgument

__all__ = ["Reservations"]


class Reservations:
    """See the module."""

    name: ClassVar[str] = "reservations"
    online_apart: ClassVar[bool] = True
    keeps_reservations: ClassVar[bool] = True

    def size(self, job: JobRecord, board: Board) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.size`."""
        assert board.sms is not None, "sizes are worked out for a device that was up"
        return admission.size(job, board.sms, board.floor_sms, board.partitions)

    def resized(self, board: Board, job: JobRecord) -> GpudError | None:
        """As `gpud.core.policies.interface.Policy.resized`."""
        if job.whole:
            return InvalidArgument(
                f"job {job.name} runs a kernel in form whole, which cannot be resized once it runs"
            )
        more = job.most - job.slices
        if more < 0:
            board.give(job, job.most)
        elif not job.online or job.exhausted:
            board.update(job)  # an offline job grows when room is shared out
        elif more == 0 or self.make_room(board, more * job.slice):
            board.give(job, job.most)
        else:
            return _too_little(board, job)
        return None

    def settle(self, board: Board) -> None:
        """As `gpud.core.policies.interface.Policy.settle`."""
        waiting = board.waiting_online
        while waiting:
            job = waiting[0][2]
            if not board.can_part(job) or not self.make_room(board, job.least * job.slice):
                break
            board.start(job, job.least)
        while self.share_out(board):
            pass

    # -- online

    def make_room(self, board: Board, amount: int) -> bool:
        """Sees to it that ``amount`` is not allocated, for an online job; whether that is so.

        Changes nothing if it cannot be.
        """
        if amount > _online_room(board):
            return False
        shortfall = amount - board.free
        if shortfall <= 0:
            return True
        chosen = victims.choose(board.shrinkable, shortfall, _releasable(board))
        if chosen is None:
            return False
        for job, slices in chosen:
            board.give(job, slices)
        return True

    # -- offline

    def share_out(self, board: Board) -> bool:
        """Gives free room to offline jobs; whether another round could give more."""
        waiting = board.waiting
        if waiting and waiting[0][2].whole:
            self._start_whole(board)
        free = board.physically_free
        if free <= 0:
            return False
        growable = [queue for queue in board.growable.values() if queue]
        if not (waiting or growable) or self._keep(board, free):
            return False
        takers = _waiting(board, free)
        behind = len(takers) < len(waiting)
        for queue in growable:
            takers += [entry[2] for entry in islice(queue, free // queue[0][2].slice)]
        if len(takers) == 1:
            only = takers[0]
            _give(board, only, min(_room(only), free // only.slice))
        elif takers:
            takers.sort(key=level_key)
            rows = [
                Taker(job.slices * job.slice, job.slice, _room(job), job.weight) for job in takers
            ]
            for job, slices in zip(takers, fill(free, rows), strict=True):
                _give(board, job, slices)
        return behind and bool(takers) and board.physically_free > 0

    def _start_whole(self, board: Board) -> None:
        waiting = board.waiting
        while waiting and waiting[0][2].whole and not board.waiting_online:
            job = waiting[0][2]
            if job.least * job.slice > board.physically_free:
                return
            board.start(job, job.least)

    def _keep(self, board: Board, free: int) -> bool:
        """Whether what is free is kept for the job that has waited longest with nothing."""
        first: JobRecord | None = None
        if board.waiting and not (board.waiting[0][2].whole and board.waiting_online):
            first = board.waiting[0][2]
        for queue in board.growable.values():
            if queue and not queue[0][2].slices:
                paused = queue[0][2]
                if first is None or paused.order < first.order:
                    first = paused
        if first is None:
            return False
        needed = (1 if first.started else first.least) * first.slice
        return free < needed <= free + board.coming


def _room(job: JobRecord) -> int:
    return job.growth_room if job.started else job.most


def _give(board: Board, job: JobRecord, slices: int) -> None:
    if slices and job.started:
        board.give(job, job.slices + slices)
    elif slices:
        board.start(job, slices)


def _waiting(board: Board, free: int) -> list[JobRecord]:
    """The jobs that wait first, as far as a slice of each fits and none is in form whole."""
    found = []
    for _, _, job in board.waiting:
        free -= job.slice
        if free < 0 or job.whole:
            break
        found.append(job)
    return found


def _releasable(board: Board) -> int:
    """The amount that offline jobs can be told to release."""
    if not board.floor:
        return board.releasable
    offline = board.allocated - board.online_allocated
    return max(0, min(board.releasable, offline - board.floor))


def _online_room(board: Board) -> int:
    """The amount that online jobs can have more."""
    floor = board.floor if board.working else 0
    reservable = board.capacity - floor - board.online_allocated
    return min(reservable, board.free + _releasable(board))


def _too_little(board: Board, job: JobRecord) -> AdmissionError:
    most = to_fraction((job.alloc + max(0, _online_room(board))) // job.slice * job.slice)
    return AdmissionError(
        f"job {job.name} has {job.allocation} SMs, and a reservation of {job.reservation} is more "
        f"than other jobs leave to it now; ask for at most {most}, or wait until one has ended",
        requested=job.reservation,
        capacity=most,
    )
