"""Records what PyTorch allocates while it trains a small net on the CPU; needs PyTorch.

    python tests/support/record_pytorch.py tests/unit/client/recordings/pytorch_adam.json.gz

Of the profiler's trace only the rows are kept that a recording is made of, without the rest.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ITERATIONS = 6


def train(torch: Any, iterations: int) -> list[float]:
    """Train a small convolution net with Adam; the losses."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = torch.nn
    model = layers.Sequential(
        layers.Conv2d(3, 16, 3, padding=1),
        layers.ReLU(),
        layers.Flatten(),
        layers.Linear(16 * 16 * 16, 128),
        layers.ReLU(),
        layers.Linear(128, 10),
    )
    optimiser = torch.optim.Adam(model.parameters())
    losses = []
    images, labels = torch.randn(32, 3, 16, 16), torch.randint(0, 10, (32,))
    for _ in range(iterations):
        optimiser.zero_grad()
        loss = layers.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def record(path: Path) -> None:
    """Write the recording."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train(torch, ITERATIONS)
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole.json"
        profiler.export_chrome_trace(str(whole))
        trace = json.loads(whole.read_text())
    first = min(row["ts"] for row in trace["traceEvents"] if "ts" in row)
    rows = []
    for row in trace["traceEvents"]:
        kept = {"name": row.get("name"), "ph": row["ph"], "ts": round(row.get("ts", 0) - first, 3)}
        if kept["name"] == "[memory]":
            names = ("Bytes", "Addr", "Device Id")
            rows.append({**kept, "args": {name: row["args"][name] for name in names}})
        elif str(kept["name"]).startswith("Optimizer.step#"):
            rows.append({**kept, "dur": row["dur"]})
    text = json.dumps({"PyTorch": torch.__version__, "traceEvents": rows})
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    record(Path(sys.argv[1]))
