"""Helpers for processes that compile for the daemon: resource limits, exit, errors.

Such a process communicates over one connected stream socket, and may be inside a library call that
never returns when the other end closes.
"""

from __future__ import annotations

import os
import resource
import select
import threading

from gpud.errors import CompileError, GpudError, InternalError, InvalidArgument

__all__ = ["as_gpud_error", "exit_on_disconnect", "limit_memory", "write_all"]


def limit_memory(memory_bytes: int) -> None:
    """Limit this process's address space to ``memory_bytes`` (0: no limit); disable core dumps."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # crashes are expected; dumps hold users' data
    if memory_bytes > 0:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def exit_on_disconnect(fd: int) -> None:
    """Exit when the other end of the socket ``fd`` closes, even inside a library call."""
    threading.Thread(target=_wait_for_disconnect, args=(fd,), daemon=True).start()


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; blocks.

    Raises:
        ConnectionError: the other end has closed the socket.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def as_gpud_error(error: Exception) -> GpudError:
    """Return the error to send to the client for ``error``."""
    if isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError):
        return CompileError("the compiler ran out of memory; make the program smaller")
    if isinstance(error, GpudError):
        return error
    if isinstance(error, ValueError):
        return InvalidArgument(f"the program cannot be compiled: {error}")
    return InternalError(f"the compiler failed: {type(error).__name__}: {error}", stage="process")


def _wait_for_disconnect(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    while not any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in poll.poll()):
        pass
    os._exit(0)
