"""The shepherd: the process that starts one attempt of a task, keeps its output and its end.

Problem: the runner may be killed while tasks run, and these must go on, their output must be kept,
and their exit status must be known to the next runner. A status is told to a parent only.

Approach: each attempt has a small process of its own between the runner and the program. It holds
the lock of the attempt's folder, which it inherits locked, so that an attempt has a process if and
only if the lock is taken. It writes ``started`` before it lets the program begin, and ``ended``
after the last of the program's processes has gone; room for that is taken at the start, as the
disk may be full later. It is the "subreaper" of what the program starts, so that processes which
fork into the background are found.

Properties:
    announced: no instruction of the program runs before ``started`` is on the disk;
    nothing_left: when ``ended`` is written, no process of the attempt is left;
    bounded: the output has at most ``output_bytes``; the oldest is dropped, and how much is told;
    outlives: the end of the runner changes nothing for it.

``python -m gpud.tasks.runner.shepherd FOLDER LOCK_FD`` reads what to do as JSON from its standard
input. SIGTERM has it stop the program, as the file ``stop`` says.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpud.tasks.runner.processes import boot_id, descendants, send

__all__ = ["ENDED_BYTES", "main"]

ENDED_BYTES = 4096
_READ_BYTES = 1 << 16
_POLL_S = 0.05  # while processes are being ended
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class _Output:
    """The output of an attempt: two files; the older one is dropped when the newer is full."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._path, self._old = folder / "output", folder / "output.1"
        self._most = most_bytes // 2
        self._file = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        self._size = 0
        self._old_size = 0
        self.dropped_bytes = 0
        self.problem = ""

    def write(self, data: bytes) -> None:
        """Append to the output; what the disk does not take is counted as dropped."""
        if self._size + len(data) > self._most:
            self.dropped_bytes += self._old_size
            self._old_size, self._size = self._size, 0
            self._path.replace(self._old)
            os.close(self._file)
            self._file = os.open(
                self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        while data:
            try:
                written = os.write(self._file, data)
            except OSError as error:
                self.problem = f"output could not be kept: {error.strerror}"
                self.dropped_bytes += len(data)
                return
            self._size += written
            data = data[written:]


class _Shepherd:
    """One attempt, from its start to its end."""

    def __init__(self, folder: Path, asked: dict[str, Any]) -> None:
        self._folder, self._asked = folder, asked
        self._output = _Output(folder, asked["output_bytes"])
        self._ended = os.open(folder / "ended", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._ended, 0, ENDED_BYTES)
        self._status: int | None = None
        self._usage: Any = None
        self._stopped = False
        self._stop_step = 0
        self._next_step_s: float | None = None
        self._notes: list[str] = []
        self._problem = ""

    def run(self) -> None:
        """Start the program, and return when nothing of it is left."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(wake_write)
        pipe_read, pipe_write = os.pipe2(os.O_CLOEXEC)
        problem = self._start(pipe_write)
        os.close(pipe_write)
        if problem:
            self._finish(problem)
            return
        os.set_blocking(pipe_read, False)
        poll = select.poll()
        poll.register(wake_read, select.POLLIN)
        poll.register(pipe_read, select.POLLIN)
        while True:
            ready = dict(poll.poll(self._timeout_ms()))
            if pipe_read in ready and not self._copy(pipe_read):
                poll.unregister(pipe_read)
            if wake_read in ready and signal.SIGTERM in os.read(wake_read, 4096):
                self._stop()
            self._reap()
            self._go_on()
            if self._status is not None and not descendants(os.getpid()):
                break
        while self._copy(pipe_read, once=True):
            pass
        self._finish(self._problem)

    # -- the program

    def _start(self, output: int) -> str:
        """Start the program; returns why it could not be started, or nothing."""
        begin_read, begin_write = os.pipe2(os.O_CLOEXEC)
        error_read, error_write = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if not pid:
            os.close(begin_write)
            try:
                _become(self._asked, output, begin_read)
            except BaseException as error:  # noqa: BLE001  (whatever it is, the parent tells it)
                os.write(error_write, _told(error, self._asked).encode("utf-8", "replace"))
            os._exit(127)
        os.close(begin_read)
        os.close(error_write)
        self._pid = pid
        started = {"shepherd": os.getpid(), "pid": pid, "boot": boot_id(), "at_ns": time.time_ns()}
        _write_whole(self._folder / "started", json.dumps(started))
        os.write(begin_write, b"g")
        os.close(begin_write)
        problem = b""
        while part := os.read(error_read, 4096):
            problem += part
        os.close(error_read)
        if problem:
            os.waitpid(pid, 0)
        return problem.decode("utf-8", "replace")

    def _copy(self, pipe: int, *, once: bool = False) -> bool:
        """Copy from the pipe; returns whether more may come (``once``: whether there was some)."""
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return not once
        if data:
            self._output.write(data)
        return bool(data)

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid == self._pid:
                code = os.waitstatus_to_exitcode(status)
                self._status, self._usage = (code if code >= 0 else 128 - code), usage
                if code < 0 and not self._stopped:
                    name = signal.Signals(-code).name
                    self._problem = f"it was ended by {name}, which gpud did not send"
                if not self._stopped and (left := descendants(os.getpid())):
                    self._notes.append(
                        f"{len(left)} processes that it left in the background were ended"
                    )
                    self._end_all(signal.SIGTERM)

    # -- stopping

    def _stop(self) -> None:
        """Begin to stop the program, as the file ``stop`` says."""
        if self._stopped:
            return
        self._stopped = True
        asked: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            asked = json.loads((self._folder / "stop").read_text())
        if "reason" not in asked:
            self._notes.append("its shepherd was sent SIGTERM from outside")
        self._grace_s = float(asked.get("grace_s", self._asked["grace_s"]))
        number = asked.get("signal")
        if number is not None:
            send([self._pid], number)
            self._next_step_s = time.monotonic() + self._grace_s
        else:
            self._end_all(signal.SIGTERM)

    def _end_all(self, number: int) -> None:
        grace_s = self._asked["grace_s"] if number == signal.SIGTERM else _POLL_S
        pids = descendants(os.getpid())
        send(pids, number)
        send(pids, signal.SIGCONT)  # one that is frozen cannot end otherwise
        self._stop_step = number
        self._next_step_s = time.monotonic() + grace_s

    def _go_on(self) -> None:
        """Take the next step to the end when its time has come."""
        if self._next_step_s is None or time.monotonic() < self._next_step_s:
            return
        if not self._stop_step:
            self._end_all(signal.SIGTERM)
            return
        if self._stop_step == signal.SIGTERM and self._stopped:
            self._notes.append("it did not end after SIGTERM and was killed")
        self._end_all(signal.SIGKILL)

    def _timeout_ms(self) -> float | None:
        if self._next_step_s is None:
            return None
        return min(_POLL_S, max(0.0, self._next_step_s - time.monotonic())) * 1000

    # -- the end

    def _finish(self, problem: str) -> None:
        if self._output.problem:
            self._notes.append(self._output.problem)
        ended: dict[str, Any] = {
            "status": self._status,
            "stopped": self._stopped,
            "problem": problem[:1024],
            "notes": "; ".join(self._notes)[:1024],
            "dropped_bytes": self._output.dropped_bytes,
            "at_ns": time.time_ns(),
        }
        if self._usage is not None:
            ended["cpu_ns"] = int((self._usage.ru_utime + self._usage.ru_stime) * 1e9)
            ended["memory_bytes"] = self._usage.ru_maxrss << 10
        data = json.dumps(ended).encode().ljust(ENDED_BYTES - 1) + b"\n"
        os.pwrite(self._ended, data, 0)
        os.fsync(self._ended)


# -- the child -------------------------------------------------------------------------------------


def _become(asked: dict[str, Any], output: int, begin: int) -> None:
    """Become the program, as its user has it; does not return."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if not os.read(begin, 1):
        os._exit(127)  # the shepherd has gone
    os.setsid()
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for path in asked.get("cgroups", ()):
        Path(path, "cgroup.procs").write_text("0")
    if asked["cpus"]:
        os.sched_setaffinity(0, asked["cpus"])
    os.umask(asked["umask"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(os.fsencode(asked["directory"]))
    for number, soft, hard in asked["limits"]:
        with suppress(ValueError, OSError):  # more than the runner may give: it has what it has
            _, ours = resource.getrlimit(number)
            most = hard if ours == -1 or (hard != -1 and hard <= ours) else ours
            least = soft if most == -1 or (soft != -1 and soft <= most) else most
            resource.setrlimit(number, (least, most))
    environment = dict(
        entry.split("=", 1) for entry in asked["environment"].split("\0") if "=" in entry
    )
    os.execvpe(asked["command"][0], asked["command"], environment)  # noqa: S606  (no shell)


def _told(error: BaseException, asked: dict[str, Any]) -> str:
    program = asked["command"][0]
    if isinstance(error, FileNotFoundError) and error.filename == os.fsencode(asked["directory"]):
        return f"its working directory {asked['directory']} is not there any more"
    if isinstance(error, OSError) and error.errno == errno.ENOENT:
        return f"{program}: command not found"
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return f"{program} is no program: it needs a first line such as #!/bin/sh"
    if isinstance(error, OSError):
        return f"{program} cannot be started: {error.strerror}"
    return f"{program} cannot be started: {type(error).__name__}: {error}"


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _write_whole(path: Path, text: str) -> None:
    """Write a file that is there with all its content or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def main() -> int:
    """Be the shepherd of the attempt whose folder is the first argument."""
    folder, lock = Path(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(lock, False)
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        asked = json.load(sys.stdin)
    except ValueError:
        return 1  # the runner was killed while it wrote that: nothing was started
    _Shepherd(folder, asked).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
