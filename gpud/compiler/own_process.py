"""What a process does with itself that compiles for another one: limits, and when it ends.

Such a process speaks over one connected stream socket, and may be in the middle of a library's call
that takes for ever when the other end closes.
"""

from __future__ import annotations

import os
import resource
import select
import threading

__all__ = ["end_with", "limit_memory", "write_all"]


def limit_memory(memory_bytes: int) -> None:
    """Have no more than so many bytes of addresses (0: no limit), and leave no core dump."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is no news, its memory others' data
    if memory_bytes > 0:
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        least = memory_bytes if most == resource.RLIM_INFINITY else min(memory_bytes, most)
        resource.setrlimit(resource.RLIMIT_AS, (least, most))


def end_with(fd: int) -> None:
    """From now on, end when the other end of the socket ``fd`` closes, whatever is being done."""
    threading.Thread(target=_wait_for_end, args=(fd,), daemon=True).start()


def write_all(fd: int, data: bytes) -> None:
    """Write all of ``data``; blocks.

    Raises:
        ConnectionError: the other end has gone.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _wait_for_end(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)
    while not any(event & (select.POLLRDHUP | select.POLLHUP) for _, event in poll.poll()):
        pass
    os._exit(0)
