"""Requests to a device that survive the loss of a host: they are repeated on the next one.

Properties:
    retried: a request that is lost with its host is sent to the next one, `_MOST_ASKS` times in
        all;
    answered: each request gets one reply: a host's, or the error why there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError, UnknownName
from gpud.server.hosts.current_host import CurrentHost
from gpud.server.hosts.loader import Loader, write_message
from gpud.server.ipc.child_process import OnReply
from gpud.server.state.modules import Module, Shape

__all__ = ["HostRequests"]

_MOST_ASKS = 3


class HostRequests:
    """Requests to the current and later hosts of one device.

    Args:
        host: the device's current host.
        loader: keeps the values of module variables across hosts.
    """

    def __init__(self, host: CurrentHost, loader: Loader) -> None:
        self._host = host
        self._loader = loader
        self._waiting: list[tuple[Callable[[], None], OnReply]] = []

    def ready(self) -> None:
        """Send the requests that have waited for a host; one is ready now."""
        waiting, self._waiting = self._waiting, []
        for action, _ in waiting:
            action()

    def refuse_waiting(self, reason: str) -> None:
        """Fail the requests that wait: no other host is started."""
        waiting, self._waiting = self._waiting, []
        for _, on_reply in waiting:
            on_reply(None, self._host.lost_error(reason))

    def ask(self, ask: Callable[[OnReply], None], on_reply: OnReply) -> None:
        """Call ``ask`` when a host is ready, and again on the next one if that host is lost.

        The request must be idempotent.
        """
        asked = 0

        def again() -> None:
            nonlocal asked
            asked += 1
            ask(replied)

        def replied(value: Any, error: GpudError | None) -> None:
            if isinstance(error, DeviceLost) and asked < _MOST_ASKS:
                self._when_ready(again, on_reply)
            else:
                on_reply(value, error)

        self._when_ready(again, on_reply)

    def _when_ready(self, action: Callable[[], None], on_reply: OnReply) -> None:
        host = self._host
        if host.state == "ready" and host.alive:
            action()
        elif host.state in ("ready", "starting"):
            self._waiting.append((action, on_reply))
        else:
            on_reply(None, host.lost_error(host.last_failure))

    # -- modules

    def measure(self, module: Module, shape: Shape, on_reply: OnReply) -> None:
        """Compile a kernel for a block shape; replies M."""
        self._ask_on(
            module, lambda reply: self._host.registry.measure(module, shape, reply), on_reply
        )

    def prepare_launch(
        self, module: Module, shape: Shape, make: Callable[[int], Any], on_reply: OnReply
    ) -> None:
        """Compile a kernel for a block shape if needed, and make a launch site of it."""

        def measured(_: Any, error: GpudError | None) -> None:
            if error is not None:
                on_reply(None, error)
            else:
                self._host.registry.with_module(module, make, on_reply)

        self.measure(module, shape, measured)

    def read_symbol(
        self, module: Module, name: str, offset: int, size: int, on_reply: OnReply
    ) -> None:
        """Read bytes of a module variable; replies them.

        The first read after values that kernels may have written were lost fails and says so.
        """

        def ask(reply: OnReply) -> None:
            problem = self._loader.read_problem(module, name)
            if problem is not None:
                on_reply(None, problem)
            else:
                make = partial(_read, module.number, name, offset, size)
                self._host.registry.with_module(module, make, reply)

        self._ask_on(module, ask, on_reply)

    def write_symbol(
        self, module: Module, name: str, offset: int, data: bytes, on_reply: OnReply
    ) -> None:
        """Write bytes of a module variable; replies None."""

        def written(value: Any, error: GpudError | None) -> None:
            if error is None:
                self._loader.record_write(module, name, offset, data)
            on_reply(value, error)

        make = partial(write_message, module.number, name, offset, data)
        self._ask_on(
            module, lambda reply: self._host.registry.with_module(module, make, reply), written
        )

    def _ask_on(self, module: Module, ask: Callable[[OnReply], None], on_reply: OnReply) -> None:
        """`ask`, which fails once the module is unloaded."""

        def ask_if_there(reply: OnReply) -> None:
            if module.forgotten:
                on_reply(None, UnknownName(f"module {module.number} was unloaded meanwhile"))
            else:
                ask(reply)

        self.ask(ask_if_there, on_reply)


def _read(module: int, name: str, offset: int, size: int, ticket: int) -> hm.ReadVariable:
    return hm.ReadVariable(ticket, module, name, offset, size)
