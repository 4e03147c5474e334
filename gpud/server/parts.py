"""Makes the parts of a daemon and connects them; `gpud.server.daemon` starts and ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from gpud.config import Config
from gpud.core.scheduler import Scheduler
from gpud.server import logs, settings
from gpud.server.handlers.administration import Administration
from gpud.server.handlers.answers import Answers
from gpud.server.handlers.configuration import Configuration
from gpud.server.handlers.connections import Connections
from gpud.server.handlers.device_rows import DeviceRows
from gpud.server.handlers.doctor import Doctor
from gpud.server.handlers.followers import Followers
from gpud.server.handlers.history import HistoryRequests
from gpud.server.handlers.job_rows import JobRows
from gpud.server.handlers.jobs import JobRequests
from gpud.server.handlers.lanes import LaneRequests
from gpud.server.handlers.memory import MemoryRequests
from gpud.server.handlers.message_table import message_table
from gpud.server.handlers.metrics import metrics_text
from gpud.server.handlers.programs import ProgramRequests
from gpud.server.handlers.queries import Queries
from gpud.server.handlers.residency import LoadedModules
from gpud.server.handlers.submission import Submission
from gpud.server.handlers.variables import VariableRequests
from gpud.server.handlers.workload_rows import WorkloadRows
from gpud.server.handlers.workloads import WorkloadRequests
from gpud.server.hosts.compile_pool import CompilePool
from gpud.server.hosts.device import Device
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.gpu_monitors import GpuMonitors
from gpud.server.hosts.interface import HOST_COMMAND, Connect
from gpud.server.hosts.runner import Runner
from gpud.server.ipc.stream import Outbox
from gpud.server.shared import SharedState
from gpud.server.state.event_log import EventLog
from gpud.server.state.others import Others

__all__ = ["Parts", "make_parts"]


class Parts(NamedTuple):
    """What a daemon is made of, beside its devices and its sockets.

    Attributes:
        state: the data that all share.
        runner: feeds the scheduler.
        compiler: the compile processes.
        programs: compiles and loads programs.
        connections: the clients.
        configuration: changes the settings.
        gpu_monitors: read the GPUs' metrics.
        event_log: every event of the scheduler; None: there is no log.
        metrics_text: makes what Prometheus reads.
    """

    state: SharedState
    runner: Runner
    compiler: CompilePool
    programs: ProgramRequests
    connections: Connections
    configuration: Configuration
    gpu_monitors: GpuMonitors
    event_log: EventLog | None
    metrics_text: Callable[[], Awaitable[bytes]]


def make_parts(
    config: Config,
    loop: asyncio.AbstractEventLoop,
    devices: Devices,
    *,
    connect: Sequence[Connect] | None,
    host_command: Sequence[str],
    validate: bool,
    on_bug: Callable[[], None],
    drain: Callable[[], None],
) -> Parts:
    """Make all parts; nothing is started. ``devices``, which is empty, is filled.

    Args:
        config: the settings.
        loop: the event loop.
        devices: gets the devices.
        connect: as for `gpud.server.daemon.Daemon`.
        host_command: as there.
        validate: as there.
        on_bug: called when the scheduler has failed.
        drain: begins to end the daemon.

    Raises:
        InvalidArgument: the configuration cannot be used.
    """
    # What can fail comes before what would have to be closed then.
    rules = settings.scheduler_settings(config, validate=validate)
    scheduler = Scheduler(rules)
    ours = connect is None and host_command is HOST_COMMAND
    specs = settings.device_specs(config, look=ours)
    state = SharedState(config, loop)
    event_log = None if config.event_log is None else EventLog(config.event_log, rules, loop)
    outbox = Outbox(loop)
    runner = Runner(scheduler, loop, state, devices, event_log=event_log, on_bug=on_bug)
    for index, spec in enumerate(specs):
        device = Device(
            index,
            spec,
            runner,
            outbox,
            connect=None if connect is None else connect[index],
            command=[*host_command, *settings.host_arguments(config)],
            limits=settings.host_limits(config),
        )
        devices.append(device)
    monitors = GpuMonitors(loop, state.records)
    compiler = CompilePool(
        outbox,
        timeout_s=config.compile_timeout_ns / 1e9,
        cache_dir=None if config.cache_dir is None else str(config.cache_dir),
        processes=config.compile_processes,
        arguments=settings.compile_arguments(config),
        bounds_checks=config.bounds_checks,
    )
    loaded = LoadedModules(devices)
    variables = VariableRequests(devices, state.arenas, config.max_message_bytes)
    programs = ProgramRequests(devices, compiler, state.modules, state.arenas, variables, loaded)
    answers = Answers(loop)
    followers = Followers(state.records)
    others = Others(scheduler, state.arenas, names=config.others == "names")
    job_rows = JobRows(
        loop, state.jobs, devices, scheduler, state.records.epoch_ns, state.history, others
    )
    device_rows = DeviceRows(
        devices, state.jobs, state.arenas, monitors, scheduler.devices, rules.floor,
        WorkloadRows(state.workloads),
    )  # fmt: skip
    doctor = Doctor(state, loop, devices, device_rows, compiler, runner)

    def put_in_force(config: Config) -> None:
        runner.change_times(settings.scheduler_settings(config))
        state.workloads.change_turns(settings.turn_settings(config))
        others.names = config.others == "names"
        logs.set_level(config.log_level)

    configuration = Configuration(state, runner, check=settings.check, put_in_force=put_in_force)
    queries = Queries(
        state, devices, runner, job_rows, device_rows, doctor, answers, others, configuration
    )
    handlers = message_table(
        Submission(devices, state.jobs, runner, state.workloads, loaded),
        programs,
        variables,
        MemoryRequests(state.arenas, devices),
        JobRequests(state.jobs, state.history, runner, job_rows, answers),
        queries,
        followers,
        HistoryRequests(state.history, answers),
        Administration(state, devices, device_rows, runner, drain),
        WorkloadRequests(state.workloads, devices),
        configuration,
        LaneRequests(devices, state.jobs, runner, loaded),
    )
    connections = Connections(state, outbox, handlers, devices, device_rows, runner, followers)
    text = partial(metrics_text, queries, state.history.totals)
    return Parts(
        state,
        runner,
        compiler,
        programs,
        connections,
        configuration,
        monitors,
        event_log,
        text,
    )
