"""Makes this machine a node: starts its raylet with what its gpud has, and ends it again.

The raylet runs under ``ray start --block``, and that under `gpud_ray.node.keeper`, whose process is
noted in a file, so that ``down`` ends the processes that ``up`` has started and no others, as
``ray stop`` would.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import InvalidArgument
from gpud_ray.errors import NoCluster
from gpud_ray.node.keeper import STARTED

__all__ = ["Raylet", "end", "leave", "note_file", "noted", "start"]

_START_S = 60.0
_LEAVE_S = 40.0
_END_S = 15.0
_POLL_S = 0.1

Raylet = dict[str, Any]
"""What the file notes: ``pid``, its start time ``begun``, ``address``, ``log``."""


def note_file() -> Path:
    """Return the path of the file that notes this user's node on this machine."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) if runtime else Path(f"/tmp/gpud-ray-{os.getuid()}")  # noqa: S108
    return folder / "gpud-ray.json"


def noted() -> Raylet | None:
    """Return the node that runs; None if there is none."""
    try:
        raylet: Raylet = json.loads(note_file().read_text("utf-8"))
        begun = raylet["begun"]
    except (OSError, ValueError, KeyError):
        return None
    return raylet if _begun(int(raylet["pid"])) == begun else None


def start(
    address: str | None,
    port: int,
    resources: dict[str, float],
    variables: dict[str, str],
    options: list[str],
) -> Raylet:
    """Start a raylet, and with it a Ray cluster if there is no address to join.

    Args:
        address: ``host:port`` of the cluster; None: a new one, of which this is the head node.
        port: Of a new cluster.
        resources: What the node announces.
        variables: Of its environment, beside those of this process.
        options: Further options of ``ray start``.

    Raises:
        InvalidArgument: A node runs here already.
        NoCluster: Ray did not start; the message holds the end of its log.
    """
    running = noted()
    if running is not None:
        raise InvalidArgument(
            f"this machine is a node of {running['address']} already: gpud-ray down ends it"
        )
    file = note_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = file.with_suffix(".log")
    log.write_bytes(b"")
    command = [sys.executable, "-m", "gpud_ray.node.keeper", str(log),
               sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
               "--disable-usage-stats", f"--resources={json.dumps(resources)}"]  # fmt: skip
    command += [f"--address={address}"] if address else ["--head", f"--port={port}"]
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*command, *options], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            env={**os.environ, **variables}, start_new_session=True,
        )  # fmt: skip
    raylet: Raylet = {
        "pid": process.pid,
        "begun": _begun(process.pid),
        "address": address or f"127.0.0.1:{port}",
        "log": str(log),
    }
    file.write_text(json.dumps(raylet), "utf-8")
    end_s = time.monotonic() + _START_S
    while time.monotonic() < end_s:
        if STARTED in log.read_bytes():
            return raylet
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    end(raylet)
    said = log.read_text("utf-8", "replace").strip().splitlines()[-8:]
    raise NoCluster("Ray did not start; its log ends with:\n" + "\n".join(said))


def leave(raylet: Raylet) -> None:
    """Take a node's agent out, if Ray answers there at this moment."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(
            [sys.executable, "-m", "gpud_ray.node.leave", raylet["address"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_LEAVE_S, check=False,
        )  # fmt: skip


def end(raylet: Raylet) -> None:
    """End a node's raylet, and wait until it has ended."""
    pid = int(raylet["pid"])
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _END_S
        if _begun(pid) == raylet["begun"]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal_number)
        while _begun(pid) == raylet["begun"] and time.monotonic() < until:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL_S)
    note_file().unlink(missing_ok=True)


def _begun(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])
