"""Corrupted messages to a daemon that serves a GPU, over the model of the driver.

There arrays are copied, memory is backed when it is allocated and given back in parts, and clients
may map it: messages of which a daemon with a CPU device refuses most.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from campaigns.fuzz import live
from campaigns.fuzz.parser import Outcomes
from tests.gpu.served_daemon import Served
from tests.support.daemon_process import connected
from tests.support.waiting import until

CONNECTIONS = 60
SEED = os.environ.get("GPUD_FUZZ_SEED", "test")


@pytest.fixture
def served() -> Iterator[Served]:
    daemon = Served(memory="32MiB", turn_slice="2ms", turn_linger="20ms")
    daemon.folder.chmod(0o755)
    Path(daemon.path).chmod(0o666)
    yield daemon
    daemon.close()


@pytest.mark.ci
@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed, who cannot end the daemon")
def test_a_daemon_with_a_gpu_answers_for_every_message_and_gives_all_memory_back(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: Outcomes = Counter()
    with served.connect() as neighbour:
        mine = neighbour.array(np.arange(100))
        used = int(neighbour.query("status")["devices"][0]["memory_used_bytes"])
        foreign = {"array": [mine.ptr]}
        for number in range(CONNECTIONS):
            sock = connected(served.path, other_user=True)
            live.fuzz_connection(sock, f"{SEED}:{number}", 300, outcomes, foreign)
        assert (mine.get() == np.arange(100)).all()
        until(lambda: neighbour.query("status")["devices"][0]["memory_used_bytes"] == used)
        assert not neighbour.query("workloads")["workloads"]
        assert neighbour.query("status")["devices"][0]["restarts"] == 0
    for kind in ("ExportArray", "OpenWorkload", "FitWorkload", "RegionMoved", "Download"):
        assert sum(n for (what, _, _), n in outcomes.items() if what == kind) > 100
    bugs = [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR]
    assert bugs == []
