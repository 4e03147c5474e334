"""Runs as many of the tests and measurements on a GPU as fit into some minutes, and can continue.

    python bench/gpu/run_steps.py --minutes 9 [--only STEP ...] [--again] [--list] [--trial]

Problem: time on a GPU comes in pieces; a step that hangs, or a typo, must not cost a piece, and
results must not be lost at its end.

Approach: run the steps of `bench.gpu.steps` one after the other, each in a process group of its own
with a time limit. First every step has a turn that never had one; then interrupted steps continue,
with all the time that is left; then failed ones have another turn. A step that exceeds its limit is
interrupted, as with Ctrl-C, and killed if that does not help: results are written row by row, and a
later turn continues after the last row. The outcome of each step is in ``.gpu/steps.json``, its
output in ``.gpu/logs/``; ``bench/gpu/on_machine.sh`` brings both back with the results, and the
next call, here or on another machine with the same folder, continues from there.

While steps run, another process keeps a context on the GPU (``bench/gpu/keeper.py``).

``--trial``: settings so small that all of it runs over the model of the driver, which a test does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.record import need_gpu
from bench.gpu.steps import STEPS, Step

__all__ = ["StepRunner"]

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".gpu"
LEAST_S = 10.0
"""No step is begun with less time than this."""
_TRIAL_TIMES = 3
"""How much longer a step may take over the model than on a GPU."""

ENDING_S = 15.0
"""How long an interrupted step has to end."""

Outcome = Literal["passed", "failed", "cut"]


class StepRunner:
    """Runs steps and keeps their outcomes.

    Args:
        steps: in order.
        folder: for the state and the logs.
        seconds: for all steps, from now on.
        trial: whether to use the trial settings.

    Attributes:
        state: of each step that had a turn: its last ``outcome``, ``seconds`` and ``date``.
    """

    def __init__(
        self, steps: Sequence[Step], folder: Path, seconds: float, *, trial: bool = False
    ) -> None:
        self._steps = steps
        self._folder = folder
        self._ends = time.monotonic() + seconds
        self._trial = trial
        self._path = folder / "steps.json"
        self.state: dict[str, dict[str, Any]] = {}
        if self._path.exists():
            self.state = json.loads(self._path.read_text())

    @property
    def left_s(self) -> float:
        """Seconds that are left for a step, less the time to end it."""
        return self._ends - time.monotonic() - ENDING_S

    def forget(self, names: Sequence[str]) -> None:
        """Forget the outcomes of steps."""
        for name in names:
            self.state.pop(name, None)

    def turns(self) -> Iterator[tuple[Step, float]]:
        """Return the steps to run, each with its limit in seconds; the order is the module's."""
        had: set[str] = set()
        for wanted in (None, "cut", "failed"):
            for step in self._steps:
                last = self.state.get(step.name, {}).get("outcome")
                if last == wanted and (wanted != "failed" or step.name not in had):
                    if self.left_s < LEAST_S:
                        return
                    had.add(step.name)
                    first_s = step.first_s * (_TRIAL_TIMES if self._trial else 1)
                    yield step, min(self.left_s, first_s if wanted is None else self.left_s)

    def run(self) -> None:
        """Run steps while there is time."""
        for step, limit_s in self.turns():
            print(f"== {step.name}, for {limit_s:.0f} s at most", flush=True)
            began, outcome = time.monotonic(), "cut"
            try:
                outcome = self._run(step, limit_s)
            finally:  # also when we are interrupted
                seconds = round(time.monotonic() - began, 1)
                date = datetime.now(UTC).isoformat(timespec="seconds")
                self.state[step.name] = {"outcome": outcome, "seconds": seconds, "date": date}
                self._path.write_text(json.dumps(self.state, indent=1) + "\n")
                print(f"== {step.name}: {outcome} after {seconds} s", flush=True)

    def report(self) -> bool:
        """Print the outcome of each step; whether all have passed."""
        for step in self._steps:
            found = self.state.get(step.name, {"outcome": "not begun", "seconds": ""})
            print(f"{step.name:<28}{found['outcome']:<10}{found['seconds']:>8}")
        return all(self.state.get(step.name, {}).get("outcome") == "passed" for step in self._steps)

    def _run(self, step: Step, limit_s: float) -> Outcome:
        """Run a step once."""
        logs = self._folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            [sys.executable, *step.arguments(trial=self._trial)],
            cwd=ROOT, env={**os.environ, "PYTHONUNBUFFERED": "1", **step.variables()},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        reader = threading.Thread(target=_copied, args=(process, logs / f"{step.name}.log"))
        reader.start()
        outcome: Outcome
        try:
            outcome = "failed" if process.wait(limit_s) else "passed"
        except subprocess.TimeoutExpired:
            outcome = "cut"
        finally:
            _end(process)
            reader.join()
        return outcome


def _copied(process: subprocess.Popen[bytes], log: Path) -> None:
    """Copy a process's output to the log and to our own, as it comes."""
    assert process.stdout is not None
    with process.stdout as lines, log.open("ab") as file:
        for line in lines:
            file.write(line)
            file.flush()
            sys.stdout.buffer.write(line)
            sys.stdout.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a process that is still running, and kill its group in any case."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(ENDING_S / 2)
        except subprocess.TimeoutExpired:
            print("it does not end by itself", flush=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def kept_open() -> Iterator[None]:
    """Keep a process with a context on the GPU, so that it is not put down between steps."""
    keeper = subprocess.Popen(
        [sys.executable, str(ROOT / "bench" / "gpu" / "keeper.py")],
        cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        assert keeper.stdin is not None
        keeper.stdin.close()
        try:
            keeper.wait(ENDING_S / 2)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()


def main() -> int:
    """Run or list the steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=9.0, help="for all of it")
    parser.add_argument("--only", action="append", help="these steps, repeatable")
    parser.add_argument("--again", action="store_true", help="also what has passed before")
    parser.add_argument("--list", action="store_true", help="say what became of each, run nothing")
    parser.add_argument("--trial", action="store_true", help="small settings; see above")
    options = parser.parse_args()
    names = [step.name for step in STEPS]
    unknown = set(options.only or ()) - set(names)
    if unknown:
        parser.error(f"no such step: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    some = [
        step
        for step in STEPS
        if (not options.only or step.name in options.only)
        and not (options.trial and step.trial is None)
    ]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # steps would inherit that
        signal.signal(signal.SIGINT, signal.default_int_handler)
    FOLDER.mkdir(exist_ok=True)
    turns = StepRunner(some, FOLDER, 60 * options.minutes, trial=options.trial)
    if not options.list:
        need_gpu()
        if options.again:
            turns.forget([step.name for step in some])
        with kept_open():
            turns.run()
    return 0 if turns.report() else 1


if __name__ == "__main__":
    raise SystemExit(main())
