"""Prints which GPU there is and exits 0, or why there is none and exits 1."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.gpu.instrumentation.driver import Gpu
from bench.gpu.record import need_gpu


def main() -> int:
    """Print the GPU and its driver."""
    need_gpu()
    print(", ".join(f"{name} {value}" for name, value in Gpu().describe().items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
