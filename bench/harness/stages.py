"""One job's way by function: the processor time that each stage takes of its thread.

`time_stages` is called in each process before anything of gpud is imported there. It wraps the
functions of `STAGES` and adds up the processor time of their threads, without that of stages which
they call. What it takes to measure is some 1 us a stage, which counts as the caller's.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["STAGES", "Spent", "time_stages"]

Spent = dict[str, tuple[int, int]]
"""By stage: calls, and ns."""

STAGES = {
    "client": (
        "gpud_client.launch.argument_packer:ArgumentPacker.pack",
        "gpud_client.connection.channel:Channel.submitting",
        "gpud_client.connection.channel:Channel._send",
        "gpud_client.connection.channel:Channel.wait",
        "gpud_client.connection.protocol_state:ProtocolState.settle",
        "gpud.wire.message_table:MessageTable.decode",
        "gpud.wire.message_table:MessageTable.encode",
    ),
    "front": (
        "gpud.server.ipc.stream:Stream._readable",
        "gpud.server.ipc.stream:Stream.flush",
        "gpud.wire.message_table:MessageTable.decode",
        "gpud.wire.message_table:MessageTable.encode",
        "gpud.server.handlers.submission:Submission.submit",
        "gpud.server.hosts.runner:Runner.feed",
        "gpud.core.scheduler:Scheduler.handle",
        "gpud.server.hosts.dispatcher:JobDispatcher.start",
        "gpud.server.hosts.runner:Runner.job_ended",
        "gpud.server.state.session:Session.job_finished",
        "gpud.server.state.job_history:JobHistory.add",
    ),
    "device host": (
        "gpud.wire.message_table:MessageTable.decode",
        "gpud.wire.message_table:MessageTable.encode",
        "gpud.device.host.host:Host.carry_out",
        "gpud.device.host.sequence_cache:SequenceCache.prepared",
        "gpud.device.cpu.device:CPUDevice.new_run",
        "gpud.device.cpu.scheduling.run:CPURun.resize",
        "gpud.device.cpu.sm.virtual_sm:VirtualSM.add",
        "gpud.device.cpu.scheduling.block_scheduler:BlockScheduler._left",
        "gpud.device.host.running_job:RunningJob.report",
        "gpud.device.host.link:Link.send",
    ),
}
"""Module and function, of each process."""


def time_stages(side: str) -> Spent:
    """Measure the stages of a process from now on; the map returned fills up."""
    spent: Spent = {}
    for place in STAGES[side]:
        module, _, path = place.partition(":")
        owner, _, name = path.partition(".")
        holder = getattr(importlib.import_module(module), owner)
        setattr(holder, name, _timed(getattr(holder, name), path, spent))
    return spent


_inner = threading.local()


def _timed(function: Callable[..., Any], name: str, spent: Spent) -> Callable[..., Any]:
    spent[name] = (0, 0)
    now = time.thread_time_ns

    @wraps(function)
    def timed(*given: Any, **options: Any) -> Any:
        before = getattr(_inner, "ns", 0)
        _inner.ns = 0
        began = now()
        try:
            return function(*given, **options)
        finally:
            took = now() - began
            calls, total = spent[name]
            spent[name] = (calls + 1, total + took - _inner.ns)
            _inner.ns = before + took

    return timed
