"""Makes this machine a node: starts its raylet with what its gpud has, and ends it again.

The raylet runs under ``ray start --block``, and that under `gpud_ray.node.keeper`, whose process is
noted in a file, so that ``down`` ends the processes that ``up`` has started and no others, as
``ray stop`` would. All of them are one process group, the keeper's: what a raylet that was killed
has left is found by it. A machine can have several nodes, to try things out; each has a file.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.errors import InvalidArgument
from gpud_ray.errors import NoCluster
from gpud_ray.node.keeper import STARTED

__all__ = ["Raylet", "end", "leave", "noted", "start"]

_START_S = 60.0
_LEAVE_S = 40.0
_END_S = 15.0
_POLL_S = 0.1

Raylet = dict[str, Any]
"""What a file notes: ``pid`` of the keeper and its process group, its start time ``begun``, the
cluster's ``address``, ``log``, the ``file`` itself, and the node's ``name`` in Ray. Ray's id is
another one after it has joined again."""


def noted() -> list[Raylet]:
    """Return this user's nodes on this machine, in the order of their start.

    Also those that have ended by themselves, and left processes of Ray.
    """
    found = []
    for file in sorted(_folder().glob("gpud-ray-*.json"), key=lambda file: int(file.stem[9:])):
        with suppress(OSError, ValueError, KeyError):
            raylet: Raylet = json.loads(file.read_text("utf-8")) | {"file": str(file)}
            if _running(raylet):
                found.append(raylet)
                continue
        file.unlink(missing_ok=True)
    return found


def _folder() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) if runtime else Path(f"/tmp/gpud-ray-{os.getuid()}")  # noqa: S108


def start(
    address: str | None,
    port: int,
    resources: dict[str, float],
    variables: dict[str, str],
    options: list[str],
    *,
    another: bool = False,
) -> Raylet:
    """Start a raylet, and with it a Ray cluster if there is no address to join.

    Args:
        address: ``host:port`` of the cluster; None: a new one, of which this is the head node.
        port: Of a new cluster.
        resources: What the node announces.
        variables: Of its environment, beside those of this process.
        options: Further options of ``ray start``.
        another: Whether this machine may have a node already.

    Raises:
        InvalidArgument: A node runs here already.
        NoCluster: Ray did not start; the message holds the end of its log.
    """
    running = noted()
    if running and not another:
        raise InvalidArgument(
            f"this machine is a node of {running[0]['address']} already: gpud-ray down ends it, "
            "and gpud-ray up --another adds a second node"
        )
    number = 1 + max((int(Path(one["file"]).stem[9:]) for one in running), default=0)
    file = _folder() / f"gpud-ray-{number}.json"
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = file.with_suffix(".log")
    log.write_bytes(b"")
    name = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    command = [sys.executable, "-m", "gpud_ray.node.keeper", str(log),
               sys.executable, "-m", "ray.scripts.scripts", "start", "--block",
               "--disable-usage-stats", f"--resources={json.dumps(resources)}",
               f"--node-name={name}"]  # fmt: skip
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
        "file": str(file),
        "name": name,
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
            [sys.executable, "-m", "gpud_ray.node.leave", raylet["address"], raylet["name"]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            timeout=_LEAVE_S, check=False,
        )  # fmt: skip


def end(raylet: Raylet) -> None:
    """End all processes of a node, wait until they have ended, and leave no file behind."""
    pid = int(raylet["pid"])
    if _begun(pid) == raylet["begun"]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)  # then Ray ends what it has started
        _wait(lambda: _begun(pid) != raylet["begun"])
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _wait(lambda: not _running(raylet))
    Path(raylet["file"]).unlink(missing_ok=True)
    _forget_address()


def _running(raylet: Raylet) -> bool:
    """Return whether a process of a node is left: the keeper, or one of its group.

    A number that is still some group's is no process's, so this group can be no other's.
    """
    pid = int(raylet["pid"])
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # if `up` itself has started it
    begun = _begun(pid)
    if begun is not None:
        return bool(begun == raylet["begun"])
    return any(_group(one) == pid for one in Path("/proc").glob("[0-9]*"))


def _wait(over: Callable[[], bool]) -> None:
    until = time.monotonic() + _END_S
    while not over() and time.monotonic() < until:
        time.sleep(_POLL_S)


def _forget_address() -> None:
    """Remove Ray's note of a cluster if nothing listens there: it would be waited for."""
    from ray._private.utils import get_ray_address_file

    file = Path(get_ray_address_file(None))
    try:
        host, _, port = file.read_text("utf-8").strip().rpartition(":")
        socket.create_connection((host, int(port)), timeout=1).close()
    except (ConnectionRefusedError, ValueError):
        file.unlink(missing_ok=True)
    except OSError:
        pass  # there is none, or it may be there


def _stat(process: Path) -> list[str]:
    """Return the fields of a process from its state on; none if it is gone, or a zombie."""
    try:
        fields = (process / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []
    return [] if fields[0] == "Z" else fields


def _group(process: Path) -> int | None:
    fields = _stat(process)
    return int(fields[2]) if fields else None


def _begun(pid: int) -> int | None:
    """Return when a process began, in ticks since the machine did; None if there is none."""
    fields = _stat(Path(f"/proc/{pid}"))
    return int(fields[19]) if fields else None
