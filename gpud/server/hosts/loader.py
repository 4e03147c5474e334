"""Loading and compiling on a device's hosts, and restoring module variables on a new host.

Problem: a module's native code and variables are lost with its host. The next host must get the
values that the session wrote to the variables, and must not be ended by the same compilation again
and again. Whoever reads a variable that kernels wrote must not take an initial value for the last
one written.

Approach: every request of the registry (`gpud.server.hosts.resources`) passes through here on its
way to the host. A load or compilation is first checked against the quarantine
(`gpud.server.hosts.quarantine`) and recorded while it is under way. After a load, the session's
writes are repeated before any other request to the module.

Properties:
    constants_survive: variables in constant memory have the same values on every host;
    loss_reported_once: the first read of another variable fails and reports the loss, after its
        host was lost and kernels of its module had run there, or too much was written to its module
        to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gpud.device.host import messages as hm
from gpud.errors import DeviceLost, GpudError
from gpud.server.hosts.quarantine import Quarantine, QuarantineCase
from gpud.server.hosts.resources import ResourceRequest
from gpud.server.hosts.variable_writes import VariableWrites
from gpud.server.ipc.child_process import ChildProcess, OnReply
from gpud.server.ipc.reply_group import ReplyGroup
from gpud.server.state.modules import Module
from gpud.server.state.sequence import ValidatedSequence

__all__ = ["Loader", "write_message"]


class Loader:
    """Loads and compiles on the hosts of one device.

    Args:
        ask: sends a command that has a reply to the current host.
        host: returns the current host.
        quarantine: decides what may be compiled.
        lost: makes the error for a request that cannot be served now.

    Attributes:
        compiling: loads and compilations that were sent to the host and not answered, by ticket,
            oldest first.
    """

    def __init__(
        self,
        ask: ResourceRequest,
        host: Callable[[], ChildProcess | None],
        quarantine: Quarantine,
        lost: Callable[[str], DeviceLost],
    ) -> None:
        self._ask = ask
        self._host = host
        self._quarantine = quarantine
        self._lost_error = lost
        self.compiling: dict[int, QuarantineCase] = {}
        self._texts: dict[int, str] = {}  # PTX by module
        self._ran: dict[int, Module] = {}  # modules with jobs on this host
        self._written: dict[int, tuple[Module, VariableWrites]] = {}
        self._gone: dict[int, str] = {}  # modules with lost variables: how their host ended

    # -- the host

    def host_lost(self, reason: str, *, suspect: bool) -> list[Module]:
        """Record that the host is lost; returns the modules whose variables are lost with it.

        Args:
            reason: how it ended.
            suspect: whether its current compilation may be the cause.
        """
        if suspect and self.compiling:
            self._quarantine.suspect(next(iter(self.compiling.values())), reason)
        self.compiling.clear()
        ran, self._ran = self._ran, {}
        lost_modules = {
            n: one for n, one in ran.items() if n in self._texts and one.program.variables
        }
        lost_modules.update(
            (n, one) for n, (one, written) in self._written.items() if written.missing
        )
        self._gone.update(dict.fromkeys(lost_modules, reason))
        return list(lost_modules.values())

    def ran(self, sequence: ValidatedSequence) -> None:
        """Record that a job's kernels have run, or are about to, on the current host."""
        self._ran.update((module.number, module) for module, _ in sequence.needs)

    # -- variables

    def record_write(self, module: Module, name: str, offset: int, data: bytes) -> None:
        """Keep what the session wrote to a variable."""
        if module.number in self._texts:
            _, written = self._written.setdefault(module.number, (module, VariableWrites()))
            written.write(name, offset, data, constant=name not in module.program.variables)

    def read_problem(self, module: Module, name: str) -> DeviceLost | None:
        """Return the error for a variable's first read after its values were lost; else None."""
        if name not in module.program.variables or module.number not in self._gone:
            return None
        reason = self._gone.pop(module.number)
        return self._lost_error(
            f"{reason}, and what kernels had written to {name!r} was lost with its host: the "
            "module's variables have what the session wrote to them last, as far as that is kept, "
            "or their first values; ask again to read that"
        )

    def unload(self, number: int) -> None:
        """Drop what is kept of a module."""
        self._texts.pop(number, None)
        self._written.pop(number, None)
        self._gone.pop(number, None)
        self._ran.pop(number, None)

    # -- requests

    def request(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        """Send a request of the registry; see `gpud.server.hosts.resources.ResourceRequest`."""
        message = make(0)
        if isinstance(message, hm.LoadModule):
            self._texts[message.module] = message.ptx
            self._compile(
                QuarantineCase(message.ptx), make, self._rewriting(message.module, on_reply)
            )
        elif isinstance(message, hm.MeasureKernel):
            text = self._texts.get(message.module, "")
            case = QuarantineCase(text, message.entry, message.block, message.shared)
            self._compile(case, make, on_reply)
        else:
            self._ask(make, on_reply, descriptor)

    def _compile(self, case: QuarantineCase, make: Callable[[int], Any], on_reply: OnReply) -> None:
        """Have the host load or compile ``case``, unless the quarantine refuses it."""
        host = self._host()
        tickets: list[int] = []

        def verdict(error: GpudError | None) -> None:
            if error is not None:
                on_reply(None, error)
            elif host is not self._host():
                on_reply(None, self._lost_error("was started again meanwhile; ask again"))
            else:
                self._ask(noted, replied)

        def noted(ticket: int) -> Any:
            self.compiling[ticket] = case
            tickets.append(ticket)
            return make(ticket)

        def replied(value: Any, error: GpudError | None) -> None:
            # When a host is lost, its unanswered cases stay for `host_lost`.
            if tickets and host is not None and host.alive:
                self.compiling.pop(tickets[0], None)
            on_reply(value, error)

        self._quarantine.ask(case, verdict)

    def _rewriting(self, module: int, on_reply: OnReply) -> OnReply:
        """Wrap ``on_reply``: after the load, repeat the session's writes to variables."""
        if module not in self._written:
            return on_reply
        written = self._written[module][1]

        def loaded(value: Any, error: GpudError | None) -> None:
            if error is not None:
                on_reply(value, error)
                return
            group = ReplyGroup(lambda problem: on_reply(value, problem))
            for name, offset, data in list(written.pieces()):
                self._ask(partial(write_message, module, name, offset, data), group.add())
            group.seal()

        return loaded


def write_message(
    module: int, name: str, offset: int, data: bytes, ticket: int
) -> hm.WriteVariable:
    """Return the message that writes to a variable."""
    return hm.WriteVariable(ticket, module, name, offset, data)
