"""The daemon's overhead: round trips, submissions per second, sequences.

    python bench/bench_service.py [--rounds N] [--device cpu:N] [--short]

For each figure a floor is measured in the same run, interleaved: a bare msgpack echo over a Unix
socket (`bench.load.echo_server`), the least cost of any request to another process. Three things
are measured on a private daemon with an empty kernel of one block:

* round trip: ``submit()`` to ``result()``, one at a time, p50 and p99; also compared with a relay
  through as many processes and threads, which do no work;
* pipelined submissions per second: 64 jobs in flight on 8 streams, and as many echoes in flight;
* a sequence of 100 kernels: its time above that of a sequence of one kernel, for each further
  kernel. That includes what the kernels run.

Prints the figures beside their aims and writes bench/results/service.json; with --short it
only prints.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import gpud_client as gc
from bench.harness.results import keep
from bench.harness.timing import load, ratios, spread
from bench.load.echo_server import Echo
from gpud.demo.metrics import percentile

EMPTY = 'extern "C" __global__ void empty() { }'
CALLS, PIPELINED, IN_FLIGHT, STREAMS, SEQUENCE, SEQUENCES = 300, 2000, 64, 8, 100, 20
AIMS = {"round_trip_ratio": 2.5, "pipelined_ratio": 0.1, "sequence_us_a_kernel": 3.0}


def main() -> int:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15, help="turns of each side")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--short", action="store_true", help="two turns; writes no file")
    options = parser.parse_args()
    before = load()
    found = measure(options.device, 2 if options.short else options.rounds)
    report(found)
    if not options.short:
        keep("service", {"aims": AIMS, **found}, before)
    return 0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """All figures; times in microseconds."""
    with gc.local(device) as gpu, Echo() as echo, Echo(relay=True) as relay:
        kernel = gpu.kernel(EMPTY, "empty")

        def one() -> None:
            kernel.submit(1, 32, ()).result(30)

        streams = [gpu.stream() for _ in range(STREAMS)]
        one_kernel = [kernel.call(1, 32, ())]
        sequence = one_kernel * SEQUENCE
        for _ in range(20):
            one()
            echo.call()
            relay.call()
            gpu.sequence(sequence).result(30)
        trips: dict[str, list[list[float]]] = {"echo": [], "relay": [], "gpud": []}
        rates: dict[str, list[float]] = {"echo": [], "gpud": []}
        sequences: list[float] = []
        for number in range(rounds):
            sides: list[tuple[str, Callable[[], None]]] = [
                ("echo", echo.call),
                ("relay", relay.call),
                ("gpud", one),
            ]
            for name, call in sides[:: 1 if number % 2 else -1]:
                trips[name].append([_us(call) for _ in range(CALLS)])
            took = {
                "echo": _us(lambda: echo.pipelined(PIPELINED, IN_FLIGHT)),
                "gpud": _us(lambda: _pipelined(kernel, streams, PIPELINED)),
            }
            for name, us in took.items():
                rates[name].append(1e6 * PIPELINED / us)
            long = statistics.median(
                _us(lambda: gpu.sequence(sequence).result(30)) for _ in range(SEQUENCES)
            )
            short = statistics.median(
                _us(lambda: gpu.sequence(one_kernel).result(30)) for _ in range(SEQUENCES)
            )
            sequences.append((long - short) / (SEQUENCE - 1))
    figures: dict[str, Any] = {}
    for percent in (50, 99):
        by_side = {name: [percentile(r, percent) for r in some] for name, some in trips.items()}
        for name, values in by_side.items():
            figures[f"{name}_p{percent}_us"] = spread(values).plain()
        figures[f"round_trip_ratio_p{percent}"] = ratios(by_side["gpud"], by_side["echo"]).plain()
        figures[f"relay_ratio_p{percent}"] = ratios(by_side["gpud"], by_side["relay"]).plain()
    for name, values in rates.items():
        figures[f"{name}_per_second"] = spread(values).plain()
    figures["pipelined_ratio"] = ratios(rates["gpud"], rates["echo"]).plain()
    figures["sequence_us_a_kernel"] = spread(sequences).plain()
    return figures


def _us(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - began)


def _pipelined(kernel: gc.Kernel, streams: list[gc.Stream], count: int) -> None:
    flying: deque[gc.Job] = deque()
    for number in range(count):
        if len(flying) >= IN_FLIGHT:
            flying.popleft().result(30)
        flying.append(kernel.submit(1, 32, (), stream=streams[number % len(streams)]))
    for job in flying:
        job.result(30)


def report(found: dict[str, Any]) -> None:
    """Print the figures beside their aims."""

    def mid(name: str) -> float:
        return float(found[name]["median"])

    print(f"{'':<36}{'gpud':>12}{'echo':>12}{'ratio':>10}  aim")
    for percent in (50, 99):
        print(
            f"{f'round trip, p{percent}, us':<36}{mid(f'gpud_p{percent}_us'):>12.1f}"
            f"{mid(f'echo_p{percent}_us'):>12.1f}{mid(f'round_trip_ratio_p{percent}'):>10.2f}"
            f"  at most {AIMS['round_trip_ratio']}"
        )
    print(
        f"{'... beside a relay, p50, us':<36}{mid('gpud_p50_us'):>12.1f}"
        f"{mid('relay_p50_us'):>12.1f}{mid('relay_ratio_p50'):>10.2f}"
    )
    print(
        f"{f'submissions per second, {IN_FLIGHT} in flight':<36}{mid('gpud_per_second'):>12,.0f}"
        f"{mid('echo_per_second'):>12,.0f}{mid('pipelined_ratio'):>10.3f}"
        f"  at least {AIMS['pipelined_ratio']}"
    )
    print(
        f"{f'sequence of {SEQUENCE}, us a kernel':<36}{mid('sequence_us_a_kernel'):>12.2f}"
        f"{'':>22}  at most {AIMS['sequence_us_a_kernel']} beyond what they run"
    )


if __name__ == "__main__":
    sys.exit(main())
