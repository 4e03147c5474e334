"""Hostile rings at lanes of the CUDA device, over the model: those lanes end, and no other."""

from __future__ import annotations

from tests.faults.rings import hostile, run
from tests.gpu.served_daemon import Served


def test_hostile_rings_end_their_lanes_and_no_other() -> None:
    served = Served(log_level="error")
    try:
        with served.connect() as gpu:
            found = run.measure(gpu, 1500, seed=7)
    finally:
        served.close()
    assert not found["wrong"]
    assert found["rings"] >= 1500
    assert set(found["by_kind"]) >= set(hostile.BREAKS)
    assert found["beside_launches"] > 10
