"""The daemon's life cycle: start, drain, forced shutdown; and what signals do.

Start: take the socket, start the device hosts, and accept connections once they are ready. Drain:
accept no more connections and jobs, let the accepted jobs end, cancel the rest after a timeout, end
the hosts. Force: end everything now.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from gpud.config import Config
from gpud.core import events as ev
from gpud.errors import DeviceLost, Draining, GpudError, InternalError, InvalidArgument
from gpud.server import logs, settings
from gpud.server.handlers.connections import Connections
from gpud.server.handlers.programs import ProgramRequests
from gpud.server.hosts.compile_pool import CompilePool
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.gpu_monitors import GpuMonitors
from gpud.server.hosts.interface import HOST_COMMAND, Connect
from gpud.server.hosts.runner import Runner
from gpud.server.ipc import file_descriptors, systemd
from gpud.server.ipc.event_loop import STALLS, loop_factory
from gpud.server.ipc.listener import Listener, adopt, listen
from gpud.server.ipc.metrics_endpoint import MetricsEndpoint
from gpud.server.parts import make_parts
from gpud.server.shared import SharedState
from gpud.server.state.access import Peer, peer_of
from gpud.server.state.event_log import EventLog
from gpud.wire.socket_path import draining_path

__all__ = ["Daemon", "run"]

_LOG = logging.getLogger(__name__)
_ACCEPTS_PER_TURN = 16
_ACCEPT_PAUSE_S = 0.5  # when descriptors have run out
_GOODBYE_S = 3.0
_FETCH_S = 1.0  # for clients to copy the results of jobs that ended while the daemon drained
_POLL_S = 1.0
_GC_OBJECTS = 20_000  # between collections: each job that has ended is kept for a while
_BROKEN = 3


class Daemon:
    """One daemon, on the running event loop.

    Args:
        config: the settings.
        connect: for tests: for each device, replaces starting its host process: returns the front's
            end of a socket to a stand-in for a host.
        credentials: for tests: finds the peer of a connection.
        host_command: for tests: the arguments to Python that start a device host.
        validate: check every invariant of the scheduler after every event; slow.
    """

    def __init__(
        self,
        config: Config,
        *,
        connect: Sequence[Connect] | None = None,
        credentials: Callable[[socket.socket], Peer] = peer_of,
        host_command: Sequence[str] = HOST_COMMAND,
        validate: bool = False,
    ) -> None:
        self.config = config
        self._connect = connect
        self._credentials = credentials
        self._host_command = host_command
        self._validate = validate
        self._stopped = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._forced = False
        self._failed = False
        self._poll_timer: asyncio.TimerHandle | None = None
        self._listeners: list[Listener] = []
        self._said_missing = False
        self._event_log: EventLog | None = None
        self._metrics: list[MetricsEndpoint] = []
        self.devices = Devices()
        # From `start` on:
        self.state: SharedState
        self.runner: Runner
        self.compiler: CompilePool
        self.programs: ProgramRequests
        self.connections: Connections
        self._gpu_monitors: GpuMonitors

    @property
    def address(self) -> str:
        """Where clients connect."""
        return self._listeners[0].address

    @property
    def forced(self) -> bool:
        """Whether it was shut down without waiting for its jobs."""
        return self._forced

    @property
    def failed(self) -> bool:
        """Whether it was shut down because of a bug in the scheduler."""
        return self._failed

    @property
    def ending(self) -> bool:
        """Whether `drain` or `force` was called."""
        return self._ending is not None

    # -- start

    async def start(self) -> None:
        """Start to serve. Returns when clients can connect; an error leaves nothing behind.

        Raises:
            InvalidArgument: the configuration cannot be used, such as a socket that is taken.
            DeviceLost: a device does not start.
        """
        loop = asyncio.get_running_loop()
        self._listeners = self._listen()
        try:
            self._make_parts(loop)
            for device in self.devices:
                device.start()
            for device in self.devices:
                await device.settled()
            for device in self.devices:
                if device.state == "failed":
                    raise DeviceLost(
                        f"device {device.index} ({device.spec}) does not start: its host "
                        f"{device.last_failure}; see the log above, or try gpud doctor",
                        device=device.spec,
                    )
            copied = {d.index: d.memory for d in self.devices if d.memory is not None}
            limits = settings.memory_limits(self.config, self.devices)
            self.state.arenas.set_up(limits, copied)
            self.state.workloads.set_up(
                limits.device,
                settings.turn_settings(self.config),
                settings.moved_memory(self.config, self.devices),
                lambda device, session: self.devices[device].open_arena(session),
                {index: self.devices[index] for index in copied},
            )
            await self._serve_metrics()
        except BaseException:
            await self._close()
            raise
        self._gpu_monitors.watch(self.devices)
        for listener in self._listeners:
            loop.add_reader(listener.socket.fileno(), self._accept, listener)
        self.compiler.prestart()
        self._poll()
        names = ", ".join(d.info.name for d in self.devices if d.info is not None)
        _LOG.info("serving %s on %s", names, self.address)
        systemd.notify(f"READY=1\nSTATUS=serving {names}\nMAINPID={os.getpid()}")

    async def _serve_metrics(self) -> None:
        config, loop = self.config, asyncio.get_running_loop()
        for where in (config.metrics_socket, config.metrics_port or None):
            if where is not None:
                await self._metrics_text()  # finds out now what is missing
                endpoint = MetricsEndpoint(where, self._metrics_text, loop)
                self._metrics.append(endpoint)
                _LOG.info("serving metrics at %s", endpoint.address)

    def _listen(self) -> list[Listener]:
        activated = systemd.activated()
        if activated:
            return [adopt(descriptor) for descriptor in activated]
        return [listen(self.config.socket, self.config.socket_mode)]

    def _make_parts(self, loop: asyncio.AbstractEventLoop) -> None:
        parts = make_parts(
            self.config,
            loop,
            self.devices,
            connect=self._connect,
            host_command=self._host_command,
            validate=self._validate,
            on_bug=self._fail,
            drain=self.drain,
        )
        self.state, self.runner, self.compiler = parts.state, parts.runner, parts.compiler
        self.programs, self.connections = parts.programs, parts.connections
        self._configuration = parts.configuration
        self._gpu_monitors, self._event_log = parts.gpu_monitors, parts.event_log
        self._metrics_text = parts.metrics_text

    def _accept(self, listener: Listener) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, _ = listener.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                _LOG.error("a connection cannot be accepted: %s", error.strerror)
                loop.remove_reader(listener.socket.fileno())
                loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listener)
                return
            self.connections.accept(sock, self._credentials(sock))

    def _poll(self) -> None:
        """Do what no event triggers: read GPU metrics, end sessions that hold too much memory."""
        self._gpu_monitors.poll()
        self.connections.look_for_hang_ups()
        self.connections.end_excessive(self.state.arenas.find_excess())
        self.state.workloads.poll()
        for listener in self._listeners:
            if listener.is_missing and not self.runner.draining:
                self._restore(listener)
        self._poll_timer = asyncio.get_running_loop().call_later(_POLL_S, self._poll)

    def _restore(self, listener: Listener) -> None:
        """Make a socket's file again that somebody has removed: nobody could connect any more."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(listener.socket.fileno())
        try:
            listener.restore()
        except InvalidArgument as error:
            if not self._said_missing:
                _LOG.error("the socket was removed, and nobody can connect: %s", error)
            self._said_missing = True
        else:
            self._said_missing = False
            _LOG.warning("the socket %s was removed; it is there again", self.address)
        self._accept_again(listener)

    def _accept_again(self, listener: Listener) -> None:
        if listener.socket.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.add_reader(listener.socket.fileno(), self._accept, listener)

    # -- shutdown

    async def wait(self) -> None:
        """Wait until the daemon has ended, by `drain` or `force`."""
        await self._stopped.wait()
        if self._ending is not None:
            await self._ending

    def reload(self) -> None:
        """Read the settings again, see `gpud.server.handlers.configuration`. Returns at once."""
        self._configuration.on_hangup()

    def drain(self) -> None:
        """Begin an orderly shutdown: see the module. Returns at once; may be called twice."""
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._drain())

    def force(self) -> None:
        """End now: running jobs are lost."""
        self._forced = True
        if not hasattr(self, "connections"):  # it was never started
            self._stopped.set()
            return
        if self._ending is None:
            self._ending = asyncio.ensure_future(self._close())
        else:
            # A drain under way waits for this; it must not wait for jobs any longer.
            self.runner.drained.set()
        for device in self.devices:
            device.kill()
        self.compiler.kill()
        self.connections.abort()

    def _fail(self) -> None:
        """Shut down after a bug in the scheduler, whose state may violate every guarantee now.

        Clients get an error, the hosts are ended, and the exit status makes systemd start a new
        daemon.
        """
        self._failed = True
        if self._ending is None:
            error = InternalError(
                "the daemon has ended because of a bug in its scheduler: connect again, and submit "
                "again what had not ended",
                stage="scheduler",
            )
            self._ending = asyncio.ensure_future(self._close(error))
        else:
            self.runner.drained.set()

    async def stop(self) -> None:
        """`force`, unless a shutdown is under way, and `wait`: for tests and error paths."""
        if self._ending is None:
            self.force()
        await self.wait()

    async def _drain(self) -> None:
        timeout_ns = self.state.config.drain_timeout_ns
        jobs = len(self.state.jobs)
        _LOG.info("draining: %d jobs have up to %g s", jobs, timeout_ns / 1e9)
        systemd.notify(f"STOPPING=1\nSTATUS=draining {jobs} jobs")
        self._stop_listening()
        self._listen_while_draining()
        now_ns = time.monotonic_ns()
        self.runner.feed(ev.DrainRequested(now_ns, now_ns + timeout_ns))
        await self.runner.drained.wait()
        if jobs and not self._forced and time.monotonic_ns() < now_ns + timeout_ns:
            # Clients that waited for the last jobs copy their arrays now.
            with suppress(TimeoutError):
                await asyncio.wait_for(self.connections.all_ended.wait(), _FETCH_S)
        await self._close()
        _LOG.info("drained" if not self._forced else "ended by force")

    def _listen_while_draining(self) -> None:
        """Let gpuctl ask what is waited for; new programs wait for the next daemon instead."""
        paths = [listener.path for listener in self._listeners if listener.path is not None]
        for path in paths:
            try:
                listener = listen(draining_path(path), self.config.socket_mode)
            except InvalidArgument as error:
                _LOG.info("gpuctl cannot ask while the daemon drains: %s", error)
                continue
            self._listeners.append(listener)
            self._accept_again(listener)

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            if listener.socket.fileno() >= 0:
                loop.remove_reader(listener.socket.fileno())
            listener.stop()

    async def _close(self, error: GpudError | None = None) -> None:
        """Close everything, in whatever state it is; clients get ``error``."""
        self._stop_listening()
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        if hasattr(self, "connections"):
            self.connections.goodbye(error or Draining("the daemon has ended"))
            with suppress(TimeoutError):
                await asyncio.wait_for(self.connections.all_ended.wait(), _GOODBYE_S)
            self.connections.abort()
            await asyncio.gather(*(endpoint.close() for endpoint in self._metrics))
            closing = [self.compiler.close(), *(device.close() for device in self.devices)]
            await asyncio.gather(*closing)
            self.runner.close()
            self._gpu_monitors.close()
            self.state.arenas.close()
            await self.state.history.close()
        if self._event_log is not None:
            self._event_log.close()
        for listener in self._listeners:
            listener.close()
        self._stopped.set()


