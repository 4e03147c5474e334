"""Host time of the CUDA device's launches and releases, over the model of the driver.

    python bench/bench_cuda_host.py [--rounds N]

Problem: what the host does in Python before a driver call or a store adds to every launch and every
release, and needs no GPU to be measured. Approach: the stepped model of the driver with the SMs of
an H100, on which blocks are where a test puts them; the time spent inside the model is subtracted,
and the calls are counted, those by native code, too, whose arguments the model converts on the
host's time. Times are of the thread's processor, so that others on the machine do not
count. How long the driver's own calls take on a GPU is not known here.

``start``     `Run.resize` of a prepared sequence of one launch, to its ``cuLaunchKernel``
``launch``    each further launch of a sequence, as they are queued; and until 12 are
``end``       from the launch's end, as the watcher sees it, to the end of the run
``release``   `Run.resize` of a run with all blocks resident: to the first word that changes, and
              in all

Prints a table, p50 of N rounds in microseconds, and writes bench/results/cuda_host.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.harness.machine import describe
from gpud.compiler.abi import control_words as cw
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.cuda.launch.launch_records import Slot
from gpud.device.interface import LaunchSpec
from tests.driver_model import SteppedDriver
from tests.unit.cuda.model_runs import PROGRAM

OUT = Path(__file__).parent / "results" / "cuda_host.json"
SMS, OCCUPANCY = 132, 2
TOTAL = 1 << 20
KERNELS = 12


class TimedDriver(SteppedDriver):
    """The model, with the time that is spent in it.

    Attributes:
        inside_ns: nanoseconds in calls.
        launched_ns: when the last kernel was launched that is not a gate.
    """

    inside_ns = 0
    launched_ns = 0

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        self.__dict__[name] = found  # looking it up takes longer than in the bindings
        return found

    def _called(self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        began = time.thread_time_ns()
        try:
            return super()._called(name, function, arguments)
        finally:
            if name in ("cuLaunchKernel", "cuGraphLaunch"):
                self.launched_ns = began - self.inside_ns
            self.inside_ns += time.thread_time_ns() - began

    def start(self, launch: Any, over: Callable[[], None]) -> None:
        """Have the blocks of a persistent kernel do all there is to do, at once."""
        if not launch.function.name.startswith("persistent"):
            super().start(launch, over)
            return
        job = self.u64(launch.values()[-1] + cw.JOB)
        if self.u32(job + cw.NEXT) < TOTAL:
            self.put(job + cw.NEXT, TOTAL)
            self.put(job + cw.DONE, TOTAL)
        over()


def main() -> int:
    """Measure, print and save the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    found: dict[str, dict[str, float]] = {}
    for way in ("graph", "native"):
        found[way] = measured(way, rounds)
        print(f"{way:<8}" + "  ".join(f"{k} {v:.1f}" for k, v in found[way].items()), flush=True)
    OUT.write_text(json.dumps({"machine": describe(), "rounds": rounds, **found}, indent=1) + "\n")
    return 0


def measured(way: str, rounds: int) -> dict[str, float]:
    """Return the medians of one way to queue launches, in microseconds, and calls."""
    fake = TimedDriver(sms=SMS, room=SMS * OCCUPANCY)
    fake.occupancy = OCCUPANCY
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    with CUDADevice(driver=Driver(fake), graphs=way == "graph", watch=False) as device:
        kernel = device.load(PROGRAM).kernel("persistent_a")
        spec = LaunchSpec(kernel, "persistent", (TOTAL, 1, 1), (32, 1, 1), bytes(8))
        one, several = device.prepare([spec]), device.prepare([spec] * KERNELS)
        for _ in range(rounds):
            single = _timed(fake, device, one, note, "start")
            _release(fake, device, single, note)
            fake.run()
            inside, began = fake.inside_ns, time.thread_time_ns()
            device.watcher.poll()
            note("end", (time.thread_time_ns() - began - (fake.inside_ns - inside)) / 1e3)
            assert single.over
            job = _timed(fake, device, several, note, "several")
            fake.run()
            device.watcher.poll()
            assert job.over
    middle = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "start_us": middle["start to launch"],
        "start_calls": middle["start calls"],
        "launch_us": (middle["several in all"] - middle["start in all"]) / (KERNELS - 1),
        "launches_queued_us": middle["several to last"],
        "launch_calls": (middle["several calls"] - middle["start calls"]) / (KERNELS - 1),
        "end_us": middle["end"],
        "release_first_word_us": middle["release to word"],
        "release_us": middle["release in all"],
        "release_calls": middle["release calls"],
    }


def _timed(
    fake: TimedDriver, device: CUDADevice, sequence: Any, note: Callable[..., None], name: str
) -> Any:
    """Begin a run with all slices."""
    run = device.new_run(sequence, 0, _nothing, _nothing)
    calls, inside, began = len(fake.calls), fake.inside_ns, time.thread_time_ns()
    run.resize(SMS * OCCUPANCY)
    ended = time.thread_time_ns()
    last = "launch" if name == "start" else "last"
    note(f"{name} to {last}", (fake.launched_ns - (began - inside)) / 1e3)
    note(f"{name} in all", (ended - began - (fake.inside_ns - inside)) / 1e3)
    note(f"{name} calls", len(fake.calls) - calls)
    return run


def _release(fake: TimedDriver, device: CUDADevice, run: Any, note: Callable[..., None]) -> None:
    """Have every block report its SM, and release half of them."""
    (launch,) = run._tracker.launches
    launch.slot.sms[:] = np.arange(len(launch.slot.sms)) % SMS + 1
    device.watcher.poll()
    set_stays = Slot.set_stays
    words: list[tuple[int, int]] = []

    def noted(*of_slot: Any) -> None:
        words.append((time.thread_time_ns(), fake.inside_ns))
        set_stays(*of_slot)

    Slot.set_stays = noted  # type: ignore[assignment, method-assign]
    calls, inside, began = len(fake.calls), fake.inside_ns, time.thread_time_ns()
    run.resize(SMS * OCCUPANCY // 2)
    ended = time.thread_time_ns()
    Slot.set_stays = set_stays  # type: ignore[method-assign]
    note("release to word", (words[0][0] - began - (words[0][1] - inside)) / 1e3)
    note("release in all", (ended - began - (fake.inside_ns - inside)) / 1e3)
    note("release calls", len(fake.calls) - calls)


def _nothing() -> None:
    """Do nothing: no one waits for the runs."""


if __name__ == "__main__":
    raise SystemExit(main())
