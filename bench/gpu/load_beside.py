"""Whether a program can be loaded while a kernel runs, and what else waits meanwhile.

    python bench/gpu/load_beside.py [--seconds 4]

On an H100 a load was reported to wait for running kernels with the context's lock held (see
`gpud.device.cuda.driver.watchdog`). So this is a process of its own, and the last: a kernel runs
that ends by itself after `--seconds`, a program is loaded beside it, as machine code and as PTX,
and meanwhile another thread makes a call that needs the lock.

Writes bench/results/gpu_load_beside.json, a row for each load.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.busy_kernel import BusyKernel
from bench.gpu.instrumentation.driver import Gpu, check, linked
from bench.gpu.record import Rows, need_gpu

LOADS = ("machine code", "PTX")
FULL = ("one block", "all SMs full")


def main() -> int:
    """Load beside each kernel; print and save what waited."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long the kernel runs")
    seconds = parser.parse_args().seconds
    need_gpu()
    gpu = Gpu()
    kept = Rows("load_beside", gpu, {"seconds": seconds})
    busy = BusyKernel(gpu, seconds)
    for load in LOADS:
        for full in FULL:
            if not kept.has(load=load, beside=full):
                row = {"load": load, "beside": full, **beside(busy, load, full)}
                kept.add(row)
                print(", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    print(f"wrote {kept.end().name}")
    return 0


def beside(busy: BusyKernel, load: str, full: str) -> dict[str, Any]:
    """Load a program while the kernel runs; whether that waited, and the call of another thread."""
    gpu = busy.gpu
    image = (linked(gpu, busy.text) if load == LOADS[0] else None) or busy.text.encode() + b"\0"
    elsewhere: dict[str, float] = {}

    def other() -> None:
        with gpu.current():
            began = time.monotonic()
            check(gpu.cu.cuMemGetInfo())
            elsewhere["us"] = 1e6 * (time.monotonic() - began)

    def act() -> None:
        thread = threading.Timer(0.002, other)  # when the load has begun
        thread.start()
        check(gpu.cu.cuModuleLoadData(image))
        thread.join()

    blocks = 1 if full == FULL[0] else busy.capacity(1024)
    found = busy.run_beside(act, blocks=blocks, threads=32 if blocks == 1 else 1024)
    return {**found, "other_call_us": elsewhere.get("us")}


if __name__ == "__main__":
    raise SystemExit(main())
