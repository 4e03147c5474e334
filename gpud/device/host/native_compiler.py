"""Compiles kernels for the CPU device in a child process, with limits on time and memory.

Problem: LLVM cannot be interrupted. If it ran in the device host, one user's kernel on which it
loops for ever, takes all memory or crashes would end all jobs there.

Approach: a child process (`gpud.device.host.native_compile_process`) compiles one kernel at a
time. If it exceeds the time limit it is killed. Who is to blame for its end, and when to try
again, is decided by `gpud.processes.culprits`; a kernel that is blamed is refused from then on,
because all sessions' kernels wait here for each other.

Properties:
    bounded: each kernel costs at most `MOST_TRIES` processes and twice the time limit;
    once: a kernel that is loaded again, by whichever session, is not compiled again: the last
        `_KEPT_BYTES` of machine code are kept, and more on disk, for the next daemon too;
    small: of a refused kernel only a digest and the message are kept; a process compiles
        `_MOST_KERNELS` and is replaced, since LLVM keeps some memory for each.
"""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpud.compiler.cache import Cache, cache_key, source_digest
from gpud.device.host.native_messages import (
    MAX_FRAME_BYTES,
    NATIVE_PROTOCOL,
    Made,
    Make,
    NotMade,
)
from gpud.errors import CompileError, GpudError, InternalError, from_wire
from gpud.errors.base import shorten
from gpud.processes.culprits import Culprits, Verdict
from gpud.wire.framing import FrameDecoder
from gpud.wire.message_table import Sender

if TYPE_CHECKING:
    from gpud.device.cpu.program.compile_request import CompileRequest, CompileResult

__all__ = ["COMMAND", "NativeCompiler"]

_MOST_KERNELS = 500
_KEPT_BYTES = 16 << 20
_READ_BYTES = 1 << 18
_START_S = 60.0
_PACKAGE = Path(__file__).parents[2]
COMMAND = ("-m", "gpud.device.host.native_compile_process")


class NativeCompiler:
    """Compiles kernels; a `gpud.device.cpu.program.compile_request.KernelCompiler`.

    Args:
        limit_s: how long one kernel may take.
        memory_bytes: limit of the process's address space; 0 for no limit.
        arguments: further arguments of the process.
        disk: what was compiled before; None: nothing is kept on disk.
    """

    def __init__(
        self,
        limit_s: float,
        memory_bytes: int,
        arguments: Sequence[str] = (),
        disk: Cache | None = None,
    ) -> None:
        self._limit_s = limit_s
        self._disk = disk
        self._arguments = ("--memory-bytes", str(memory_bytes), *arguments)
        self._lock = threading.Lock()
        self._running: _NativeProcess | None = None
        self._culprits: Culprits[bytes] = Culprits()
        self._made: OrderedDict[bytes, CompileResult] = OrderedDict()
        self._made_bytes = 0

    def __call__(self, wanted: CompileRequest) -> CompileResult:
        """Compile a kernel; blocks.

        Raises:
            KernelRejected: the kernel uses something that the CPU device does not support.
            CompileError: it takes too long, too much memory, or LLVM crashes on it.
            InternalError: the compiler process could not be started.
        """
        digest = cache_key((*_versions(), repr(wanted)))
        with self._lock:
            refusal = self._culprits.refusal(digest)
            if refusal is not None:
                raise from_wire(refusal.to_wire())
            if digest in self._made:
                self._made.move_to_end(digest)
                return self._made[digest]
            made = self._from_disk(digest)
            if made is not None:
                self._keep(digest, made)
                return made
            while True:
                try:
                    answer = self._ready().make(wanted)
                except _NotStarted as error:
                    self._end()
                    if self._culprits.ended(None, too_long=not error.ended) is Verdict.CANNOT_RUN:
                        raise InternalError(
                            f"the process that makes machine code {error}; submit the job again, "
                            "and if that does not help, see the daemon's log",
                            stage="starting a process for machine code",
                        ) from None
                except TimeoutError:
                    self._end()
                    self._culprits.ended(digest, too_long=True)
                    self._refuse(
                        digest,
                        wanted,
                        f"took longer than {self._limit_s:g} s and was ended; make the kernel "
                        "smaller, or raise compile_timeout in the daemon's configuration",
                    )
                except ConnectionError:
                    status = _described(self._end())
                    if self._culprits.ended(digest) is Verdict.BLAME:
                        self._refuse(
                            digest,
                            wanted,
                            f"ended the process that does it ({status}); it may have run out of "
                            "memory: compile_memory_bytes in the daemon's configuration",
                        )
                except GpudError:
                    self._culprits.answered(digest)
                    raise
                else:
                    self._culprits.answered(digest)
                    if self._disk is not None:
                        self._disk.put(digest, NATIVE_PROTOCOL.encode(answer))
                    made = _result(answer)
                    self._keep(digest, made)
                    return made

    def _refuse(self, digest: bytes, wanted: CompileRequest, why: str) -> NoReturn:
        x, y, z = wanted.block
        what = f"compiling {shorten(wanted.entry)} for blocks of {x} x {y} x {z} {why}"
        error = CompileError(what)
        self._culprits.refuse(digest, error)
        raise error from None

    def warm_up(self) -> None:
        """Start the process, without waiting for it: the first request finds it running."""
        with self._lock:
            self._ready()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _from_disk(self, digest: bytes) -> CompileResult | None:
        payload = None if self._disk is None else self._disk.get(digest)
        if payload is None:
            return None
        decoder = FrameDecoder(MAX_FRAME_BYTES)
        decoder.feed(bytes(payload))
        (body,) = decoder.frames()
        return _result(NATIVE_PROTOCOL.decode(body, Sender.DAEMON))

    def _keep(self, digest: bytes, made: CompileResult) -> None:
        self._made[digest] = made
        self._made_bytes += len(made.code)
        while self._made_bytes > _KEPT_BYTES:
            _, oldest = self._made.popitem(last=False)
            self._made_bytes -= len(oldest.code)

    def _ready(self) -> _NativeProcess:
        if self._running is not None and self._running.made >= _MOST_KERNELS:
            self._end()
        if self._running is None:
            self._running = _NativeProcess(self._limit_s, self._arguments)
        return self._running

    def _end(self) -> int:
        """End the process if there is one; returns its exit status."""
        process, self._running = self._running, None
        return 0 if process is None else process.end()


