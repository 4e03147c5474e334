"""How long tasks have taken in earlier tries, for policies that go by durations.

A task whose set says no duration gets the mean of the last tries of the same program, in this run
and in those before it: they are kept in ``$XDG_STATE_HOME/gpud-ray/durations.json``. Seconds are
those of a GPU of `REFERENCE_CORES`, as `Task.duration_s` is.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gpud_ray.sets.model import GPU, REFERENCE_CORES
from gpud_ray.sets.setfile import Program

__all__ = ["Durations"]

_WEIGHT = 0.5  # of the newest try
_MOST = 10_000  # programs that are kept, the latest


class Durations:
    """What is known; a file that cannot be read counts as empty."""

    def __init__(self, file: Path | None = None) -> None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._file = file or Path(state) / "gpud-ray" / "durations.json"
        self._known: dict[str, float] = {}
        with suppress(OSError, ValueError, AttributeError):
            for key, seconds in json.loads(self._file.read_text("utf-8")).items():
                if isinstance(seconds, float | int) and seconds > 0:
                    self._known[str(key)] = float(seconds)

    def of(self, program: Program) -> float | None:
        """Return how long a program takes alone, in seconds; None: it has not been tried."""
        return self._known.get(_key(program))

    def note(self, program: Program, took_s: float, gpu: GPU) -> None:
        """Take a try that was done."""
        key, seconds = _key(program), took_s * gpu.cores / REFERENCE_CORES
        before = self._known.pop(key, seconds)
        self._known[key] = before + _WEIGHT * (seconds - before)
        while len(self._known) > _MOST:
            del self._known[next(iter(self._known))]

    def save(self) -> None:
        """Keep what is known for the next run, if the file can be written."""
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(self._known), "utf-8")
            part.replace(self._file)


def _key(program: Program) -> str:
    """Return what programs have in common that take as long; their input's seed is not in it."""
    fields = asdict(program)
    del fields["seed"], fields["timeout_s"]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:32]
