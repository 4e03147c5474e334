"""Keeps a context on the GPU as long as its standard input is open, and does nothing else.

    python bench/gpu/keeper.py

Where the driver's persistence is off, it puts the GPU down when the last process leaves it, and the
next one waits a second or more for it and finds other clocks. `bench/gpu/run_steps.py` has one for
as long as it runs steps, so that no setting of the machine is changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.record import need_gpu


def main() -> int:
    """Hold a context until standard input ends."""
    need_gpu()
    kept = Gpu()
    print(f"keeps a context on {kept.describe()['gpu']}", flush=True)
    sys.stdin.buffer.read()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
