"""No wait for a launch in a lane needs the time limit with which a thread looks again."""

from __future__ import annotations

import time

import pytest

import gpud_client as gc
from gpud_client.launch import lane_completions

pytestmark = pytest.mark.ci

SOURCE = 'extern "C" __global__ void put(unsigned* out, unsigned i) { out[threadIdx.x] = i; }'
ROUND_TRIPS, LIMIT_S = 60_000, 2.0


def test_no_wake_up_is_lost_in_many_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_completions, "_LOOK_S", 2 * LIMIT_S)
    with gc.local("cpu:2") as gpu, gpu.lane(reservation=2) as lane:
        put, out = gpu.kernel(SOURCE, "put"), gpu.zeros(32, "uint32")
        for number in range(ROUND_TRIPS):
            grid = 1 + number % 2
            for _ in range(number % 15 - 10):  # some in front of it, now and then
                put.submit(grid, 32, (out, number), stream=lane)
            began = time.monotonic()
            put.submit(grid, 32, (out, number), stream=lane).result(30)
            assert time.monotonic() - began < LIMIT_S, f"round trip {number}"
