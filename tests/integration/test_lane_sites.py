"""Launch sites of lanes: replaced when there are as many as there may be, and what has none."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gpud_client as gc
from gpud_client.launch import lane_sites

TIMEOUT_S = 60.0

COUNT = r"""
extern "C" __global__ void count(int* x, int by) { atomicAdd(x + blockDim.x, by); }
extern "C" __global__ void other(int* x, int y, int z, int by) { atomicAdd(x, by * y * z); }
"""
WHOLE = r"""
#include <cooperative_groups.h>
extern "C" __global__ void whole(int* x) { cooperative_groups::this_grid().sync(); *x = 1; }
"""


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[gc.Session]:
    """A session on the CPU device, and on the CUDA device over the model of the driver."""
    if request.param == "cpu":
        yield request.getfixturevalue("gpu")
        return
    with request.getfixturevalue("served").connect() as session:
        yield session


def test_least_recent_and_not_in_flight(
    device: gc.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_sites, "MOST_SITES", 3)
    module = device.module(COUNT)
    count, other = module.kernel("count"), module.kernel("other")
    x = device.zeros(64, np.int32)
    expected = np.zeros(64, np.int32)
    with device.lane(quota=1) as lane:
        for turn in range(1, 4):
            for block in (1, 2, 3, 4, 5, 32):
                count.submit(grid=1, block=block, args=(x, turn), stream=lane)
                expected[block] += block * turn
            other.submit(grid=1, block=1, args=(x, 2, 3, turn), stream=lane)
            expected[0] += 6 * turn
        lane.synchronize()
        assert lane._site_count == 3
        assert {site.number for site in lane._sites.values()} == {0, 1, 2}
        # What is used again and again stays.
        stays = next(site for (one, *_), site in lane._sites.items() if one is other)
        for block in (1, 2, 3, 4):
            count.submit(grid=1, block=block, args=(x, 1), stream=lane)
            expected[block] += block
            other.submit(grid=1, block=1, args=(x, 1, 1, 1), stream=lane)
            expected[0] += 1
        assert stays.number >= 0
        lane.synchronize()
    np.testing.assert_array_equal(x.get(), expected)


def test_a_sequence_of_more_launches_than_sites_is_refused(
    device: gc.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_sites, "MOST_SITES", 2)
    count = device.kernel(COUNT, "count")
    x = device.zeros(64, np.int32)
    with device.lane(quota=1) as lane:
        calls = [count.call(1, block, (x, 1)) for block in (1, 2, 3)]
        with pytest.raises(gc.LimitExceeded, match="fewer different launches"):
            device.sequence(calls, stream=lane)
        device.sequence(calls[:2], stream=lane).result(TIMEOUT_S)
        device.sequence(calls[1:], stream=lane).result(TIMEOUT_S)
    np.testing.assert_array_equal(x.get()[:5], [0, 1, 4, 3, 0])


def test_a_kernel_that_no_lane_can_launch_is_refused_with_the_reason(gpu: gc.Session) -> None:
    whole = gpu.kernel(WHOLE, "whole")
    x = gpu.zeros(1, np.int32)
    with gpu.lane(quota=1) as lane:
        with pytest.raises(gc.LaneRefused, match="another stream") as refused:
            whole.submit(grid=1, block=1, args=(x,), stream=lane)
        assert refused.value.reason == "whole"
    whole.submit(grid=1, block=1, args=(x,)).result(TIMEOUT_S)
    assert x.get() == [1]
