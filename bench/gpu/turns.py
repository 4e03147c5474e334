"""What turns of workloads cost on a GPU whose memory holds two of three, and how fast they move.

    python bench/gpu/turns.py

`bench.bench_workloads` on a GPU, with 32 times as much data: each loop keeps some 200 MB.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench import bench_workloads

SETTINGS = ("--case", "exceeds", "--device", "cuda:0", "--scale", "32", "--iterations", "60")

if __name__ == "__main__":
    sys.argv[1:] = [*SETTINGS, *sys.argv[1:]]
    sys.exit(bench_workloads.main())
