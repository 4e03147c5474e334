"""Offline clients: each runs jobs of one kernel, one after the other, and checks every result.

Problem: keep the device full, know at any time how much work was done, and detect a single wrong
byte in any job's result.

Approach: a client with a connection and a thread of its own for each kernel. The first result is
compared with NumPy or a closed form, every later one byte for byte with the first: a job's result
does not depend on how its share changed while it ran. Before each job its output is overwritten
with a pattern, so that the output of a task block that did not run is not that of the job before.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

import gpud_client as gc
from gpud.demo.offline_kernels import Array, OfflineKernel, Problem, runs_wrong

__all__ = ["OfflineClient", "Sized", "size_kernel"]

_PATTERN = 0xA5
_TRIAL_S = 0.04  # duration of a trial run on the whole device, to measure a task block
_RESULT_S = 60.0


@dataclass(frozen=True)
class Sized:
    """A kernel with the rounds and task blocks chosen for a device.

    Attributes:
        block_s: measured duration of a task block while its SM is full, in seconds.
        work_s: SM time of a task block; shorter than ``block_s`` if blocks of an SM take turns.
    """

    kind: OfflineKernel
    rounds: int
    task_blocks: int
    block_s: float
    work_s: float


def size_kernel(gpu: gc.Session, kind: OfflineKernel, block_s: float, job_s: float) -> Sized:
    """Chooses the rounds so that a task block takes about ``block_s`` seconds on an idle device.

    Args:
        gpu: a connection to an otherwise unused daemon.
        kind: the kernel.
        block_s: target time from a task block's claim to its end while its SM is full.
        job_s: target duration of a job with the whole device.
    """
    kernel = gpu.kernel(kind.source, kind.name)
    turns = kernel.occupancy(kind.block) if kind.take_turns else 1
    sms = gpu.device.sms
    least = 16 * sms * turns
    rounds, blocks, work_s = kind.least_rounds, 2 * least, block_s
    for _ in range(5):
        problem = kind.make(blocks, rounds)
        arguments = _upload(gpu, problem)
        # The best of three: disturbances by other programs can only make a run longer.
        spent = min(_run_s(kernel, kind, problem, arguments) for _ in range(3))
        work_s = spent * sms / problem.total
        better = max(kind.least_rounds, round(rounds * block_s / (work_s * turns)))
        if abs(better / rounds - 1) < 0.1 and (spent > _TRIAL_S / 2 or problem.total <= least):
            break
        rounds, blocks = better, max(least, round(_TRIAL_S * sms * turns / block_s))
    task_blocks = max(4 * sms * turns, round(job_s * sms / work_s))
    return Sized(kind, rounds, task_blocks, work_s * turns, work_s)


def _run_s(
    kernel: gc.Kernel, kind: OfflineKernel, problem: Problem, arguments: tuple[Any, ...]
) -> float:
    job = kernel.submit(problem.grid, kind.block, arguments)
    job.result(_RESULT_S)
    return float(job.stats["run_s"])


def _upload(gpu: gc.Session, problem: Problem) -> tuple[Any, ...]:
    return tuple(gpu.array(a) if isinstance(a, np.ndarray) else a for a in problem.arguments)


class OfflineClient:
    """Runs jobs of one kernel until it is stopped.

    Args:
        gpu: a connection that only this client uses.
        sized: the kernel with its sizes.
    """

    def __init__(self, gpu: gc.Session, sized: Sized) -> None:
        self.name = sized.kind.name
        self.problems: list[str] = []
        self._sized = sized
        self._problem = sized.kind.make(sized.task_blocks, sized.rounds)
        self._kernel = gpu.kernel(sized.kind.source, sized.kind.name)
        self._arguments = _upload(gpu, self._problem)
        self._first: Array | None = None
        self._ended = 0
        self._job: gc.Job | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def jobs(self) -> int:
        """The number of jobs that have ended, all of them checked."""
        return self._ended

    def task_blocks_done(self) -> int:
        """Return the task blocks done, including the running job's; asks the daemon."""
        with self._lock:
            running = self._job.progress[0] if self._job is not None else 0
            return self._ended * self._problem.total + running

    def start(self) -> None:
        """Start running jobs in a thread; return at once."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._work, name=f"offline {self.name}")
        self._thread.start()

    def stop(self) -> None:
        """Stop after the running job; return when that has ended and was checked."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        runs = self._arguments[-1].numpy()
        if problem := runs_wrong(runs, self._ended):
            self.problems.append(f"{self.name}: after {self._ended} jobs, {problem}")

    def run_once(self) -> None:
        """Run one job, from submission to the check of its result.

        Raises:
            gpud_client.GpudError: the job failed.
            TimeoutError: it did not end within a minute.
        """
        output = self._arguments[self._problem.output]
        output.numpy().view(np.uint8)[...] = _PATTERN
        kind = self._sized.kind
        job = self._kernel.submit(self._problem.grid, kind.block, self._arguments)
        with self._lock:
            self._job = job
        job.result(_RESULT_S)
        with self._lock:
            self._job = None
            self._ended += 1
        result = output.numpy()
        if self._first is None:
            problem = self._problem.wrong(result)
            self._first = result.copy()
        else:
            same = np.array_equal(result.view(np.uint8), self._first.view(np.uint8))
            problem = "" if same else "the bytes are not those of the first job"
        if problem:
            self.problems.append(f"{self.name}, job {self._ended}: {problem}")

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                self.run_once()
        except (gc.GpudError, TimeoutError) as error:
            self.problems.append(f"{self.name}: {type(error).__name__}: {error}")
