"""The device host's dispatcher: executes the front's commands on one device and sends events back.

Problem: no kernel and no request may stop the front; and a job must start as soon as its command
arrives, whatever is being compiled, mapped or printed at that time.

Approach: one thread reads commands and executes the quick ones itself, so that they take effect in
order. A second thread compiles, a third maps and copies memory
(`gpud.device.host.session_memory`). Each event of the device is sent from the thread on which it
occurs (`gpud.device.host.running_job`).

Properties:
* a command that fails changes nothing, is answered by its error, and never ends the host;
* so is a command that cannot be decoded; the host ends if ticket and job are unknown;
* a device that raises `gpud.errors.DeviceLost`, from any call, ends the host: its state is unknown
  from then on. So does a failure that no answer or event can report;
* commands on modules are executed in the order in which they came;
* a command on a job that has ended meanwhile is ignored: `RunEnded` is its answer.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from gpud.compiler.abi.reserved_names import RESERVED
from gpud.device.host import messages as m
from gpud.device.host.lanes import HostLanes
from gpud.device.host.lending import Lending
from gpud.device.host.link import Link, Unreadable
from gpud.device.host.running_job import RunningJob, ended_at_once
from gpud.device.host.sequence_cache import SequenceCache
from gpud.device.host.session_memory import SessionMemory
from gpud.device.interface import Device, ProgramModule
from gpud.errors import (
    DeviceLost,
    FrameError,
    GpudError,
    InternalError,
    InvalidArgument,
    ProtocolError,
    UnknownName,
)

__all__ = ["Host", "end_process"]

_LOST_STATUS = 3
_MOST_WHY = 1024
"""Most characters of the reason in `HostReady`."""

Handler = Callable[[Any], None]


class _Module(NamedTuple):
    session: int
    program: ProgramModule


class Host:
    """Executes commands on one device.

    Args:
        device: runs the jobs.
        on_lost: called with the reason when the host must end; default `end_process`.
        lane_hold_s: how long nothing must have come in a lane before it lends its share.
    """

    def __init__(
        self,
        device: Device,
        link: Link,
        on_lost: Callable[[str], None] | None = None,
        *,
        lane_hold_s: float = 0.0002,
    ) -> None:
        self._device = device
        self._on_lost = on_lost or end_process
        self._link = link
        self._send = link.send
        self._modules: dict[int, _Module] = {}
        self._jobs: dict[int, RunningJob] = {}
        self._lending = Lending(self._jobs, link.send)
        self._lanes = HostLanes(
            device,
            link,
            self._jobs,
            self._kernel,
            self._new_job,
            self._lending,
            lane_hold_s,
            self.lost,
        )
        self._sequences = SequenceCache(device, self._kernel)
        compiling = _CommandThread("compile", self._guarded).put
        self._memory = SessionMemory(device, link, self._guarded, self._jobs_of)
        self._handlers: dict[type, Handler] = {
            m.StartRun: self._start_job,
            m.StartLane: self._lanes.open,
            m.AddLaunchSite: self._lanes.prepare,
            m.CancelLaneLaunch: self._lanes.cancel,
            m.ResizeJob: self._resize_job,
            m.TakeBackPlan: self._lending.plan,
            m.EndJob: self._end_job,
            m.KillJob: self._kill_job,
            m.ReadProgress: self._read_progress,
            m.ReadVariable: self._read_symbol,
            m.WriteVariable: self._write_symbol,
            **self._memory.handlers,
            m.CloseArena: self._close_session,
            m.LoadModule: lambda command: compiling(self._load, command),
            m.MeasureKernel: lambda command: compiling(self._measure, command),
            m.UnloadModule: self._unload,
            Unreadable: self._answer_unreadable,
        }
        self._compiling = compiling

    def run(self) -> None:
        """Send `HostReady`, then execute commands until the front closes the link.

        Jobs may still be running when this returns: the caller ends the process.
        """
        device, parts = self._device, self._device.partitions
        self._send(
            m.HostReady(
                device.name,
                device.kind,
                device.sms,
                device.capability,
                device.memory_bytes,
                device.arrays,
                device.uuid,
                parts.step,
                parts.most,
                parts.why[:_MOST_WHY],
            )
        )
        try:
            for command in self._link.receive():
                self.carry_out(command)
        except FrameError as error:
            self._on_lost(f"the front sent a malformed message: {error}")

    def carry_out(self, command: Any) -> None:
        """Execute one command, or queue it for the thread that does."""
        self._guarded(self._handlers[type(command)], command)

    def _guarded(self, handler: Handler, command: Any) -> None:
        try:
            handler(command)
        except DeviceLost as error:
            self.lost(error)
        except Exception as error:  # noqa: BLE001 - a bug in one command must not end the others
            try:
                self._answer(command, error)
            except Exception as problem:  # noqa: BLE001 - the failure cannot be reported
                self.lost(problem)

    def _answer(self, command: Any, error: Exception) -> None:
        """Answer a command with the error that it has failed with."""
        if not isinstance(error, GpudError):
            name = type(command).__name__
            self._log(logging.ERROR, f"{name}: {''.join(traceback.format_exception(error))}")
            what = f"{type(error).__name__}: {error}"
            error = InternalError(what, stage=f"device host, {name}")
        self._failed(command, error)

    def lost(self, error: BaseException) -> None:
        """End the host: the state of the device is unknown."""
        if isinstance(error, DeviceLost):
            self._on_lost(str(error))
        else:
            self._on_lost("".join(traceback.format_exception(error)).strip())

    def _failed(self, command: Any, error: GpudError) -> None:
        encoded = error.to_wire()
        try:
            self._report_failure(command, error, encoded)
        except ProtocolError:  # a field of the error is of a type that cannot be sent
            self._report_failure(command, error, {**encoded, "fields": {}})

    def _report_failure(self, command: Any, error: GpudError, encoded: dict[str, Any]) -> None:
        ticket = getattr(command, "ticket", None)
        if ticket is not None:
            self._send(m.Refused(ticket, encoded))
        elif isinstance(command, m.StartRun | m.StartLane):
            self._jobs.pop(command.job, None)
            self._send(ended_at_once(command.job, encoded))
        elif isinstance(command, m.ResizeJob) and command.job in self._jobs:
            self._jobs[command.job].end(error)
        else:
            self._log(logging.ERROR, f"{type(command).__name__}: {error}")

    def _answer_unreadable(self, unread: Unreadable) -> None:
        """Answer a command that cannot be decoded with an error.

        Raises:
            DeviceLost: its ticket or job is unknown: the front would wait for ever.
        """
        kind, problem = unread.kind, unread.error
        name = "a command" if kind is None else kind.__name__
        error = InternalError(f"{name} cannot be read: {problem}", stage="device host")
        if kind in (m.OpenArena, m.StartLane, m.LendZone, m.ExportMemory):
            descriptor = self._link.take_descriptor()
            if descriptor is not None:
                os.close(descriptor)  # or the next command with one would get it
        if kind not in self._handlers or (problem.request is None and problem.job is None):
            raise DeviceLost(f"the front sent a command that cannot be answered: {error}")
        if problem.job is None:
            assert problem.request is not None
            self._send(m.Refused(problem.request, error.to_wire()))
        elif problem.job in self._jobs:
            self._jobs[problem.job].end(error)
        elif kind in (m.StartRun, m.StartLane):
            self._send(ended_at_once(problem.job, error.to_wire()))

    def _log(self, level: int, text: str) -> None:
        self._send(m.Log(level, " | ".join(text.split("\n"))[: 1 << 14]))

    # -- jobs: on the receiving thread

    def _start_job(self, command: m.StartRun) -> None:
        if command.job in self._jobs:
            self._log(logging.ERROR, f"job {command.job} is there already: StartRun is ignored")
            return
        sequence = self._sequences.prepared(command.launches, command.occupancy)
        running = self._new_job(command)
        run = self._device.new_run(
            sequence, int(command.online), running.on_left, running.on_over, command.exclusive
        )
        self._jobs[command.job] = running
        running.start(run)

    def _new_job(self, command: m.StartRun | m.StartLane) -> RunningJob:
        return RunningJob(command, self._send, self._forget, self.lost)

    def _forget(self, running: RunningJob) -> None:
        self._lanes.forget(running.number)
        self._jobs.pop(running.number, None)

    def _resize_job(self, command: m.ResizeJob) -> None:
        running = self._jobs.get(command.job)
        if running is not None:
            running.resize(command.slices, command.epoch, command.booked, command.quota)

    def _end_job(self, command: m.EndJob) -> None:
        running = self._jobs.get(command.job)
        if running is not None:
            running.end()

    def _kill_job(self, command: m.KillJob) -> None:
        running = self._jobs.get(command.job)
        if running is not None:
            running.kill()

    def _read_progress(self, command: m.ReadProgress) -> None:
        rows = []
        for number in command.jobs:
            running = self._jobs.get(number)
            if running is not None:
                run = running.run
                _, done, total = run.progress
                rows.append([number, done, total, run.first_block_ns, run.release_ns])
        self._send(m.Replied(command.ticket, rows))

    # -- symbols: on the receiving thread

    def _read_symbol(self, command: m.ReadVariable) -> None:
        data = self._symbol(command, command.size)
        self._send(m.Replied(command.ticket, data.tobytes()))

    def _write_symbol(self, command: m.WriteVariable) -> None:
        held = self._symbol(command, len(command.data))
        held[:] = np.frombuffer(command.data, np.uint8)
        self._send(m.Replied(command.ticket))

    def _symbol(self, command: m.ReadVariable | m.WriteVariable, size: int) -> Any:
        if command.name in RESERVED:  # the arena's bounds among them
            raise UnknownName(f"there is no variable {command.name!r}: the name is gpud's own")
        try:
            held = self._module(command.module).program.symbol(command.name)
        except KeyError as error:
            raise UnknownName(str(error.args[0])) from error
        if command.offset + size > held.size:
            raise InvalidArgument(
                f"bytes {command.offset} to {command.offset + size} are not all within "
                f"{command.name!r}, which has {held.size}"
            )
        return held[command.offset : command.offset + size]

    # -- modules: on the compiling thread

    def _load(self, command: m.LoadModule) -> None:
        if command.module in self._modules:
            raise InvalidArgument(f"there is a module {command.module} already")
        arena = self._memory.range_of(command.session)
        program = self._device.load(command.ptx, arena, variables=command.variables)
        self._modules[command.module] = _Module(command.session, program)
        self._send(m.Replied(command.ticket))

    def _measure(self, command: m.MeasureKernel) -> None:
        kernel = self._kernel(command.module, command.entry)
        occupancy = self._device.occupancy(kernel, command.block, command.shared)
        self._send(m.Replied(command.ticket, occupancy))

    def _unload(self, command: m.UnloadModule) -> None:
        self._sequences.forget({command.module})
        # In order: its Load may still be queued.
        self._compiling(self._unload_module, command)

    def _unload_module(self, command: m.UnloadModule) -> None:
        self._modules.pop(command.module, None)

    def _module(self, number: int) -> _Module:
        module = self._modules.get(number)
        if module is None:
            raise UnknownName(f"there is no module {number} on this device")
        return module

    def _kernel(self, module: int, entry: str) -> Any:
        return self._module(module).program.kernel(entry)

    # -- the end of a session

    def _close_session(self, command: m.CloseArena) -> None:
        gone = {n for n, module in list(self._modules.items()) if module.session == command.session}
        self._sequences.forget(gone)
        self._compiling(self._unload_session, command)
        self._memory.close_session(command)

    def _unload_session(self, command: m.CloseArena) -> None:
        for number in [n for n, one in self._modules.items() if one.session == command.session]:
            del self._modules[number]

    def _jobs_of(self, session: int) -> list[int]:
        return [one.number for one in list(self._jobs.values()) if one.session == session]


def end_process(reason: str) -> None:
    """End this process at once; the last line of its output gives the front the reason."""
    # Not sys.exit: SM threads may be in kernels that never end, and it would wait for them.
    with suppress(OSError):
        os.write(2, f"{reason}\n".encode(errors="replace"))
    os._exit(_LOST_STATUS)


class _CommandThread:
    """A thread that executes commands one after the other."""

    def __init__(self, name: str, guarded: Callable[[Handler, Any], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[Handler, Any]] = queue.SimpleQueue()
        self._guarded = guarded
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def put(self, handler: Handler, command: Any) -> None:
        """Queue ``handler(command)`` behind everything queued before."""
        self._queue.put((handler, command))

    def _run(self) -> None:
        while True:
            self._guarded(*self._queue.get())
