"""gpuctl top: what it draws, what its keys do, on a terminal, and through a daemon's restart."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpud.wire.messages import Cancel, Query, Resize
from gpud_client.cli import main
from gpud_client.cli.exit_status import DONE
from gpud_client.cli.top import picture
from gpud_client.cli.top_view import QUIT, TopView
from tests.unit.cli.scripted_daemon import ANSWERS, RUNNING, WAITING, Peer, scripted

TIMEOUT_S = 30.0
GPUCTL = [sys.executable, "-c", "import sys; from gpud_client.cli import main; sys.exit(main())"]
LOOK = {"status": ANSWERS["status"], "jobs": [RUNNING, WAITING]}


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    folder = Path(tempfile.mkdtemp(prefix="gpud-"))
    with scripted(folder / "s") as found:
        monkeypatch.setenv("GPUD_SOCKET", str(found.path))
        yield found
    shutil.rmtree(folder)


# -- the view ------------------------------------------------------------------------------------


def view_of(*jobs: dict[str, Any]) -> TopView:
    view = TopView()
    view.update({**LOOK, "jobs": list(jobs)}, 0.0)
    return view


def ids(view: TopView) -> list[str]:
    return [str(job["id"]) for job in view.jobs]


def pressed(view: TopView, *keys: str) -> Any:
    return [view.press(key) for key in keys][-1]


def test_jobs_are_sorted() -> None:
    view = view_of(
        {"id": "1.1", "state": "waiting", "user": "a", "allocation": "0", "progress": [0, 9]},
        {"id": "1.2", "state": "running", "user": "c", "allocation": "1/2", "progress": [8, 9]},
        {"id": "1.3", "state": "running", "user": "b", "allocation": "3", "progress": [1, 9],
         "run_s": 5.0},
    )  # fmt: skip
    orders = [ids(view)]
    for _ in range(5):
        assert view.press("s") is None
        orders.append(ids(view))
    assert orders == [
        ["1.2", "1.3", "1.1"], ["1.3", "1.2", "1.1"], ["1.2", "1.3", "1.1"],
        ["1.3", "1.1", "1.2"], ["1.1", "1.3", "1.2"], ["1.2", "1.3", "1.1"],
    ]  # fmt: skip


def test_jobs_are_filtered_as_one_types() -> None:
    view = view_of({"id": "1.1", "user": "alice"}, {"id": "1.2", "program": "Train.py"})
    pressed(view, "/", "t", "r", "a", "x")
    assert ids(view) == []
    pressed(view, "backspace")
    assert ids(view) == ["1.2"]
    pressed(view, "enter", "s")
    assert ids(view) == ["1.2"]
    assert "only: tra" in view.prompt
    pressed(view, "/", "escape")
    assert ids(view) == ["1.1", "1.2"]


def test_a_job_is_cancelled_when_one_says_yes() -> None:
    view = view_of({"id": "1.1"}, {"id": "1.2"})
    assert pressed(view, "c") is None
    assert view.prompt == "select a job first, with the arrow keys"
    assert pressed(view, "down", "down", "down", "c", "n") is None
    assert view.selected == "1.2"
    assert pressed(view, "up", "c") is None
    assert view.prompt == "cancel job 1.1? y/n"
    action = pressed(view, "y")
    assert (action.what, action.job["id"]) == ("cancel", "1.1")


def test_a_job_that_ends_meanwhile_is_not_cancelled() -> None:
    view = view_of({"id": "1.1"}, {"id": "1.2"})
    pressed(view, "down", "c")
    view.update({**LOOK, "jobs": [{"id": "1.2"}]}, 1.0)
    assert pressed(view, "y") is None


def test_a_share_is_typed() -> None:
    view = view_of({"id": "1.1", "kind": "online"})
    pressed(view, "down", "r", "2", "5", "%")
    assert view.prompt == "new reservation of job 1.1, such as 1.5 or 25%: 25%_"
    assert pressed(view, "enter")[0::2] == ("resize", "25%")
    assert pressed(view, "r", "enter") is None
    assert pressed(view, "q") == QUIT


def test_time_left_follows_the_pace() -> None:
    view = TopView()
    job: dict[str, Any] = {}
    for now_s, done in ((0.0, 0), (5.0, 50), (20.0, 100), (25.0, 200)):
        job = {"id": "1.1", "state": "running", "progress": [done, 1000]}
        view.update({**LOOK, "jobs": [job]}, now_s)
    # 100 in the last 5 s: what is older than 10 s does not count.
    assert view.jobs[0]["left_s"] == pytest.approx(40.0)
    view.update({**LOOK, "jobs": [{**job, "state": "waiting"}]}, 26.0)
    assert view.jobs[0]["left_s"] is None


def test_load_over_time() -> None:
    view = TopView()
    for allocated in ("0", "4", "8"):
        status = {"devices": [{"sms": 8, "allocated": allocated}]}
        view.update({"status": status, "jobs": []})
    assert view.graph(0, 5) == "   ▄█"


# -- the picture ---------------------------------------------------------------------------------


def test_so_many_refreshes(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-c", "3", "--interval", "0.05", "--json"]) == DONE
    looks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(looks) == 3
    for look in looks:
        assert set(look) == {"at_s", "status", "jobs"}
        assert look["jobs"] == ANSWERS["jobs"]["jobs"]


def test_devices_and_jobs_in_a_pipe(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "-c", "1"]) == DONE
    out = capsys.readouterr().out
    assert "online 0, offline 3.5 of 8 SMs" in out
    assert "▓" * 18 in out
    assert "25%" in out


def test_nothing_is_said(peer: Peer, capsys: pytest.CaptureFixture[str]) -> None:
    peer.answers["jobs"] = {"jobs": []}
    assert main(["top", "-c", "1"]) == DONE
    assert "no jobs" in capsys.readouterr().out


@pytest.mark.parametrize(("width", "height"), [(150, 10), (80, 24), (60, 60)])
def test_it_fits_the_screen(width: int, height: int) -> None:
    from rich.console import Console

    jobs = [RUNNING | {"allocation": "1/50", "id": f"3.{number}"} for number in range(100)]
    view = view_of(*jobs)
    for _ in range(60):
        view.press("down")
    look = {**LOOK, "jobs": jobs}
    target = Console(width=width, height=height, record=True, file=io.StringIO())
    target.print(picture(look, view, width, height))
    lines = target.export_text().splitlines()
    assert len(lines) <= height
    assert "more" in lines[-2]
    assert lines[-1].startswith("q quit")
    assert "offline 2 of 8 SMs" in "".join(lines)
    assert sum(re.search(r"> +3\.59 ", line) is not None for line in lines) == 1, (
        "the selected job is in sight"
    )


def test_in_few_columns_nothing_that_changes_is_cut() -> None:
    from rich.console import Console

    answer: dict[str, Any] = ANSWERS["status"]
    device = answer["devices"][0] | {
        "name": "CPU device, 2 virtual SMs of compute capability 9.0",
        "memory_used_bytes": 40 << 10, "memory_bytes": 118 << 30,
    }  # fmt: skip
    status = {**answer, "devices": [device], "uptime_s": 1e5, "pid": 4194303}
    target = Console(width=80, record=True, file=io.StringIO())
    target.print(picture({"status": status, "jobs": [RUNNING]}, view_of(RUNNING), 80, 24))
    first, second = target.export_text().splitlines()[:2]
    assert "…" not in first
    assert "memory 40 KiB of 118 GiB" in second
    assert second.startswith("0: CPU device, 2 virtual SMs")
    assert len(second.rstrip()) <= 80


# -- on a terminal -------------------------------------------------------------------------------


class Terminal:
    """gpuctl top on a terminal of 100 columns and 30 lines."""

    def __init__(self, path: Path) -> None:
        self._own, other = pty.openpty()
        environment = {**os.environ, "GPUD_SOCKET": str(path), "PYTHONPATH": "client",
                       "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}  # fmt: skip
        self.process = subprocess.Popen(
            [*GPUCTL, "top", "-i", "0.1"],
            stdin=other, stdout=other, stderr=other, env=environment,
        )  # fmt: skip
        os.close(other)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._own, keys.encode())

    def until(self, holds: Callable[[], object]) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < end, self.shown[-2000:]
            if select.select([self._own], [], [], 0.05)[0]:
                with suppress(OSError):  # it has ended
                    self.shown += os.read(self._own, 1 << 16).decode(errors="replace")

    def until_shown(self, pattern: str) -> None:
        """Wait until text like this is drawn, from now on."""
        self.shown = ""
        plain = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
        self.until(lambda: re.search(pattern, plain.sub("", self.shown)))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


@contextmanager
def terminal(path: Path) -> Iterator[Terminal]:
    one = Terminal(path)
    try:
        yield one
    finally:
        one.close()


def test_keys_on_a_terminal(peer: Peer) -> None:
    with terminal(Path(peer.path)) as screen:
        screen.until_shown("q quit")
        screen.press("\x1b[B")
        screen.until_shown(r"> +3\.17")
        screen.press("r")
        screen.until_shown("new quota of job 3.17")
        screen.press("25%\r")
        screen.until(lambda: peer.of(Resize))
        screen.press("c")
        screen.until_shown(r"cancel job 3\.17\? y/n")
        screen.press("y")
        screen.until(lambda: peer.of(Cancel))
        screen.press("q")
        screen.until(lambda: screen.process.poll() is not None)
        assert screen.process.returncode == DONE
    assert peer.of(Cancel)[0].job == (3, 17)
    assert Fraction(*peer.of(Resize)[0].quota) == 2


def test_it_goes_on_with_the_next_daemon() -> None:
    folder = Path(tempfile.mkdtemp(prefix="gpud-"))
    path = folder / "s"
    with scripted(path) as peer, terminal(path) as screen:
        screen.until_shown("q quit")
        peer.hang_up_at = Query
        screen.until_shown("waiting for the daemon")
        peer.hang_up_at = None
        peer.answers["status"] = {**ANSWERS["status"], "version": "0.9.9"}
        screen.until_shown(r"gpud 0\.9\.9")
        screen.press("q")
        screen.until(lambda: screen.process.poll() is not None)
    shutil.rmtree(folder)
