"""Resize running jobs at random and check that every task block ran exactly once.

Problem: shrinking, growing, stopping and resuming must never lose a task block, run one twice or
hang, whatever the moment. Approach: several jobs of different cases run at once on one device; a
seeded generator picks a job and an event again and again. Every kernel counts its own task blocks.

Terms: an *event* is one ``Run.resize`` of a job that has started and is not done: *shrink* and
*grow* to another number of blocks, *stop* to none, *resume* from none. A *run* is one case from its
first launch to its results.

Checked:
* after each run: NumPy's values, and every counter exactly right;
* at each event: claimed and done never go back, done <= claimed <= total;
* after a stop each block that was there claims once more at most, and once in advance;
* when a stopped job has come to rest: no block is live, claimed equals done, and exactly the done
  task blocks have counted themselves;
* each run ends within a time limit once it is left alone.

The order of events is that of the seed; how far each job is when they come is the machine's.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from gpud.device.interface import Device
from gpud.errors import GpudError
from tests.conformance.runner import LoadedCase, Run, problems_of
from tests.support.resizable_run import ResizableRun

LIMIT_S = 60.0
_SEEDS = 3
"""Different arguments for each case: few, because exact references are slow to compute."""
_PATIENCE = 400
"""Turns of the CPU that one pause between events may give away."""


@dataclass
class Report:
    """The result of a stress run.

    Attributes:
        events: by kind; giving a job its first blocks is none.
        runs: finished runs by (case, form).
        task_blocks: how many ran, all runs together.
        rests: how often a stopped job was seen at rest and checked.
        problems: sentences; empty if all was right.
        seconds: wall time.
    """

    events: Counter[str] = field(default_factory=Counter)
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    task_blocks: int = 0
    rests: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


def stress(
    device: Device,
    cases: Sequence[LoadedCase],
    events: int,
    *,
    seed: int = 0,
    jobs: int = 3,
    stop_at_problem: bool = True,
) -> Report:
    """Run ``cases`` again and again under random events until there were ``events`` of them.

    Args:
        device: where the cases are loaded.
        cases: in persistent and sliced form, in the order in which they take their turns.
        events: at least so many; the runs under way then are finished.
        seed: of the events and of the cases' arguments.
        jobs: how many run at once.
        stop_at_problem: return at the first problem.

    Raises:
        ValueError: a case is in a form that cannot be resized.
    """
    fixed = [one.case.name for one in cases if one.form not in ("persistent", "sliced")]
    if fixed:
        raise ValueError(f"these cannot be resized while they run: {', '.join(fixed)}")
    rng = random.Random(seed)
    report = Report()
    began = time.monotonic()
    waiting = _turns(cases, seed)
    gives_back = bool(getattr(getattr(device, "variants", None), "returned_claims", False))
    active: list[_Active] = []
    while active or report.events.total() < events:
        while len(active) < min(jobs, len(cases)) and report.events.total() < events:
            loaded, number = next(waiting)
            if any(one.loaded is loaded for one in active):
                break
            active.append(_Active(loaded, number, rng, gives_back=gives_back))
        one = rng.choice(active)
        one.step(report, leave_alone=report.events.total() >= events)
        if one.finished:
            active.remove(one)
        if report.problems and stop_at_problem:
            _let_end(active)
            break
    report.seconds = time.monotonic() - began
    return report


def _turns(cases: Sequence[LoadedCase], seed: int) -> Iterator[tuple[LoadedCase, int]]:
    for turn in count():
        for loaded in cases:
            yield loaded, seed + turn % _SEEDS


def _let_end(active: Sequence[_Active]) -> None:
    """Give jobs that still run their blocks back, so that no kernel outlives its memory."""
    for one in active:
        one.job.resize(4)
        one.job.wait(LIMIT_S)


class _Active:
    """A run under way and the job that is its current launch."""

    def __init__(
        self, loaded: LoadedCase, seed: int, rng: random.Random, *, gives_back: bool
    ) -> None:
        self.gives_back = gives_back  # claims of released blocks, which nobody has run yet
        self.loaded = loaded
        self.rng = rng
        self.seed = seed
        self.run: Run = loaded.start(seed)
        self.job: ResizableRun = self.run.launch()
        self.finished = False
        self._progress = (0, 0)
        self._deadline = time.monotonic() + LIMIT_S
        self._before = 0  # task blocks of earlier launches of this run
        self._started = False
        self._most: int | None = None  # what a stopped job may have claimed at most

    def step(self, report: Report, *, leave_alone: bool) -> None:
        """One event, or the end of a launch, or of the run."""
        if self.job.done:
            self._launch_ended(report)
        elif time.monotonic() > self._deadline:
            claimed, done, total = self.job.progress
            self._problem(
                report,
                f"no end after {LIMIT_S:g} s: {claimed} claimed and {done} done of {total}, "
                f"{self.job.slices} blocks allotted, {self.job.held} live",
            )
            self.finished = True
        elif leave_alone:
            if self.job.slices == 0:
                self._resize(report, self.rng.randint(1, 8))
            os.sched_yield()
        else:
            self._event(report)

    def _event(self, report: Report) -> None:
        self._check_progress(report)
        now = self.job.slices
        kind = self.rng.random()
        if now == 0:
            if kind < 0.2:
                self._check_rest(report)
            target = self.rng.choice((1, 1, 1, 2, 2, 3, 4, 8))
        elif kind < 0.3 or (kind < 0.65 and now == 1):
            target = 0
        elif kind < 0.65:
            target = self.rng.randint(1, now - 1)
        else:
            target = now + self.rng.choice((1, 1, 1, 2, 3, 30))
        self._resize(report, target)
        self._pause()

    def _resize(self, report: Report, target: int) -> None:
        now = self.job.slices
        kind = "resume" if now == 0 else "grow" if target > now else "shrink" if target else "stop"
        self.job.resize(target)
        if self._started:
            report.events[kind] += 1
        self._started = True
        # The order matters: a block may claim between the two, but not leave and claim.
        live = self.job.held
        most = live * self.loaded.claims.most
        self._most = self.job.progress[0] + most if target == 0 else None

    def _pause(self) -> None:
        """Let the job come some task blocks further, or not at all."""
        if self.rng.random() < 0.8:
            return
        goal = self.job.progress[1] + self.rng.choice((1, 1, 2, 3))
        for _ in range(self.rng.randrange(_PATIENCE)):
            if self.job.done or self.job.progress[1] >= goal:
                return
            os.sched_yield()

    def _check_progress(self, report: Report) -> None:
        claimed, done, total = self.job.progress
        if not (self._progress[0] <= claimed <= total and self._progress[1] <= done <= claimed):
            self._problem(report, f"progress went from {self._progress} to {(claimed, done)}")
        if self._most is not None and claimed > self._most:
            self._problem(report, f"claimed {claimed} after a stop that allowed {self._most}")
        self._progress = (claimed, done)

    def _check_rest(self, report: Report) -> None:
        """A stopped job: wait until its last block has left, then count what has run."""
        for _ in range(20 * _PATIENCE):
            if self.job.held == 0:
                break
            os.sched_yield()
        else:
            return  # its task blocks take long; nothing is wrong with that
        self._check_progress(report)
        claimed, done, _ = self.job.progress
        counted = int(self.run.counters.sum()) - self._before
        report.rests += 1
        if done != counted or not (claimed == done or (self.gives_back and claimed > done)):
            self._problem(report, f"at rest: {claimed} claimed, {done} done, {counted} counted")

    def _launch_ended(self, report: Report) -> None:
        try:
            self.job.result(0)
        except (GpudError, TimeoutError) as error:
            self._problem(report, f"{type(error).__name__}: {error}")
            self.finished = True
            return
        self._check_progress(report)
        self.run.ended(self.job)
        if self.job.progress != (self.job.total,) * 3:
            self._problem(report, f"ended with progress {self.job.progress}")
        self._before += self.job.total
        if self.run.launches_left:
            self._progress, self._most, self._started = (0, 0), None, False
            self.job = self.run.launch()
            return
        for problem in problems_of(self.run):
            self._problem(report, problem)
        report.runs[self.loaded.case.name, self.loaded.form] += 1
        report.task_blocks += int(np.sum(self.run.counters, dtype=np.int64))
        self.finished = True

    def _problem(self, report: Report, text: str) -> None:
        where = f"{self.loaded.case.name} ({self.loaded.form}, seed {self.seed})"
        report.problems.append(f"{where}: {text}")
