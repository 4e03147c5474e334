"""The command line of the demo: runs the measurements, prints and stores the results."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import gpud_client as gc
from gpud.demo.allocation_trace import changes_in, trace_problems
from gpud.demo.arrivals import poisson
from gpud.demo.background_load import BackgroundLoad
from gpud.demo.colocation import Comparison, DemoWindow, Sizes, compare, open_experiment, sizes_for
from gpud.demo.metrics import percentile
from gpud.demo.plot import MissingMatplotlibError, Panel, draw
from gpud.demo.report import conclusion, impossible, note, table

__all__ = ["LANES", "POLICIES", "run"]

POLICIES = {
    "reservations": "gpud",
    "fifo": "run to completion",
    "equal": "equal sharing",
}
"""The scheduling policies that are compared, with their printed names."""

LANES = {
    "online": "online requests",
    "pricer": "option pricer",
    "matmul": "matrix product",
    "nbody": "n-body step",
}
"""The lanes of the picture, from bottom to top, with their printed names."""

_REQUEST_S = 0.012
_JOB_S = 0.25
_SHOWN_S = 1.2
_BUSY = 0.05
_MOST_BUSY = 0.95


def run(arguments: list[str] | None = None) -> int:
    """See `gpud.demo.main`."""
    options = _parser().parse_args(arguments)
    # One thread receives answers while others check results: shorten the wait for the GIL.
    sys.setswitchinterval(0.0005)
    try:
        return _Demo(options).run()
    except gc.GpudError as error:
        print(f"gpud demo: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpud demo", description="Online requests and offline work on one device."
    )
    add = parser.add_argument
    load, seconds, block_ms = (_between(*most) for most in ((0.01, 0.9), (0.5, 600), (0.01, 100)))
    add("--device", default="cpu", help="as for gpud serve (default cpu: one SM per core)")
    add("--load", type=load, default=0.3, help="online load: requests' share of the time (0.3)")
    add("--seconds", type=seconds, default=5.0, help="length of each run in seconds (5)")
    add("--block-ms", type=block_ms, default=1.0, help="duration of an offline task block (1)")
    add("--seed", type=int, default=1, help="seed of the arrival times (1)")
    add("--out", type=Path, default=Path("gpud-demo"), help="output folder (gpud-demo)")
    return parser


def _between(low: float, high: float) -> Any:
    def number(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not from {low:g} to {high:g}")
        return value

    return number


class _TooBusyError(Exception):
    """The machine is too busy for a comparison."""


class _Demo:
    """One run of the demo."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._out: Path = options.out
        self._began = time.monotonic()
        self._problems: list[str] = []
        self._traces: dict[str, dict[str, Any]] = {}
        self._sms = 1
        self._others: float | None = None

    def run(self) -> int:
        """Run all measurements, report them, and return the exit status."""
        options = self._options
        self._out.mkdir(parents=True, exist_ok=True)
        print("Three offline jobs keep a device full; online requests arrive at random moments.")
        self._print_step("choosing how large the kernels are on this machine")
        sizes = sizes_for(
            options.device,
            block_s=1e-3 * options.block_ms,
            job_s=_JOB_S,
            request_s=_REQUEST_S,
        )
        arrivals = poisson(options.load / _REQUEST_S, options.seconds, options.seed)
        arrivals = arrivals or [options.seconds / 2]
        background = BackgroundLoad()
        try:
            alone, windows = self._measure_all(sizes, arrivals)
        except _TooBusyError as error:
            share = background.share()
            others = "" if share is None else f" (other programs had {share:.0%} of this machine)"
            print(f"{error}{others}: run this when the machine is quiet, or with a lower --load")
            return 1
        self._others = background.share()
        if self._problems:
            for problem in self._problems[:10]:
                print(f"WRONG: {problem}")
            print(f"{len(self._problems)} problems; the figures would mean nothing")
            return 1
        online, offline = alone
        compared = [compare(window, online, offline, sizes) for window in windows]
        latencies = online.answers.latencies_s
        p50_p99 = (percentile(latencies, 50), percentile(latencies, 99))
        print(f"\n{table(p50_p99, compared, POLICIES)}\n\n{conclusion(compared, POLICIES)}")
        if self._others is not None and self._others > _BUSY:
            print(
                f"Other programs had {self._others:.0%} of this machine meanwhile: "
                "run this again when it is quiet."
            )
        self._print_checks(windows)
        self._write_files(sizes, alone, windows, compared)
        print(f"{time.monotonic() - self._began:.0f} s in all")
        return 0

    # -- the runs

    def _measure_all(
        self, sizes: Sizes, arrivals: list[float]
    ) -> tuple[tuple[DemoWindow, DemoWindow], list[DemoWindow]]:
        seconds, windows = self._options.seconds, []
        alone: list[DemoWindow] = []
        for policy, name in POLICIES.items():
            with open_experiment(self._options.device, policy, sizes) as experiment:
                if not alone:
                    what = f"{len(arrivals)} requests of about {1e3 * _REQUEST_S:.0f} ms"
                    self._print_step(f"online alone: {what}, load {self._options.load:g}")
                    alone.append(experiment.measure("alone", seconds, arrivals, offline=False))
                    if alone[0].busy > _MOST_BUSY:
                        raise _TooBusyError(
                            f"The requests alone took {alone[0].busy:.0%} of the time, which "
                            "leaves too little to share"
                        )
                    kinds = ", ".join(LANES[one.kind.name] for one in sizes.offline)
                    self._print_step(f"offline alone: {kinds}")
                    alone.append(experiment.measure("alone", seconds / 2, offline=True))
                self._sms = experiment.gpu.device.sms
                self._print_step(f"together: {name}")
                windows.append(experiment.measure(policy, seconds, arrivals, offline=True))
                self._traces[policy] = experiment.gpu.query("trace")
        for window in (*alone, *windows):
            where = POLICIES.get(window.name, window.name)
            self._problems += [f"{where}: {problem}" for problem in window.problems]
        return (alone[0], alone[1]), windows

    def _print_step(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    # -- output

    def _print_checks(self, windows: list[DemoWindow]) -> None:
        requests = sum(len(window.answers.latencies_s) for window in windows)
        jobs = sum(sum(window.jobs.values()) for window in windows)
        print(
            f"Every result was right: {requests} requests and {jobs} offline jobs checked; "
            "each task block ran exactly once."
        )

    def _write_files(
        self,
        sizes: Sizes,
        alone: tuple[DemoWindow, DemoWindow],
        windows: list[DemoWindow],
        compared: list[Comparison],
    ) -> None:
        written = []
        for policy, trace in self._traces.items():
            for problem in trace_problems(trace)[:3]:
                print(f"the trace of {policy} is malformed: {problem}")
            written.append(self._out / f"trace-{policy}.json")
            written[-1].write_text(json.dumps(trace))
        figures = self._out / "figures.json"
        figures.write_text(json.dumps(self._figures(sizes, alone, compared), indent=1) + "\n")
        try:
            written.insert(0, self._draw(alone[0], windows, compared))
            print(f"\npicture  {written[0]}")
        except MissingMatplotlibError as error:
            print(f"\n{error}")
        print(f"figures  {figures}")
        print(f"traces   {self._out}/trace-*.json: open one in https://ui.perfetto.dev")

    def _figures(
        self, sizes: Sizes, alone: tuple[DemoWindow, DemoWindow], compared: list[Comparison]
    ) -> dict[str, Any]:
        options = self._options
        return {
            "load": options.load,
            "seconds": options.seconds,
            "seed": options.seed,
            "others_share": self._others if self._others is None else round(self._others, 3),
            "online_busy_alone": round(alone[0].busy, 4),
            "task_block_ms": {s.kind.name: round(1e3 * s.block_s, 3) for s in sizes.offline},
            "compared": [one.plain() for one in compared],
            "impossible": impossible(compared, POLICIES),
        }

    def _draw(
        self, online: DemoWindow, windows: list[DemoWindow], compared: list[Comparison]
    ) -> Path:
        panels = [
            Panel(
                POLICIES[window.name],
                note(one),
                list(changes_in(self._traces[window.name])),
                window.answers.arrived_s,
                window.answers.latencies_s,
            )
            for window, one in zip(windows, compared, strict=True)
        ]
        path = self._out / "timeline.png"
        draw(panels, online.answers.latencies_s, path, sms=self._sms, names=LANES, seconds=_SHOWN_S)
        return path
