"""The load of other programs is distinguished from that of this process tree."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpud.demo import background_load
from gpud.demo.background_load import BackgroundLoad, others

SPIN = "import time\nwhile time.process_time() < 0.3: pass"


def test_our_own_work_and_our_childrens_does_not_count() -> None:
    load = BackgroundLoad()
    before = background_load._tree(os.getpid())
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    end = time.process_time() + 0.1
    while time.process_time() < end:
        pass
    used = (background_load._tree(os.getpid()) - before) / os.sysconf("SC_CLK_TCK")
    assert used > 0.2  # of 0.4 s; the kernel counts in ticks
    share = load.share()
    assert share is not None
    assert 0 <= share <= 1.1


def test_what_is_busy_and_not_ours_is_others() -> None:
    assert others((0.0, 100.0, 50.0), (10.0, 112.0, 54.0), cores=2) == pytest.approx(0.4)
    assert others((0.0, 100.0, 50.0), (10.0, 104.0, 54.1), cores=2) == 0  # ticks are rounded
    assert others((5.0, 1.0, 1.0), (5.0, 2.0, 1.0), cores=2) == 0


def test_a_machine_that_does_not_tell_has_no_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background_load, "_PROC", tmp_path)
    assert BackgroundLoad().share() is None
