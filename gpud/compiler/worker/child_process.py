"""What a process does with itself that compiles for another: limits, its end, what it answers with.

Such a process speaks over one connected stream socket, and may be in the middle of a library's call
that takes for ever when the other end closes.
"""

from __future__ import annotations

import os
import resource
import select
import threading

from gpud.errors import CompileError, GpudError, InternalError, InvalidArgument

__all__ = ["as_gpud_error", "exit_on_disconnect", "limit_memory", "write_all"]


def limit_memory(memory_bytes: int) -> None:
    """Have no more than so many bytes of addresses (0: no limit), and leave no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is no news, its memory others' data
    if memory_bytes > 0:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def exit_on_disconnect(fd: int) -> None:
    """From now on, end when the other end of the socket ``fd`` closes, whatever is being done."""
    threading.Thread(target=_wait_for_disconnect, args=(fd,), daemon=True).start()


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; blocks.

    Raises:
        ConnectionError: the other end has gone.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def as_gpud_error(error: Exception) -> GpudError:
    """The error that a client gets for ``error``."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return CompileError("the compiler ran out of memory; make the program smaller")
    if isinstance(error, GpudError):
        return error
    if isinstance(error, ValueError):
        return InvalidArgument(f"the program cannot be compiled: {error}")
    return InternalError(f"the compiler failed: {type(error).__name__}: {error}", stage="worker")


def _wait_for_disconnect(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    while not any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in poll.poll()):
        pass
    os._exit(0)
