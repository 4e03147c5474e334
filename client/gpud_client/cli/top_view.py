"""What ``gpuctl top`` shows and what its keys do, without terminal and daemon.

`TopView` keeps what is between two refreshes: the selection, the order, the filter, what is being
typed, each device's load over time and each job's pace. A key changes it, or gives an `Action`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from gpud_client.cli import formatting

__all__ = ["KEYS", "QUIT", "Action", "TopView", "load_of"]

_ORDER = {"ending": 0, "running": 1, "paused": 2, "waiting": 3, "preparing": 4, "blocked": 5}
_PACE_S = 10.0  # of a job, over which its time left is estimated
_LOADS = 1000
_SPARK = " ▁▂▃▄▅▆▇█"

UP, DOWN, ENTER, ESCAPE, BACKSPACE = "up", "down", "enter", "escape", "backspace"
"""Names of keys that are no characters."""

KEYS = "q quit  s sort  / filter  ↑↓ select  c cancel  r resize"


class Action(NamedTuple):
    """What a key asks for.

    Attributes:
        what: "quit", "cancel" or "resize".
        job: the job's row.
        share: the new share as typed.
    """

    what: str
    job: Mapping[str, Any] = {}
    share: str = ""


QUIT = Action("quit")


def _state(job: Mapping[str, Any]) -> Any:
    return _ORDER.get(str(job.get("state")), 9)


def _has(job: Mapping[str, Any]) -> Any:
    return -load_of(job)


def _done(job: Mapping[str, Any]) -> Any:
    done, total = job.get("progress") or (0, 1)
    return -done / max(total, 1)


def _ran(job: Mapping[str, Any]) -> Any:
    return -(job.get("run_s") or 0.0)


def _user(job: Mapping[str, Any]) -> Any:
    return str(job.get("user"))


_SORTS: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("state", _state),
    ("share", _has),
    ("progress", _done),
    ("time", _ran),
    ("user", _user),
)


class TopView:
    """The state of the screen.

    Attributes:
        jobs: the rows to show, in order, with "left_s", the estimated time left.
        selected: the id of the selected job; None: none.
        message: what happened last; shown until the next key.
    """

    def __init__(self) -> None:
        self.jobs: list[dict[str, Any]] = []
        self.selected: str | None = None
        self.message = ""
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._sort = 0
        self._filter = ""
        self._typing: str | None = None  # what is typed: "/", "c" or "r"
        self._typed = ""
        self._loads: dict[int, deque[float]] = {}
        self._paces: dict[str, deque[tuple[float, int]]] = {}

    def update(self, look: Mapping[str, Any], now_s: float | None = None) -> None:
        """Take in a refresh; ``now_s`` is monotonic."""
        now_s = time.monotonic() if now_s is None else now_s
        self._rows = look["jobs"]
        for number, device in enumerate(look["status"].get("devices", [])):
            loads = self._loads.setdefault(number, deque(maxlen=_LOADS))
            sms = device.get("sms") or 0
            loads.append(min(1.0, float(load_of(device, "allocated")) / sms) if sms else 0.0)
        ids = {str(row.get("id")) for row in self._rows}
        self._paces = {job: pace for job, pace in self._paces.items() if job in ids}
        for row in self._rows:
            done, _ = row.get("progress") or (0, 0)
            pace = self._paces.setdefault(str(row.get("id")), deque())
            pace.append((now_s, done))
            while now_s - pace[0][0] > _PACE_S:
                pace.popleft()
        self._arrange()

    def press(self, key: str) -> Action | None:
        """Handle a key: a character, or one of the names above."""
        self.message = ""
        if self._typing is not None:
            return self._type(key)
        match key:
            case "q" | "\x03":
                return QUIT
            case "s":
                self._sort = (self._sort + 1) % len(_SORTS)
            case "/":
                self._typing, self._typed = "/", self._filter
            case "up" | "k":
                self._move(-1)
            case "down" | "j":
                self._move(1)
            case "c" | "r":
                if self._chosen() is None:
                    self.message = "select a job first, with the arrow keys"
                else:
                    self._typing, self._typed = key, ""
        self._arrange()
        return None

    @property
    def prompt(self) -> str:
        """The last line: what is typed, what happened, or the keys."""
        if self._typing == "/":
            return f"show jobs with: {self._typed}_  (Enter: keep, Esc: show all)"
        if self._typing == "c":
            return f"cancel job {self.selected}? y/n"
        if self._typing == "r":
            kind = "reservation" if (self._chosen() or {}).get("kind") == "online" else "quota"
            return f"new {kind} of job {self.selected}, such as 1.5 or 25%: {self._typed}_"
        if self.message:
            return self.message
        only = f"  only: {self._filter}" if self._filter else ""
        return f"{KEYS}  by {_SORTS[self._sort][0]}{only}"

    def graph(self, device: int, width: int) -> str:
        """Return a device's load over time, the latest on the right."""
        loads = list(self._loads.get(device, ()))[-width:]
        return "".join(_SPARK[round(load * (len(_SPARK) - 1))] for load in loads).rjust(width)

    # -- helpers

    def _type(self, key: str) -> Action | None:
        typing, job = self._typing, self._chosen()
        if key == ESCAPE or (typing == "c" and key != "y") or (typing != "/" and job is None):
            self._typing = None
            if typing == "/":
                self._filter = ""
        elif typing == "c":
            self._typing = None
            assert job is not None
            return Action("cancel", job)
        elif key == ENTER:
            self._typing = None
            if typing == "r" and self._typed and job is not None:
                return Action("resize", job, self._typed)
        elif key == BACKSPACE:
            self._typed = self._typed[:-1]
        elif len(key) == 1 and key.isprintable():
            self._typed += key
        if typing == "/" and self._typing is not None:
            self._filter = self._typed
        self._arrange()
        return None

    def _chosen(self) -> dict[str, Any] | None:
        return next((row for row in self.jobs if row.get("id") == self.selected), None)

    def _move(self, step: int) -> None:
        ids = [str(row.get("id")) for row in self.jobs]
        if not ids:
            return
        if self.selected not in ids:
            self.selected = ids[0 if step > 0 else -1]
            return
        self.selected = ids[max(0, min(len(ids) - 1, ids.index(self.selected) + step))]

    def _arrange(self) -> None:
        wanted = self._filter.casefold()
        rows = [row for row in self._rows if wanted in _words(row).casefold()]
        self.jobs = [
            {**row, "left_s": self._left_s(row)} for row in sorted(rows, key=_SORTS[self._sort][1])
        ]

    def _left_s(self, row: Mapping[str, Any]) -> float | None:
        """Return the time that the rest takes at the job's present pace; None: unknown."""
        pace = self._paces.get(str(row.get("id")))
        if not pace:
            return None
        (then_s, before), (now_s, done) = pace[0], pace[-1]
        total = (row.get("progress") or (0, 0))[1]
        if done <= before or now_s <= then_s or row.get("state") != "running":
            return None
        return (total - done) * (now_s - then_s) / (done - before)


def load_of(row: Mapping[str, Any], key: str = "allocation") -> Fraction:
    """Return an amount of CapSM in a row; 0 if it is none."""
    try:
        return Fraction(row.get(key) or 0)
    except (TypeError, ValueError, ZeroDivisionError):
        return Fraction(0)


def _words(row: Mapping[str, Any]) -> str:
    """Return what the filter looks at."""
    return " ".join(
        formatting.text(row.get(key)) for key in ("id", "user", "program", "kernels", "state")
    )
