"""Trains something with a framework on a GPU, alone or in turns; prints what came of it as JSON.

    python tests/support/train_on_gpu.py pytorch|cupy|numba [--turns [--movable]]

With ``--turns`` its adapter is installed, for the daemon that ``GPUD_SOCKET`` names; with
``--movable`` what it keeps may be in host memory between its turns.
"""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import Any

import numpy as np

ITERATIONS = 30
N = 1 << 20
SIZES: dict[str, Any] = {"persistent": "256MiB", "temporary": "128MiB", "offset": "64MiB"}


def with_pytorch(memory: Any) -> list[float]:
    """Train a net of two layers; the losses."""
    import torch

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)
    ).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    data = torch.randn(512, 1024).cuda()
    labels = torch.randint(0, 10, (512,)).cuda()
    losses = []
    for _ in range(ITERATIONS):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def with_cupy(memory: Any) -> list[float]:
    """Descend to a goal; the distances."""
    import cupy

    with memory.iteration() if memory else nullcontext():
        goal = cupy.linspace(0, 1, N, dtype=cupy.float32)
        weights = cupy.zeros(N, cupy.float32)
    distances = []
    for _ in range(ITERATIONS):
        with memory.iteration() if memory else nullcontext():
            gradient = 2 * (weights - goal)
            weights -= cupy.float32(0.2) * gradient
            distances.append(float(abs(weights - goal).max()))
            del gradient
    return distances


def with_numba(memory: Any) -> list[float]:
    """Descend to a goal; the distances."""
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def step(weights: Any, gradient: Any, goal: Any) -> None:
        i = cuda.grid(1)
        gradient[i] = np.float32(2) * (weights[i] - goal[i])
        weights[i] -= np.float32(0.2) * gradient[i]

    values = np.linspace(0, 1, N, dtype=np.float32)
    with memory.iteration() if memory else nullcontext():
        goal = cuda.to_device(values)
        weights = cuda.to_device(np.zeros(N, np.float32))
    distances = []
    for _ in range(ITERATIONS):
        with memory.iteration() if memory else nullcontext():
            gradient = cuda.device_array(N, np.float32)
            step[N // 256, 256](weights, gradient, goal)
            distances.append(float(np.abs(weights.copy_to_host() - values).max()))
            del gradient
    return distances


def main() -> None:
    """Train."""
    name = sys.argv[1]
    train = {"pytorch": with_pytorch, "cupy": with_cupy, "numba": with_numba}[name]
    memory, session, turns, moved = None, None, 0, 0
    if "--turns" in sys.argv:
        import importlib

        import gpud_client as gc

        session = gc.connect()
        adapter = importlib.import_module(f"gpud_client.adapters.{name}")
        memory = adapter.install(session, **SIZES, movable="--movable" in sys.argv)
    found = train(memory)
    if memory is not None and session is not None:
        seen = session.query("workloads")
        rows, moved = seen["workloads"], seen["moved"]["moved_bytes"]
        turns = next(row["turns"] for row in rows if row["workload"] == memory.workload._number)
    print(json.dumps({"values": found, "turns": turns, "moved_bytes": moved}))


if __name__ == "__main__":
    main()
