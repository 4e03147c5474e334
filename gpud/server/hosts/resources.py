"""Registry of the resources that one host process holds: arenas, arrays, modules, kernels.

Each new host gets a new, empty registry, so no state of an earlier host is assumed of a later one;
late replies of the earlier host go to its own registry, which is no longer used.

Each resource is requested once: further requests meanwhile wait for the same reply. A failed
request may be repeated.

Properties:
    no_leftovers: after a module is unloaded or a session closed, nothing of it is kept, even if the
        host answers earlier requests later.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpud.core.memory.coherence import ArrayExtent
from gpud.device.host import messages as hm
from gpud.errors import GpudError, UnknownName
from gpud.server.ipc.child_process import OnReply
from gpud.server.ipc.reply_group import ReplyGroup
from gpud.server.state.modules import Module, Shape
from gpud.server.state.sequence import ValidatedSequence

__all__ = ["ArenaOf", "ArraysOf", "ResourceRegistry", "ResourceRequest"]

ArenaOf = Callable[[int], tuple[int, int, int] | None]
"""(base, size, descriptor) of a session's arena on the device, if it has one there."""

ArraysOf = Callable[[int], Sequence[ArrayExtent]]
"""A session's arrays that the device holds a copy of."""

_Waiting = dict[int, list[OnReply] | None]
"""By number: None for a resource that the host holds; the waiting callbacks for a requested one."""


class ResourceRequest(Protocol):
    """Sends a command with a ticket to the host, and passes its reply to ``on_reply``."""

    def __call__(
        self, make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
    ) -> None:
        """See `gpud.server.ipc.child_process.ChildProcess.request`."""


