"""A lane between its launches, through a daemon: who has its share, and that it comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import gpud_client as gc
from gpud_client.cli.app import app
from tests.support.waiting import until

LIMIT_S = 30.0
SOURCE = r"""
extern "C" __global__ void spin(volatile unsigned* open) { while (!*open) {} }
extern "C" __global__ void put(unsigned* open, unsigned value) { *open = value; }
extern "C" __global__ void work(unsigned* done) {
    volatile unsigned x = 0;
    for (int i = 0; i < 20000; i++) x += i;
    atomicAdd(done, 1u);
}
extern "C" __global__ void count(unsigned* ran) { atomicAdd(&ran[blockIdx.x], 1u); }
"""


class Beside:
    """An offline job that could use all of a device with two SMs."""

    def __init__(self, gpu: gc.Session) -> None:
        self.gpu = gpu
        self.done = gpu.zeros(1, np.uint32)
        self.job = gpu.kernel(SOURCE, "work").submit(1 << 24, 256, (self.done,))

    def has(self, sms: int) -> None:
        until(lambda: self.job.allocation == Fraction(sms))


@pytest.fixture
def beside(server: gc.Session) -> Iterator[Beside]:
    with gc.connect(server.path) as other:
        yield Beside(other)


def rows(gpu: gc.Session) -> dict[str, Any]:
    found = CliRunner().invoke(app, ["ps", "--json", "--socket", str(gpu.path)])
    assert found.exit_code == 0, found.output
    return {row["kind"]: row for row in json.loads(found.output)["jobs"]}


def test_an_idle_lane_lends_its_share_and_has_it_for_each_launch(
    gpu: gc.Session, beside: Beside
) -> None:
    spin, count = gpu.kernel(SOURCE, "spin"), gpu.kernel(SOURCE, "count")
    gate, ran = gpu.zeros(1, np.uint32), gpu.zeros(64, np.uint32)
    put = gpu.kernel(SOURCE, "put")  # `set` would wait for who uses it
    with gpu.lane(reservation=1) as lane:
        for turn in range(1, 4):
            beside.has(2)
            put.submit(1, 1, (gate, 0)).result(timeout=LIMIT_S)
            held = spin.submit(1, 1, (gate,), stream=lane)
            beside.has(1)  # for as long as something runs in the lane
            put.submit(1, 1, (gate, 1)).result(timeout=LIMIT_S)
            held.result(timeout=LIMIT_S)
            count.submit(64, 32, (ran,), stream=lane).result(timeout=LIMIT_S)
            assert (ran.get() == 32 * turn).all()
    beside.has(2)


def test_what_a_lane_lends_is_shown(gpu: gc.Session, beside: Beside) -> None:
    with gpu.lane(reservation=1):
        beside.has(2)
        until(lambda: rows(gpu)["online"]["state"] == "idle")
        row = rows(gpu)["online"]
        assert row["waits_for"] == "lends 1 SM; 1 job gives 1 back at its next launch"
        assert row["allocation"] == "0"
        found = CliRunner().invoke(app, ["why", row["id"], "--socket", str(gpu.path)])
        assert "it is idle, and lends 1 SM until its next launch" in found.output
        assert "is to give 1 SM back then" in found.output
