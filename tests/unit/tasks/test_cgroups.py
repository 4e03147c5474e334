"""Tasks in cgroups: on a real cgroup v2 where this process may make one, else on files like one."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.tasks.runner.attempts import Attempt
from gpud.tasks.runner.cgroups import CgroupControl
from tests.support.waiting import until

MOUNTS = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]


@pytest.fixture
def base() -> Iterator[Path]:
    mounts = [fields[1] for fields in MOUNTS if fields[2] == "cgroup2"]
    folder = Path(mounts[0] if mounts else "/nowhere", f"gpud-test-{uuid.uuid4().hex[:8]}")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("no cgroup v2 can be made here")
    yield folder
    folder.rmdir()


def test_all_processes_of_a_task_are_frozen_and_killed(base: Path, tmp_path: Path) -> None:
    control = CgroupControl(base)
    attempt = Attempt(1, 1, tmp_path / "1.1")
    (folder,) = control.prepare("1.1", (0,), None)
    ticks = tmp_path / "ticks"
    program = (
        "import os, sys, time\n"
        "open(sys.argv[1] + '/cgroup.procs', 'w').write('0')\n"
        "os.fork()\n"
        "while True: open(sys.argv[2], 'a').write('.'); time.sleep(0.001)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, folder, str(ticks)])
    try:
        until(lambda: ticks.exists() and len(ticks.read_text()) > 3)
        control.freeze(attempt)
        events = Path(folder, "cgroup.events")
        until(lambda: "frozen 1" in events.read_text())
        before = ticks.read_text()
        control.thaw(attempt)
        until(lambda: len(ticks.read_text()) > len(before))
    finally:
        control.remove("1.1")
        process.wait()
    until(lambda: not events.exists() or "populated 0" in events.read_text())
    control.remove("1.1")
    assert not Path(folder).exists()


def test_limits_are_written_and_what_the_kernel_says_is_told(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset memory pids")
    control = CgroupControl(tmp_path)
    assert control.describe == "cgroup v2 (cpuset, memory, freezer)"
    attempt = Attempt(7, 2, Path("7.2"))
    (folder,) = map(Path, control.prepare("7.2", (1, 3), 1 << 20))
    assert (folder / "cpuset.cpus").read_text() == "1,3"
    assert (folder / "memory.max").read_text() == "1048576"
    control.set_cpus(attempt, (2,))
    assert (folder / "cpuset.cpus").read_text() == "2"
    assert control.about(attempt) == ""
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert "more memory than it may have" in control.about(attempt)
