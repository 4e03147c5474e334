"""Hostile rings at lanes of the CUDA device, over the model: those lanes end, and no other."""

from __future__ import annotations

import pytest

from campaigns.rings import hostile, run
from tests.gpu.served_daemon import Served

pytestmark = pytest.mark.ci


def test_hostile_rings_end_their_lanes_and_no_other() -> None:
    served = Served(log_level="error")
    try:
        with served.connect() as gpu:
            found = run.measure(gpu, 1500, seed=7)
    finally:
        served.close()
    assert not found["wrong"]
    assert found["rings"] >= 1500
    # A record that changes while it is read counts, too: how many lanes there are is chance.
    assert len(set(found["by_kind"]) & set(hostile.BREAKS)) >= len(hostile.BREAKS) // 2
    assert found["beside_launches"] > 10