class ResourceRegistry:
    """The resources of one host.

    Args:
        request: sends a command that has a reply.
        send: sends a command that has none.
        arena_of: finds a session's arena.
        arrays_of: finds those of its arrays that need memory of the device's own.

    Attributes:
        host: a number that tells hosts apart, also those of different daemons.
    """

    def __init__(
        self,
        request: ResourceRequest,
        send: Callable[[Any], None],
        arena_of: ArenaOf,
        arrays_of: ArraysOf = lambda session: (),
    ) -> None:
        self.host = 1 + secrets.randbits(62)
        self._request = request
        self._send = send
        self._arena_of = arena_of
        self._arrays_of = arrays_of
        self._arenas: _Waiting = {}
        self._arrays: dict[int, _Waiting] = {}  # by session and address
        self._modules: _Waiting = {}
        self._measured: dict[int, set[Shape]] = {}  # by module

    # -- jobs

    def is_ready(self, sequence: ValidatedSequence, session: int) -> bool:
        """Whether the host holds everything that a job needs."""
        if sequence.ready is not self:
            measured = self._measured
            if not all(shape in measured.get(one.number, ()) for one, shape in sequence.needs):
                return False
            sequence.ready = self
        return self._arenas.get(session, False) is None or self._arena_of(session) is None

    def make_ready(
        self,
        sequence: ValidatedSequence,
        session: int,
        on_ready: Callable[[GpudError | None], None],
    ) -> None:
        """Map, load and measure what a job needs; ``on_ready`` gets the first error, or None."""
        group = ReplyGroup(on_ready, fail_fast=True)
        self.open_arena(session, group.add())
        for module, shape in sequence.needs:
            self.measure(module, shape, group.add())
        group.seal()

    # -- arenas

    def open_arena(self, session: int, on_reply: OnReply) -> None:
        """Map a session's arena, if it has one here, and commit memory for its arrays."""
        arena = self._arena_of(session)
        if arena is None:
            on_reply(None, None)
            return
        base, size, descriptor = arena

        def request(
            make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
        ) -> None:
            def opened(value: Any, error: GpudError | None) -> None:
                if error is not None or session not in self._arenas:
                    on_reply(value, error)
                else:
                    self._commit_all(session, on_reply)

            self._request(make, opened, descriptor)

        self._once(
            self._arenas,
            session,
            lambda ticket: hm.OpenArena(ticket, session, base, size),
            on_reply,
            descriptor,
            request,
        )

    # -- arrays, on devices with memory of their own

    def _commit_all(self, session: int, on_reply: OnReply) -> None:
        """Commit memory for a session's arrays on a new host; an error closes the arena again."""

        def committed(error: GpudError | None) -> None:
            if error is not None and self._arrays.pop(session, None) is not None:
                self._send(hm.CloseArena(session))
            on_reply(None, error)

        group = ReplyGroup(committed)
        for held in self._arrays_of(session):
            self._commit(session, held, group.add())
        group.seal()

    def _commit(self, session: int, held: ArrayExtent, on_reply: OnReply) -> None:
        address, size, *how = held
        offset = self._offset(session, address)
        self._once(
            self._arrays.setdefault(session, {}),
            address,
            lambda ticket: hm.Commit(ticket, session, offset, size, *how),
            on_reply,
        )

    def commit(
        self, session: int, array: Callable[[], ArrayExtent | None], on_reply: OnReply
    ) -> None:
        """Commit memory for an array, if it still exists when the arena is open."""

        def opened(_: Any, error: GpudError | None) -> None:
            held = array()
            if error is not None or held is None:
                on_reply(None, error)
            else:
                self._commit(session, held, on_reply)

        self.open_arena(session, opened)

    def has_array(self, session: int, address: int) -> bool:
        """Whether memory for an array is committed, or was requested."""
        return address in self._arrays.get(session, ())

    def release(self, session: int, address: int, size: int, on_reply: OnReply) -> None:
        """Release the memory of an array, if the host holds it."""
        if self._arrays.get(session, {}).pop(address, False) is False:
            on_reply(None, None)
        else:
            offset = self._offset(session, address)
            self._request(lambda ticket: hm.Release(ticket, session, offset, size), on_reply)

    def shrink(self, session: int, address: int, sizes: tuple[int, int], on_reply: OnReply) -> None:
        """Release the end of an array, if the host holds it; ``sizes``: before and after."""
        if address not in self._arrays.get(session, {}):
            on_reply(None, None)
        else:
            offset, (size, kept) = self._offset(session, address), sizes
            self._request(lambda t: hm.Shrink(t, session, offset, size, kept), on_reply)

    def upload(self, session: int, address: int, offset: int, size: int, on_reply: OnReply) -> None:
        """Copy a part of an array that the host holds from the file to the device."""
        at = self._offset(session, address) + offset
        self._request(lambda ticket: hm.UploadRange(ticket, session, at, size), on_reply)

    def download(
        self,
        session: int,
        address: int,
        offset: int,
        size: int,
        on_reply: OnReply,
        *,
        moves: bool = False,
    ) -> None:
        """Copy a part of an array from the device to the file; ``moves``: there and back again."""
        at = self._offset(session, address) + offset

        def opened(_: Any, error: GpudError | None) -> None:
            if error is not None:
                on_reply(None, error)
            else:
                self._request(lambda t: hm.DownloadRange(t, session, at, size, moves), on_reply)

        self.open_arena(session, opened)

    def export(
        self, session: int, address: int, part: tuple[int, int], program: int, on_reply: OnReply
    ) -> None:
        """Have a client map a part of an array, (offset, bytes), by a socket's descriptor."""
        offset, size = part
        at = self._offset(session, address) + offset

        def opened(_: Any, error: GpudError | None) -> None:
            if error is not None:
                on_reply(None, error)
            else:
                self._request(lambda t: hm.ExportMemory(t, session, at, size), on_reply, program)

        self.open_arena(session, opened)

    def _offset(self, session: int, address: int) -> int:
        arena = self._arena_of(session)
        assert arena is not None, "an array without an arena"
        return address - arena[0]

    # -- modules

    def load(self, module: Module, on_reply: OnReply) -> None:
        """Load a module, after its session's arena: its bounds checks are set when it is loaded."""
        number, session = module.number, module.session

        def request(
            make: Callable[[int], Any], on_reply: OnReply, descriptor: int | None = None
        ) -> None:
            def opened(_: Any, error: GpudError | None) -> None:
                if error is None and number not in self._modules:
                    error = UnknownName(f"module {number} was unloaded before it was loaded")
                if error is not None:
                    on_reply(None, error)
                else:
                    self._request(make, on_reply, descriptor)

            self.open_arena(session, opened)

        ptx, block = module.program.ptx, module.program.block
        at = module.variables_at
        variables = None if at is None else (at, block.size)
        self._once(
            self._modules,
            number,
            lambda ticket: hm.LoadModule(ticket, number, session, ptx, variables),
            on_reply,
            request=request,
        )

    def measure(self, module: Module, shape: Shape, on_reply: OnReply) -> None:
        """Compile a kernel for a block shape; replies M."""
        number = module.number
        index, block, shared, killable = shape
        entry = module.program.kernel(index).info.entry_for(block, killable=killable)

        def measured(value: Any, error: GpudError | None) -> None:
            if error is None and number in self._modules:  # else it was unloaded meanwhile
                self._measured.setdefault(number, set()).add(shape)
            on_reply(value, error)

        self.with_module(
            module, lambda t: hm.MeasureKernel(t, number, entry, block, shared), measured
        )

    def with_module(self, module: Module, make: Callable[[int], Any], on_reply: OnReply) -> None:
        """Load the module, then send a command."""

        def loaded(_: Any, error: GpudError | None) -> None:
            if error is not None:
                on_reply(None, error)
            else:
                self._request(make, on_reply)

        self.load(module, loaded)

    def unload(self, number: int) -> None:
        """Unload a module; none of its jobs is left."""
        if self._modules.pop(number, False) is not False:
            self._send(hm.UnloadModule(number))
            self._measured.pop(number, None)

    def close_session(self, session: int) -> None:
        """Close a session's arena; none of its jobs is left."""
        self._arrays.pop(session, None)
        if self._arenas.pop(session, False) is not False:
            self._send(hm.CloseArena(session))

    def _once(
        self,
        things: _Waiting,
        number: int,
        make: Callable[[int], Any],
        on_reply: OnReply,
        descriptor: int | None = None,
        request: ResourceRequest | None = None,
    ) -> None:
        """Request a resource unless the host holds it; call ``on_reply`` when it does."""
        if number in things:
            waiting = things[number]
            if waiting is None:
                on_reply(None, None)
            else:
                waiting.append(on_reply)
            return
        asked = things[number] = [on_reply]

        def made(_: Any, error: GpudError | None) -> None:
            if things.get(number) is asked:  # else it was unloaded meanwhile
                if error is None:
                    things[number] = None
                else:
                    del things[number]
            for one in asked:
                one(None, error)

        (request or self._request)(make, made, descriptor)
