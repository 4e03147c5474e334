"""Show 4: an item through Ray beside the same kernel on the local daemon.

The same small kernel, one at a time and many at a time: submitted to gpud by its client; to the
agent of the client's own node (C2 is C1); and to another node. With an array, in and out, of each
size.

Run it: .venv-ray/bin/python contrib/ray/bench/overhead.py [--count 200]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import ray

import gpud_client as gc
import gpud_ray
from gpud_ray.local_cluster import local_cluster

SOURCE = """extern "C" __global__ void scale(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * 2.0f;
}"""
SIZES = (256, 1 << 20)
TURNS = 3


def local(path: str, n: int, count: int) -> tuple[float, float]:
    """Time an array in, the kernel, and the array out, on the local daemon."""
    values = np.ones(n, np.float32)
    with gc.connect(path) as gpu:
        kernel = gpu.kernel(SOURCE, "scale")

        def begin() -> Any:
            x = gpu.array(values)
            stream = gpu.stream()
            return x, kernel.submit(-(-n // 256), 256, (x, np.int32(n)), stream=stream)

        def end(begun: Any) -> Any:
            begun[1].result(timeout=60)
            return begun[0].get()

        return timed(begin, end, count)


def through_ray(node: str, n: int, count: int) -> tuple[float, float]:
    """Time the same as an item that runs on a node."""
    values = np.ones(n, np.float32)
    call = gpud_ray.KernelCall(
        source=SOURCE, kernel="scale", grid=-(-n // 256), block=256,
        args=(gpud_ray.InOut(values), np.int32(n)),
    )  # fmt: skip
    return timed(
        lambda: gpud_ray.submit(call, on=node), lambda ref: ray.get(ref, timeout=60), count
    )


def timed(begin: Callable[[], Any], end: Callable[[Any], Any], count: int) -> tuple[float, float]:
    """Return the median of one at a time, and the mean of many at a time, in seconds."""
    for _ in range(5):
        assert end(begin())[0] == 2
    one = []
    for _ in range(count):
        start = time.perf_counter()
        end(begin())
        one.append(time.perf_counter() - start)
    start = time.perf_counter()
    for begun in [begin() for _ in range(count)]:
        end(begun)
    return median(one), (time.perf_counter() - start) / count


def run(count: int) -> dict[str, dict[int, tuple[float, float]]]:
    """Measure all three ways, in turns on one cluster; medians of the turns."""
    settings = gpud_ray.Settings(in_flight_per_gpu=64)
    rows: dict[str, dict[int, list[tuple[float, float]]]] = {}
    with local_cluster(settings=settings) as cluster, gc.local("cpu:1") as own:
        from gpud_ray.actors import find_agent

        # This program's node gets a gpud, so that C2 can be C1.
        ray.kill(find_agent(cluster.home))
        home = cluster.begin_home(own.path)
        other = cluster.add("cpu:1")
        cluster.wait_ready(2)
        ways = (
            ("local daemon", partial(local, own.path)),
            ("own node", partial(through_ray, home)),
            ("other node", partial(through_ray, other)),
        )
        for n in SIZES:
            few = max((count if n == SIZES[0] else count // 8) // TURNS, 5)
            for _ in range(TURNS):
                for name, measure in ways:
                    rows.setdefault(name, {}).setdefault(n, []).append(measure(n, few))
    return {
        name: {
            n: (median(t[0] for t in turns), median(t[1] for t in turns))
            for n, turns in row.items()
        }
        for name, row in rows.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    rows = run(parser.parse_args().count)
    base = rows["local daemon"]
    print(f"{'':14}" + "".join(f"{4 * n:>12,} bytes one / many" for n in SIZES))
    for name, row in rows.items():
        cells = [
            f"{row[n][0] * 1e3:8.2f} / {row[n][1] * 1e3:6.2f} ms "
            f"({row[n][0] / base[n][0]:4.1f}, {row[n][1] / base[n][1]:4.1f})"
            for n in SIZES
        ]
        print(f"{name:14}" + "".join(f"{cell:>36}" for cell in cells))


if __name__ == "__main__":
    main()
