"""Answers the query "doctor": checks the running daemon."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
from itertools import islice
from pathlib import Path
from typing import Any

from gpud import __version__
from gpud.server.handlers.answers import Steps
from gpud.server.handlers.device_rows import DeviceRows
from gpud.server.hosts.compile_pool import CompilePool
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.ipc.event_loop import LIMIT_S, STALLS
from gpud.server.ipc.file_descriptors import DescriptorBudget
from gpud.server.shared import SharedState
from gpud.server.state.access import user_name

__all__ = ["Doctor"]

_LOOKS_AT_ONCE = 32  # descriptors
_ORPHANS_TOLD = 8


class Doctor:
    """Checks the daemon.

    Args:
        state: the settings in force.
        loop: the event loop.
        devices: by index.
        device_rows: makes rows about devices.
        compiler: the compile processes.
        runner: knows whether the daemon drains.
    """

    def __init__(
        self,
        state: SharedState,
        loop: asyncio.AbstractEventLoop,
        devices: Devices,
        device_rows: DeviceRows,
        compiler: CompilePool,
        runner: Runner,
    ) -> None:
        self._state = state
        self._loop = loop
        self._devices = devices
        self._device_rows = device_rows
        self._compiler = compiler
        self._runner = runner

    def checks(self) -> Steps[dict[str, Any]]:
        """Check everything, in slices."""
        _, loads = yield from self._device_rows.loads()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu_s = usage.ru_utime + usage.ru_stime
        opened = 0
        with os.scandir("/proc/self/fd") as descriptors_open:
            while counted := sum(1 for _ in islice(descriptors_open, _LOOKS_AT_ONCE)):
                opened += counted
                yield
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        loop = getattr(self._loop, "kind", type(self._loop).__module__.partition(".")[0])
        draining = (
            "it drains, and takes no new jobs: wait for those that gpuctl ps shows, or cancel them"
        )
        checks = [
            _check(
                "daemon",
                f"gpud {__version__}, Python {platform.python_version()}",
                draining if self._runner.draining else "",
            ),
            _check(
                "process",
                f"pid {os.getpid()}, user {user_name(os.geteuid())}, {cpu_s:.1f} s of processor "
                f"time, {_resident_bytes() >> 20} MiB of memory",
            ),
            _check("event loop", *_event_loop(loop)),
            _check("sessions", *self._sessions()),
            _check(
                "open files",
                f"{opened} of {most}",
                "raise LimitNOFILE, or ulimit -n: they do not suffice for max_connections"
                if DescriptorBudget(self._state.config.max_connections).remaining < 0
                else "",
            ),
            _check("socket", *self._reach()),
            _check("compiler", self._compiler.describe()),
            _check("bounds checks", *self._bounds_checks()),
        ]
        for device in self._devices:
            row = self._device_rows.row(device, loads[device.index])
            detail = f"{row['name']}, {row['sms']} SMs, {device.state}"
            if device.restarts:
                detail += (
                    f", started again {device.restarts} times: the last host {device.last_failure}"
                )
            hint = "see the daemon's log, then restart it" if device.state == "failed" else ""
            checks.append(_check(f"device {device.index}", detail, hint, device.state == "failed"))
        return {"checks": checks}

    def _reach(self) -> tuple[str, str]:
        """Say who can connect, and what keeps those from it who shall."""
        path = self._state.config.socket
        try:
            mode, folder = path.stat().st_mode, path.parent.stat().st_mode
        except OSError as error:
            return f"{path}: {error.strerror}", ""  # as with a socket that systemd has made
        who, bit = f"{user_name(os.geteuid())} and root", 0o100
        if mode & 0o006 == 0o006:
            who, bit = "everybody", 0o001
        elif mode & 0o060 == 0o060:
            who, bit = f"{who}, and group {path.group()}", 0o010
        hint = "" if folder & bit else f"the folder {path.parent} keeps them out: chmod a+x it"
        return f"{path} is for {who}", hint

    def _sessions(self) -> tuple[str, str]:
        sessions = self._state.sessions
        if not sessions.orphans:
            return str(len(sessions)), ""
        told = ", ".join(
            f"{one.number} ({one.program}, pid {one.peer.pid}, user {user_name(one.uid)})"
            for one in sessions.orphans[:_ORPHANS_TOLD]
        )
        return f"{len(sessions)}, {len(sessions.orphans)} orphaned: {told}", (
            "their processes have ended, and their connections are open: end the processes that "
            "inherited them; if there is none, report this"
        )

    def _bounds_checks(self) -> tuple[str, str]:
        if self._state.config.bounds_checks:
            return "on", ""
        hint = "kernels can reach other sessions' memory; turn them on"
        return f"off, by {self._state.config.origin('bounds_checks')}", hint


def _event_loop(kind: str) -> tuple[str, str]:
    """Return what is to be said of the event loop, and a hint."""
    longest = f"longest callback {STALLS.longest_s * 1e3:.0f} ms"
    if STALLS.longest:
        longest += f" ({STALLS.longest})"
    detail = f"{kind}, {longest}, {STALLS.count} over {LIMIT_S * 1e3:.0f} ms"
    if STALLS.count:
        return detail, "everybody waited for these: the log names them; report them"
    return detail, "" if kind == "uvloop" else "install uvloop: it answers sooner"


def _check(name: str, detail: str, hint: str = "", problem: bool = False) -> dict[str, Any]:
    state = "problem" if problem else "warning" if hint else "ok"
    return {"name": name, "state": state, "detail": detail, "hint": hint}


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
