"""Saves results of measurements on a GPU, with the GPU, its driver and the date.

``GPUD_RESULTS`` names another folder than bench/results, for trials whose figures are not to be
kept. Time on a GPU may end at any moment, so rows are saved one by one (`Rows`), and the same
measurement continues after the last row when it is started again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu.instrumentation.driver import Gpu, missing
from bench.harness.machine import describe
from gpud.device.cuda.device import CUDADevice

__all__ = ["RESULTS", "Rows", "cuda_device", "keep", "need_gpu", "rounded"]

RESULTS = Path(os.environ.get("GPUD_RESULTS") or Path(__file__).resolve().parents[1] / "results")


def need_gpu() -> None:
    """Without a GPU say so and end the program."""
    why = missing()
    if why:
        print(f"this needs an NVIDIA GPU: {why}", file=sys.stderr)
        raise SystemExit(1)


def cuda_device(**options: Any) -> Any:
    """gpud's CUDA device, to be used in a ``with`` block."""
    sys.setswitchinterval(1e-4)  # as a device host does
    return CUDADevice(0, **options)


def keep(name: str, gpu: Gpu, found: dict[str, Any], folder: Path | None = None) -> Path:
    """Write ``gpu_NAME.json``: the machine, GPU, date and the results."""
    where = {"machine": describe(), **gpu.describe()}
    when = datetime.now(UTC).isoformat(timespec="seconds")
    into = RESULTS if folder is None else folder
    into.mkdir(parents=True, exist_ok=True)
    path = into / f"gpu_{name}.json"
    new = path.with_suffix(".new")  # an interrupted write leaves the old file
    new.write_text(json.dumps({"date": when, **where, **rounded(found)}, indent=1) + "\n")
    new.replace(path)
    return path


class Rows:
    """The rows of a result, kept one by one.

    Args:
        name: of the result.
        gpu: that they are measured on.
        settings: that rows depend on. Rows of an existing file are continued if it is incomplete
            and has the same settings, GPU and driver.
        folder: of the file.

    Attributes:
        rows: as plain dictionaries, in the order in which they were measured.
    """

    def __init__(
        self, name: str, gpu: Gpu, settings: Mapping[str, Any], folder: Path | None = None
    ) -> None:
        self._name, self._gpu, self._settings = name, gpu, rounded(dict(settings))
        self._folder = RESULTS if folder is None else folder
        self.rows: list[dict[str, Any]] = self._before()

    def _before(self) -> list[dict[str, Any]]:
        try:
            found = json.loads((self._folder / f"gpu_{self._name}.json").read_text())
        except (OSError, ValueError):
            return []
        here = self._gpu.describe()
        same = all(found.get(key) == here[key] for key in ("gpu", "driver"))
        if found.get("complete", True) or not same or found["settings"] != self._settings:
            return []
        rows: list[dict[str, Any]] = found["rows"]
        print(f"goes on after {len(rows)} rows of {found['date']}")
        return rows

    def has(self, **values: Any) -> bool:
        """Whether there is a row with these values."""
        wanted = rounded(values).items()
        return any(wanted <= {k: row.get(k) for k in values}.items() for row in self.rows)

    def add(self, row: Mapping[str, Any], **found: Any) -> None:
        """Save a row, with the summary so far."""
        self.rows.append(rounded(dict(row)))
        self._keep(complete=False, **found)

    def end(self, **found: Any) -> Path:
        """Mark the result as complete, with its summary."""
        return self._keep(complete=True, **found)

    def _keep(self, **found: Any) -> Path:
        all_of_it = {"settings": self._settings, **found, "rows": self.rows}
        return keep(self._name, self._gpu, all_of_it, self._folder)


def rounded(value: Any) -> Any:
    """``value`` with all floats in it rounded to five significant digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