class _NotStarted(Exception):
    """The process did not start, before any request; the message says why.

    Attributes:
        ended: whether it ended by itself.
    """

    def __init__(self, problem: str, *, ended: bool) -> None:
        super().__init__(problem)
        self.ended = ended


class _NativeProcess:
    """A compiler process, which compiles one kernel after the other.

    Attributes:
        made: how many kernels were requested from it.
    """

    def __init__(self, limit_s: float, arguments: Sequence[str]) -> None:
        self.made = 0
        self._limit_s = limit_s
        self._decoder = FrameDecoder(MAX_FRAME_BYTES)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, *COMMAND, "--fd", str(number), *arguments],
                pass_fds=(number,),
                stdin=subprocess.DEVNULL,
            )

    def make(self, wanted: CompileRequest) -> Made:
        """Send a request and wait for the answer.

        Raises:
            _NotStarted: the process was not ready in time, or ended before it was.
            TimeoutError: no answer came in time.
            ConnectionError: the process has ended.
        """
        if not self.made:
            self._await_start()
        self.made += 1
        asked = Make(wanted.text, wanted.entry, wanted.block, wanted.arena, wanted.heap)
        self._socket.settimeout(self._limit_s)
        self._socket.sendall(NATIVE_PROTOCOL.encode(asked))
        answer = self._next(self._limit_s)
        if isinstance(answer, NotMade):
            raise from_wire(answer.error)
        assert isinstance(answer, Made)
        return answer

    def _await_start(self) -> None:
        try:
            self._next(_START_S)
        except TimeoutError:
            problem = f"has not started within {_START_S:g} s: the machine may be overloaded"
            raise _NotStarted(problem, ended=False) from None
        except ConnectionError:
            raise _NotStarted("has ended while it started", ended=True) from None

    def _next(self, limit_s: float) -> Any:
        """Return the next message."""
        end = time.monotonic() + limit_s
        while True:
            self._socket.settimeout(max(0.001, end - time.monotonic()))
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the process has ended")
            self._decoder.feed(data)
            for body in self._decoder.frames():
                return NATIVE_PROTOCOL.decode(body, Sender.DAEMON)

    def end(self) -> int:
        """End the process; returns its exit status, negative if a signal ended it."""
        self._socket.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(0.2)
        self._process.kill()
        return self._process.wait()


def _result(made: Made) -> CompileResult:
    # Imported late: the host starts the process first, and loads these modules meanwhile.
    from gpud.device.cpu.codegen.artifact import GeneratedKernel
    from gpud.device.cpu.program.compile_request import CompileResult

    return CompileResult(GeneratedKernel("", **made.generated), made.code)


@functools.cache
def _versions() -> tuple[str, ...]:
    """Return what machine code depends on beside the request."""
    from gpud.device import jit  # late, as above

    return (*jit.target(), *(source_digest(_PACKAGE / name) for name in ("compiler", "device")))


def _described(status: int) -> str:
    with suppress(ValueError):
        return signal.Signals(-status).name
    return f"exit status {status}"
