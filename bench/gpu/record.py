"""Where results of measurements on a GPU go: with the GPU, its driver and the date in them."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.gpu.driver import Gpu, missing
from bench.machine import describe

__all__ = ["RESULTS", "cuda_device", "keep", "need_gpu", "rounded"]

RESULTS = Path(__file__).resolve().parents[1] / "results"


def need_gpu() -> None:
    """Returns if there is a GPU; else says why there is none and ends the program with 1."""
    why = missing()
    if why:
        print(f"this needs an NVIDIA GPU: {why}", file=sys.stderr)
        raise SystemExit(1)


def cuda_device(**options: Any) -> Any:
    """gpud's CUDA device, to be used in a ``with`` block."""
    return import_module("gpud.device.cuda.device").CUDADevice(0, **options)


def keep(name: str, gpu: Gpu, found: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Writes ``gpu_NAME.json``: the machine, the GPU, the date, and what was found."""
    where = {"machine": describe(), **gpu.describe()}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_{name}.json"
    path.write_text(json.dumps({"date": when, **where, **rounded(found)}, indent=1) + "\n")
    return path


def rounded(value: Any) -> Any:
    """``value`` with every float of it to five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
