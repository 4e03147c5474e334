"""A GPU has no lanes: what a program that asks for one is told, over the model of the driver."""

from __future__ import annotations

import numpy as np
import pytest

import gpud_client as gc
from tests.gpu.served_daemon import Served

ADD = 'extern "C" __global__ void add(unsigned* out) { atomicAdd(out, 1u); }'


async def test_a_lane_is_refused_and_a_stream_works_instead() -> None:
    daemon = Served()
    try:
        with daemon.connect() as gpu:
            told = "has no lanes yet: submit to a stream of gpu.stream()"
            for share in ({"reservation": 1}, {"quota": 1}):
                with pytest.raises(gc.InvalidArgument, match=told):
                    gpu.lane(**share)  # type: ignore[arg-type]
            async with gc.aconnect(gpu.path) as other:
                with pytest.raises(gc.InvalidArgument, match=told):
                    await other.lane(reservation=1)
            out = gpu.zeros(1, np.uint32)
            gpu.kernel(ADD, "add").submit(1, 1, (out,), stream=gpu.stream()).result(60)
            assert out.get()[0] == 1
    finally:
        daemon.close()