def run(config: Config) -> int:
    """Serve until SIGTERM or SIGINT; a second signal forces. Returns the exit status.

    SIGHUP reads the settings again, unless it means that the terminal is gone: then it drains.

    0: drained; 1: it could not start, or was forced; 3: a bug in the scheduler. Blocks.
    """
    logs.set_up(config.log_level, config.log_format)
    file_descriptors.raise_limit()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_serve(config))


async def _serve(config: Config) -> int:
    daemon = Daemon(config, validate=bool(os.environ.get("GPUD_VALIDATE")))
    loop = asyncio.get_running_loop()
    starting = asyncio.ensure_future(daemon.start())

    has_terminal = _has_terminal()

    def on_signal(number: int) -> None:
        name = signal.Signals(number).name
        hangup = number == signal.SIGHUP
        if hangup and (daemon.ending or has_terminal is _has_terminal()):
            if starting.done() and not daemon.ending:
                _LOG.info("%s: reading the settings again", name)
                daemon.reload()
        elif not starting.done():
            _LOG.warning("%s: ending before it has begun", name)
            starting.cancel()
        elif not daemon.ending:
            _LOG.info("%s: draining; send it again to end at once", name)
            daemon.drain()
        else:
            _LOG.warning("%s: ending at once", name)
            daemon.force()

    for number in (signal.SIGUSR1, signal.SIGUSR2):  # which would end it, and its children
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup
            loop.add_signal_handler(number, on_signal, number)
    try:
        await starting
    except asyncio.CancelledError:
        return 1
    except GpudError as error:
        _LOG.critical("%s", error)
        return 1
    # Objects made so far stay for good: exempt them from garbage collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_GC_OBJECTS)
    await asyncio.sleep(0)
    STALLS.clear()  # nobody was served before
    await daemon.wait()
    return _BROKEN if daemon.failed else 1 if daemon.forced else 0


def _has_terminal() -> bool:
    """Whether this process is controlled by a terminal, as it is until that is closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True
