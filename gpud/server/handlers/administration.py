"""Handles what changes the daemon for everybody: pause, drain. For root and the daemon's user."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from gpud.core import events as ev
from gpud.core.lifecycles import JobState
from gpud.errors import Draining, InvalidArgument, UnknownName
from gpud.server.handlers.device_rows import DeviceRows
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.runner import Runner
from gpud.server.shared import SharedState
from gpud.server.state.access import may_manage, user_name
from gpud.server.state.session import Session
from gpud.wire import messages as wm

__all__ = ["Administration", "check_administrator"]

_LOG = logging.getLogger(__name__)


class Administration:
    """Handles requests of administrators.

    Args:
        state: the jobs, the records and the settings.
        devices: by index.
        device_rows: makes rows about devices.
        runner: feeds the scheduler.
        drain: begins to end the daemon.
    """

    def __init__(
        self,
        state: SharedState,
        devices: Devices,
        device_rows: DeviceRows,
        runner: Runner,
        drain: Callable[[], None],
    ) -> None:
        self._state = state
        self._devices = devices
        self._device_rows = device_rows
        self._runner = runner
        self._drain = drain

    def pause(self, session: Session, message: wm.Pause) -> None:
        """Handle `Pause`: answer what is there on each device."""
        check_administrator(session, "pause devices, or let them go on")
        known = [device.index for device in self._devices]
        unknown = [index for index in message.devices if index not in known]
        if unknown:
            raise UnknownName(
                f"there is no device {unknown[0]}; there are {', '.join(map(str, known))}: see "
                "gpuctl status"
            )
        if message.on and self._runner.draining:
            raise Draining("the daemon drains: it starts no new jobs, and ends after those it has")
        user, now_ns = user_name(session.uid), time.monotonic_ns()
        since = time.strftime("%Y-%m-%d %H:%M")
        what = "device-paused" if message.on else "device-resumed"
        for index in message.devices or known:
            _LOG.info("device %d: %s by %s", index, "paused" if message.on else "resumed", user)
            self._state.records.add_event(now_ns, what, None, ("device", index), ("user", user))
            if message.on:
                self._runner.feed(ev.PauseRequested(now_ns, index, user, since, message.now))
            else:
                self._runner.feed(ev.ResumeRequested(now_ns, index))
            self._state.workloads.pause(index, on=message.on)
        rows = [self._row(index) for index in message.devices or known]
        session.send(wm.Answer(message.request, {"devices": rows}))

    def drain(self, session: Session, message: wm.Drain) -> None:
        """Handle `Drain`: answer how many jobs are waited for, and for how long."""
        check_administrator(session, "end the daemon")
        _LOG.info("%s drains the daemon", user_name(session.uid))
        jobs = len(self._state.jobs)
        timeout_s = self._state.config.drain_timeout_ns / 1e9
        session.send(wm.Answer(message.request, {"jobs": jobs, "timeout_s": timeout_s}))
        self._drain()

    def _row(self, index: int) -> dict[str, Any]:
        jobs = self._runner.scheduler.devices[index].jobs.values()
        waiting = sum(job.state is JobState.WAITING for job in jobs)
        running = sum(job.alloc > 0 for job in jobs)
        stopped = sum(job.state is JobState.PAUSED for job in jobs)
        return {
            "index": index,
            "spec": self._devices[index].spec,
            "paused": self._device_rows.pause_of(index),
            "waiting": waiting,
            "running": running,
            "stopped": stopped,
        }


def check_administrator(session: Session, what: str) -> None:
    """Check that a client may do what changes the daemon for everybody.

    Raises:
        InvalidArgument: it may not.
    """
    if not may_manage(session.peer, -1):
        raise InvalidArgument(f"only root and the daemon's own user may {what}; try it with sudo")
