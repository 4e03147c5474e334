"""A job on its device, and the events about it that the front receives.

Problem: blocks leave on several SM threads at once while the front's commands resize the job; the
front needs the newest state, in order, with as few messages as possible and nothing after
`RunEnded`.

Approach: every change of the job's state is followed by a call of `RunningJob.report`. One thread
at a time reads the state and sends it; a call made meanwhile sets a flag, and the sending thread
reads the state again. So at most one report is pending, and it always holds the current state.

Properties:
* each resize has a `SlicesHeld` with its epoch, which says what the job holds then or later, unless
  the job has ended;
* slices that a lane took stay away until the front says that it has booked them;
* epochs never decrease; `RunEnded` is sent once, and nothing about the job after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gpud.device.host.messages import RunEnded, SlicesHeld, StartLane, StartRun
from gpud.device.interface import OUTPUT_LIMIT_BYTES
from gpud.errors import DeviceLost, GpudError, InternalError

__all__ = ["RunningJob", "ended_at_once"]


class RunningJob:
    """One job of a device host: executes its commands, reports its state.

    Args:
        command: the command that started it.
        send: sends an event to the front; called from any thread.
        forget: called with this object just before `RunEnded` is sent.
        lost: called when the device is found to be lost, or the job's state cannot be read.
    """

    def __init__(
        self,
        command: StartRun | StartLane,
        send: Callable[[Any], None],
        forget: Callable[[RunningJob], None],
        lost: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.number = command.job
        self.session = command.session
        self.run: Any = None
        self._epoch = command.epoch
        self._slices = command.slices
        self._quota = command.quota
        self._taken = 0
        self._send = send
        self._forget = forget
        self._lost = lost
        self._resizing = True
        self._over = False
        self._sent = False
        self._sent_epoch = command.epoch
        self._ending = False
        self._error: GpudError | None = None
        self._sizing = threading.RLock()
        self._sender = threading.Lock()
        self._changed = False

    def start(self, run: Any) -> None:
        """Start ``run``, whose callbacks are `on_left` and `on_over`."""
        self.run = run
        try:
            if self._quota:
                run.limit(self._quota)
            run.resize(self._slices)
        except BaseException:
            self._sent = True  # the caller reports the failure
            raise
        self._resizing = False
        if self._changed:
            self.report()

    def resize(self, slices: int, epoch: int, booked: int = 0, quota: int = 0) -> None:
        """Execute a `ResizeJob`. A job that is ending stays at 0 slices.

        What lanes have taken, and the front has not booked, is taken from any size.
        """
        self._resizing = True
        try:
            with self._sizing:
                self._slices = slices
                self._taken -= booked
                if quota != self._quota:
                    self._quota = quota
                    self.run.limit(quota)
                if not self._ending:
                    self.run.resize(max(0, slices - self._taken))
        finally:
            self._epoch = epoch
            self._resizing = False
            self.report(wait=True)  # each resize has its own report

    def take(self, slices: int, before: int = 0) -> int:
        """Take slices from the job for a lane; returns how many it had to give. On any thread.

        Args:
            slices: how many.
            before: so many of them were taken from its run already.
        """
        with self._sizing:
            if before:
                self.run.forget_taken(before)
            gives = 0 if self._ending or self._over else min(slices, self._slices - self._taken)
            if gives <= 0:
                return 0
            self._taken += gives
            self.run.resize(self._slices - self._taken)
            return gives

    def end(self, error: GpudError | None = None) -> None:
        """Execute an `EndJob`; or end a job that cannot go on, with the error given."""
        self._error = self._error or error
        self._ending = True
        self.run.end()

    def kill(self) -> None:
        """Execute a `KillJob`."""
        self._ending = True
        self.run.kill()

    def on_left(self) -> None:
        """Report that persistent blocks of the job have left. On a thread of the device."""
        self._changed = True
        if not self._resizing:  # else the resizing thread reports when it has finished
            self._report_or_end()

    def on_over(self) -> None:
        """Report the end: nothing more of the job will run. On a thread of the device."""
        self._over = True
        self._report_or_end()

    def _report_or_end(self) -> None:
        """Do `report` on a thread of the device, which cannot handle a failure itself."""
        try:
            self.report()
        except Exception as error:
            if self._lost is None:
                raise
            self._lost(error)

    def report(self, *, wait: bool = False) -> None:
        """Send the job's state to the front, or have the thread that is sending it send it again.

        Args:
            wait: wait for that thread instead.
        """
        while True:
            self._changed = True
            if not self._sender.acquire(blocking=wait):
                return
            try:
                while self._changed and not self._sent:
                    self._changed = False
                    self._send_state()
            finally:
                self._sender.release()
            # Another thread may have set the flag between the last check and the release.
            if not self._changed or self._sent:
                return

    def _send_state(self) -> None:
        if self._over:
            self._sent = True
            self._forget(self)
            try:
                self._send(self._ended())
            except DeviceLost:
                raise
            except Exception as error:  # noqa: BLE001 - the front needs a RunEnded in any case
                what = InternalError(f"the job's end cannot be sent: {error}", stage="device host")
                self._send(ended_at_once(self.number, what.to_wire()))
            return
        epoch = self._epoch
        held, exhausted = self.run.held, self.run.exhausted
        if self._resizing:
            return  # the values may be from before and after it; the resizing thread reports
        if epoch != self._sent_epoch or held or not exhausted:
            self._sent_epoch = epoch
            self._send(SlicesHeld(self.number, epoch, held, exhausted))
        # Else its last blocks have left, and RunEnded follows.

    def _ended(self) -> RunEnded:
        run = self.run
        error: GpudError | None = run.error or self._error
        if isinstance(error, DeviceLost):
            raise error  # it concerns the whole device
        _, done, total = run.progress
        return RunEnded(
            self.number,
            None if error is None else error.to_wire(),
            done == total,
            run.output[:OUTPUT_LIMIT_BYTES],
            done,
            total,
            run.first_block_ns,
            run.release_ns,
            dict(run.ways) or None,
        )


def ended_at_once(number: int, error: dict[str, Any]) -> RunEnded:
    """Return the `RunEnded` of a job that did not start; ``error`` is from `GpudError.to_wire`."""
    return RunEnded(number, error, False, b"", 0, 0, 0, 0)
