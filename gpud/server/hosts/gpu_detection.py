"""Detects whether this machine has a usable GPU, before any device host is started.

The daemon does not load CUDA, so another process queries the driver: `gpud.device.cuda.probe`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from gpud.errors import GpudError, InvalidArgument, from_wire

__all__ = ["check_gpu", "has_gpu"]

_ANSWER_S = 60.0
_DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""Files of which one exists where the driver is installed, on Linux and under WSL."""


def has_gpu() -> bool:
    """Whether the first GPU is usable; quick where there is no driver."""
    if not any(Path(name).exists() for name in _DRIVER_FILES):
        return False
    try:
        check_gpu(0)
    except GpudError:
        return False
    return True


def check_gpu(index: int) -> None:
    """Check that GPU ``index`` is usable. Blocks while another Python process queries the driver.

    Raises:
        MissingDependency: a library is missing that can be installed.
        InvalidArgument: there is no driver or no such GPU, or the driver does not answer.
    """
    command = [sys.executable, "-m", "gpud.device.cuda.probe", str(index)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ANSWER_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise InvalidArgument(
            f"cuda:{index} cannot be used: the driver does not answer; see nvidia-smi and dmesg"
        ) from None
    try:
        error = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise InvalidArgument(
            f"cuda:{index} cannot be used: asking the driver failed ({said}); see nvidia-smi"
        ) from None
    if error is not None:
        raise from_wire(error)
