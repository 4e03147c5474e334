"""Keeps what a benchmark measured, with the machine that it was measured on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.harness.machine import describe

__all__ = ["RESULTS", "keep"]

RESULTS = Path(__file__).resolve().parents[1] / "results"


def keep(name: str, figures: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
    """Write ``bench/results/NAME.json``, and say so.

    Args:
        name: of the file.
        figures: what was measured.
        before: what else is said of the machine, such as its load when the measurement began.
    """
    path = RESULTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    kept = {"machine": {**describe(), **(before or {})}, **figures}
    path.write_text(json.dumps(kept, indent=1) + "\n")
    print(f"wrote bench/results/{path.name}")
