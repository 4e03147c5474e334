"""Keeps this machine a node: runs Ray on it, and again after Ray has given the node up.

Ray ends a node that it could not reach for some fifteen seconds, also when the network is back.
Then the machine joins again, as a new node of Ray, and the head of gpud-ray makes its agent. The
machine that has Ray's own state is not started again: that state is lost.

Run it: python -m gpud_ray.node.keeper LOG COMMAND [ARGUMENT ...]
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

__all__ = ["STARTED", "keep"]

STARTED = b"Ray runtime started"
"""What ``ray start`` writes when the node is there."""

_END_S = 10.0
_LEAST_S, _MOST_S = 1.0, 30.0  # between two starts
_SETTLED_S = 60.0


def keep(log: Path, command: Sequence[str]) -> int:
    """Run the command until this process is told to end; return its last exit status.

    It is started again unless it never succeeded, or makes a cluster of its own.
    """
    child: subprocess.Popen[bytes] | None = None

    def end(_number: int, _frame: FrameType | None) -> None:
        if child is not None:
            child.terminate()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    rest_s = _LEAST_S
    while True:
        began = time.monotonic()
        with log.open("ab") as output:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        status = child.wait()
        if "--head" in command or STARTED not in log.read_bytes():
            return status
        settled = time.monotonic() - began > _SETTLED_S
        rest_s = _LEAST_S if settled else min(2 * rest_s, _MOST_S)
        with log.open("ab") as output:
            said = f"gpud-ray: Ray has ended here (status {status}); again in {rest_s:g} s\n"
            output.write(said.encode())
        time.sleep(rest_s)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(keep(Path(sys.argv[1]), sys.argv[2:]))
