"""What is asked of a device's host, and of the next one where the first is lost meanwhile.

Properties:
    asked_again: a request that is lost with its host is put to the next one, `_MOST_ASKS` in all;
    answered: whoever asks hears of it once: when a host has answered, or why none will.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError, UnknownName
from gpud.server.compilation.modules import Module, Shape
from gpud.server.hosts.current_host import CurrentHost
from gpud.server.hosts.loader import Loader, write_message
from gpud.server.ipc.child_process import OnReply

__all__ = ["HostRequests"]

_MOST_ASKS = 3


class HostRequests:
    """To one device.

    Args:
        host: the device.
        loader: knows what of a module outlives a host.
    """

    def __init__(self, host: CurrentHost, loader: Loader) -> None:
        self._host = host
        self._loader = loader
        self._waiting: list[tuple[Callable[[], None], OnReply]] = []

    def ready(self) -> None:
        """A host is ready: what has waited for it is asked now."""
        waiting, self._waiting = self._waiting, []
        for action, _ in waiting:
            action()

    def refuse_waiting(self, reason: str) -> None:
        """There will be no other host."""
        waiting, self._waiting = self._waiting, []
        for _, on_reply in waiting:
            on_reply(None, self._host.lost_error(reason))

    def ask(self, ask: Callable[[OnReply], None], on_reply: OnReply) -> None:
        """Ask a host when there is one, and if that is lost meanwhile, the next ones.

        Asking must do no harm if it is done twice.
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
        """Make a kernel ready for a block shape; replies M."""
        self._ask_on(
            module, lambda reply: self._host.registry.measure(module, shape, reply), on_reply
        )

    def read_symbol(
        self, module: Module, name: str, offset: int, size: int, on_reply: OnReply
    ) -> None:
        """Replies bytes of a module variable.

        Once after a loss of what kernels may have written there it is an error that says so.
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
        """Writes bytes of a module variable; replies None."""

        def written(value: Any, error: GpudError | None) -> None:
            if error is None:
                self._loader.record_write(module, name, offset, data)
            on_reply(value, error)

        make = partial(write_message, module.number, name, offset, data)
        self._ask_on(
            module, lambda reply: self._host.registry.with_module(module, make, reply), written
        )

    def _ask_on(self, module: Module, ask: Callable[[OnReply], None], on_reply: OnReply) -> None:
        """`ask`, for as long as the module is there."""

        def ask_if_there(reply: OnReply) -> None:
            if module.forgotten:
                on_reply(None, UnknownName(f"module {module.number} was unloaded meanwhile"))
            else:
                ask(reply)

        self.ask(ask_if_there, on_reply)


def _read(module: int, name: str, offset: int, size: int, ticket: int) -> hm.ReadSymbol:
    return hm.ReadSymbol(ticket, module, name, offset, size)
