"""A job on its device, and what the front is told of it.

Problem: blocks leave on several SM threads at once while the front's commands resize the job; the
front needs the newest state, in order, with as few messages as possible and nothing after
`JobEnded`.

Approach: whoever changes something calls `RunningJob.report`. One thread at a time reads the state
and sends it; a call that comes meanwhile leaves a mark, and the sender goes round once more. So
there is never more than one report that has not been sent, and it always says what is true now.

Properties:
* each resize has a `BlocksLeft` with its epoch, which says what the job holds then or later, unless
  the job has ended;
* epochs never go back; `JobEnded` is sent once, and nothing of the job after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpud.device.host.messages import BlocksLeft, JobEnded, StartJob
from gpud.device.interface import OUTPUT_LIMIT_BYTES
from gpud.errors import DeviceLost, GpudError, InternalError

__all__ = ["RunningJob", "ended_at_once"]


class RunningJob:
    """The host's side of one job.

    Args:
        command: what started it.
        send: sends an event to the front; called from any thread.
        forget: called with this when `JobEnded` is about to be sent.
        lost: called when the device is found to be lost, or its state cannot be read.
    """

    def __init__(
        self,
        command: StartJob,
        send: Callable[[Any], None],
        forget: Callable[[RunningJob], None],
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.number = command.job
        self.session = command.session
        self.gang: Any = None
        self._epoch = command.epoch
        self._slices = command.slices
        self._send = send
        self._forget = forget
        self._lost = lost
        self._resizing = True
        self._over = False
        self._sent = False
        self._told_epoch = command.epoch
        self._ending = False
        self._error: GpudError | None = None
        self._sender = threading.Lock()
        self._again = False

    def start(self, gang: Any) -> None:
        """Let ``gang`` run; its callbacks are `on_left` and `on_over`."""
        self.gang = gang
        try:
            gang.resize(self._slices)
        except BaseException:
            self._sent = True  # the caller says what has become of the job
            raise
        self._resizing = False
        if self._again:
            self.report()

    def resize(self, slices: int, epoch: int) -> None:
        """Carry out a `ResizeJob`. A job that is ending stays at nothing."""
        self._resizing = True
        try:
            if not self._ending:
                self.gang.resize(slices)
        finally:
            self._epoch = epoch
            self._resizing = False
            self.report(wait=True)  # each resize has a report of its own

    def end(self, error: GpudError | None = None) -> None:
        """Carry out an `EndJob`; or end a job that cannot go on, for the reason given."""
        self._error = self._error or error
        self._ending = True
        self.gang.end()

    def kill(self) -> None:
        """Carry out a `KillJob`."""
        self._ending = True
        self.gang.kill()

    def on_left(self) -> None:
        """Persistent blocks of the job have left. On a thread of the device."""
        self._again = True
        if not self._resizing:  # else that thread reports, when it knows what it has done
            self._report_or_end()

    def on_over(self) -> None:
        """Nothing more of the job will run. On a thread of the device."""
        self._over = True
        self._report_or_end()

    def _report_or_end(self) -> None:
        """`report` on a thread of the device, where nobody hears of what fails."""
        try:
            self.report()
        except Exception as error:
            if self._lost is None:
                raise
            self._lost(error)

    def report(self, *, wait: bool = False) -> None:
        """Tell the front how the job stands, or have the thread that does it now do it again."""
        while True:
            self._again = True
            if not self._sender.acquire(blocking=wait):
                return
            try:
                while self._again and not self._sent:
                    self._again = False
                    self._tell()
            finally:
                self._sender.release()
            # Between the last look at the mark and the release somebody may have left one.
            if not self._again or self._sent:
                return

    def _tell(self) -> None:
        if self._over:
            self._sent = True
            self._forget(self)
            try:
                self._send(self._ended())
            except DeviceLost:
                raise
            except Exception as error:  # noqa: BLE001 - the front must hear of the end in any case
                what = InternalError(f"the job's end cannot be told: {error}", stage="device host")
                self._send(ended_at_once(self.number, what.to_wire()))
            return
        epoch = self._epoch
        held, exhausted = self.gang.held, self.gang.exhausted
        if self._resizing:
            return  # what was read may be half of it; the resizing thread reports
        if epoch != self._told_epoch or held or not exhausted:
            self._told_epoch = epoch
            self._send(BlocksLeft(self.number, epoch, held, exhausted))
        # Else its last blocks have left, and JobEnded follows.

    def _ended(self) -> JobEnded:
        gang = self.gang
        error: GpudError | None = gang.error or self._error
        if isinstance(error, DeviceLost):
            raise error  # not of this job alone
        _, done, total = gang.progress
        return JobEnded(
            self.number,
            None if error is None else error.to_wire(),
            done == total,
            gang.output[:OUTPUT_LIMIT_BYTES],
            done,
            total,
            gang.first_block_ns,
            gang.release_ns,
        )


def ended_at_once(number: int, error: dict[str, Any]) -> JobEnded:
    """The end of a job of which nothing more is known; ``error`` is `GpudError.to_wire`'s."""
    return JobEnded(number, error, False, b"", 0, 0, 0, 0)
