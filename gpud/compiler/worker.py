"""The compile worker: a process that compiles for the daemon, one program after the other.

``python -m gpud.compiler.worker --fd N`` with N a connected stream socket.

Problem: NVRTC blocks for 10 to 100 ms, can be made to run for minutes or to fill the memory by a
few lines of templates, and can crash. None of that may stop the process that serves the clients.

Approach: a loop that reads a `CompileJob`, compiles, and writes the answer, and knows nothing else.
The front ends the process when it takes too long, and starts another.

Properties:
    answers_once: a job that did not end the process is answered once, whatever it raised, with an
        error of gpud's tree;
    bounded: the process can have ``memory_bytes`` of addresses and no more;
    ends_with_its_front: when the other end of the socket closes the process ends, even if it is in
        the middle of a compilation.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from gpud.compiler.cache import Cache
from gpud.compiler.nvrtc import DEFAULT_ARCH, nvrtc_version
from gpud.compiler.pipeline import compile_program
from gpud.compiler.request_key import rewriter_version
from gpud.compiler.worker_messages import (
    COMPILE_PROTOCOL,
    MAX_FRAME_BYTES,
    CompileDone,
    CompileFailed,
    CompileJob,
)
from gpud.errors import CompileError, GpudError, InternalError, InvalidArgument, ProtocolError
from gpud.wire.codec import FrameDecoder  # noqa: TID251  (a process of its own, not a stage)
from gpud.wire.table import Sender  # noqa: TID251

__all__ = ["answer", "error_of_the_tree", "main", "serve"]

DEFAULT_MEMORY_BYTES = 4 << 30
"""What a worker may have: NVRTC takes some 0.3 GiB of addresses, a large program as much again."""

_READ_BYTES = 1 << 18


def main(arguments: list[str] | None = None) -> int:
    """Runs a worker until the other end closes; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m gpud.compiler.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="a connected stream socket")
    parser.add_argument(
        "--memory-bytes", type=int, default=DEFAULT_MEMORY_BYTES, help="0 for no limit"
    )
    options = parser.parse_args(arguments)
    # A Ctrl-C in the terminal goes to the whole group: the daemon drains, and needs its compiler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit_memory(options.memory_bytes)
    os.set_blocking(options.fd, True)
    threading.Thread(target=_end_with_front, args=(options.fd,), daemon=True).start()
    _warm_up()
    serve(options.fd)
    return 0


def serve(fd: int) -> None:
    """Answers the jobs that arrive on the socket ``fd``. Blocks until its other end closes.

    Raises:
        ProtocolError: what arrived is nothing that has a ticket; the front is at fault.
    """
    decoder = FrameDecoder(MAX_FRAME_BYTES)
    with suppress(ConnectionError):  # the front has gone in the middle of an answer: the end
        while data := os.read(fd, _READ_BYTES):
            decoder.feed(data)
            for body in decoder.frames():
                _write(fd, COMPILE_PROTOCOL.encode(_answer_to(body)))


def answer(job: CompileJob) -> CompileDone | CompileFailed:
    """Compiles a job's program. Blocks; raises nothing."""
    try:
        program = compile_program(
            job.source,
            options=job.options,
            arch=DEFAULT_ARCH if job.arch is None else job.arch,
            name_expressions=job.names,
            form=job.form,
            sm=job.sm,
            cache=_cache(job.cache_dir),
        )
        return CompileDone(job.ticket, program.encode())
    except Exception as error:  # noqa: BLE001  (whatever it is, the client is told)
        return CompileFailed(job.ticket, error_of_the_tree(error).to_wire())


# -- helpers -----------------------------------------------------------------------------------


def _answer_to(body: bytes) -> CompileDone | CompileFailed:
    try:
        job = COMPILE_PROTOCOL.decode(body, Sender.CLIENT)
    except ProtocolError as error:
        if error.request is None:
            raise
        return CompileFailed(error.request, error.to_wire())
    return answer(job)


def error_of_the_tree(error: Exception) -> GpudError:
    """The error that a client gets for ``error``."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return CompileError("the compiler ran out of memory; make the program smaller")
    if isinstance(error, GpudError):
        return error
    if isinstance(error, ValueError):
        return InvalidArgument(f"the program cannot be compiled: {error}")
    return InternalError(f"the compiler failed: {type(error).__name__}: {error}", stage="worker")


@lru_cache(maxsize=4)
def _cache(folder: str | None) -> Cache | None:
    """A cache says once that it cannot use its folder, so there is one for each."""
    if folder == "":
        return None
    return Cache(None if folder is None else Path(folder))


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _limit_memory(memory_bytes: int) -> None:
    if memory_bytes > 0:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def _warm_up() -> None:
    """Loads what the first program needs, while nobody waits for it yet."""
    rewriter_version()
    with suppress(GpudError):  # without NVRTC there is still PTX; CUDA C++ is told what is missing
        nvrtc_version()


def _end_with_front(fd: int) -> None:
    """Ends the process when the socket's other end closes, whatever the main thread does."""
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    while not any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in poll.poll()):
        pass
    os._exit(0)


if __name__ == "__main__":
    raise SystemExit(main())
