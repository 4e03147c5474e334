"""A client with a lane, for `bench_lane`: launches an empty kernel again and again.

    python -m bench.load.lane_client SOCKET RESERVATION

For each line with a number of seconds on its standard input it prints how many launches have ended
in that time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import numpy as np

import gpud_client as gc

__all__ = ["KERNEL", "LaneClients"]

ROOT = Path(__file__).resolve().parents[2]
KERNEL = 'extern "C" __global__ void empty(float* x, unsigned n, float a) { }'
_BATCH = 400  # fits into the ring


class LaneClients:
    """Processes with a lane each; they have the same share.

    Args:
        path: the daemon's socket.
        count: how many.
        reservation: of each, in SMs.
    """

    def __init__(self, path: str, count: int, reservation: Fraction) -> None:
        command = [sys.executable, "-m", "bench.load.lane_client", path, str(reservation)]
        self._clients = [
            subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(count)
        ]
        for client in self._clients:
            assert client.stdout is not None
            assert client.stdout.readline() == "ready\n"

    def __enter__(self) -> LaneClients:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            assert client.stdin is not None
            assert client.stdout is not None
            client.stdin.close()
            client.wait()
            client.stdout.close()

    def run(self, seconds: float) -> list[float]:
        """Have all launch for a time; returns the launches a second of each."""
        for client in self._clients:
            assert client.stdin is not None
            client.stdin.write(f"{seconds}\n")
            client.stdin.flush()
        found = []
        for client in self._clients:
            assert client.stdout is not None
            found.append(int(client.stdout.readline()) / seconds)
        return found


def main() -> int:
    """Launch for as long as each line says."""
    path, reservation = sys.argv[1], Fraction(sys.argv[2])
    with gc.connect(path) as gpu, gpu.lane(reservation=reservation) as lane:
        empty, x = gpu.kernel(KERNEL, "empty"), gpu.zeros(4, np.float32)
        empty.submit(1, 32, (x, 0, 0.0), stream=lane).result()
        print("ready", flush=True)
        for line in sys.stdin:
            end, count = time.monotonic() + float(line), 0
            while time.monotonic() < end:
                for index in range(_BATCH):
                    empty.submit(1, 32, (x, index, 0.5 * index), stream=lane)
                lane.synchronize()
                count += _BATCH
            print(count, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
