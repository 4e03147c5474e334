"""Kernels that take long without an endless loop end alone: a neighbour's running job goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from campaigns.neighbour_costs.kernels import COSTLY, GATE
from tests.support.waiting import until

pytestmark = pytest.mark.ci

TIMEOUT_S = 60.0
GRACE_S = 3  # a busy machine must come to a poll in this time
LIMIT_S = 0.3


@pytest.fixture(scope="module")
def server() -> Iterator[gc.Session]:
    with gc.local("cpu:2", grace=GRACE_S) as gpu:
        yield gpu


@pytest.mark.parametrize("name", COSTLY)
def test_it_times_out_alone(server: gc.Session, name: str) -> None:
    with gc.connect(server.path) as culprit, gc.connect(server.path) as neighbour:
        gate = neighbour.zeros(2, np.int32)
        words = gate.numpy()
        done = neighbour.zeros(1, np.int32)
        running = neighbour.kernel(GATE, "waits").submit(1, 32, (gate, done), quota=1)
        until(lambda: words[1] == 1)
        kernel = culprit.kernel(COSTLY[name], "k")
        data = culprit.zeros(1 << 14, np.int32)
        job = kernel.submit(64, 1024, (data,), quota=1, timeout=LIMIT_S)
        began = time.monotonic()
        with pytest.raises(gc.JobTimeout):
            job.result(TIMEOUT_S)
        assert time.monotonic() - began < LIMIT_S + 2 * GRACE_S
        assert running.running(), "the neighbour's job goes on"
        words[0] = 1
        running.result(TIMEOUT_S)
        assert done.get()[0] == 1
