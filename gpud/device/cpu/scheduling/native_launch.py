"""One launch of a kernel that is not rewritten: what `CPUDevice.launch` returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from gpud.device.cpu.scheduling.run import CPURun
from gpud.device.cpu.scheduling.sequence import CPUSequence
from gpud.errors import GpudError

__all__ = ["NativeLaunch"]


class NativeLaunch:
    """A running grid; creating the object starts it.

    Args:
        new_run: `CPUDevice.new_run` of the device on which it runs.
        sequence: a sequence of one launch, of a kernel that is not rewritten.
        on_done: called once, on an SM's thread, when the last block has left.
        cleared: SMs on which none of its blocks may run.
    """

    def __init__(
        self,
        new_run: Callable[..., CPURun],
        sequence: CPUSequence,
        on_done: Callable[[NativeLaunch], None] | None,
        cleared: Collection[int] = (),
    ) -> None:
        self._name = sequence.launches[0].name
        self._on_done = on_done
        self._done = threading.Event()
        self._run = new_run(sequence, 0, on_left=lambda: None, on_over=self._over)
        if cleared:
            self._run.clear(cleared)
        self._run.resize(1)

    @property
    def active(self) -> int:
        """Number of blocks that are resident now."""
        return self._run.present

    @property
    def output(self) -> bytes:
        """What its blocks have printed so far."""
        return self._run.output

    @property
    def error(self) -> GpudError | None:
        """What it failed with, or ``None``."""
        return self._run.error

    def stop(self) -> None:
        """Start no further block; running ones go on to their end."""
        self._run.end()

    def kill(self) -> None:
        """Do `stop`, and have running blocks leave at their next kill poll."""
        self._run.kill()

    def _over(self) -> None:
        self._done.set()
        if self._on_done is not None:
            self._on_done(self)

    @property
    def done(self) -> bool:
        """Whether the last block has left."""
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the last block has left, at most ``timeout`` seconds; whether it has."""
        return self._done.wait(timeout)

    def result(self, timeout: float | None = None) -> None:
        """Do `wait`, then raise what the launch failed with.

        Raises:
            TimeoutError: it is still running after ``timeout`` seconds.
            JobError: a block trapped, failed an assertion or is deadlocked.
        """
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self._name} is still running after {timeout} s")
        if self._run.error is not None:
            raise self._run.error
