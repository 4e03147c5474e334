"""Handles requests about module variables, and gives those of images their place in the arena.

A program that was sent as images has its variables in a block (`gpud.compiler.variables`), which is
an array of its session that the client cannot free. Its values are in the session's file, as an
array's are; on a device whose arrays are copied they are copied as those are. The variables of
other programs are the device host's (`gpud.server.hosts.requests`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from gpud.errors import GpudError, InvalidArgument, UnknownName
from gpud.errors.base import shorten
from gpud.server.hosts.device_memory import MOST_PARTS, DeviceArrays
from gpud.server.hosts.devices import Devices
from gpud.server.ipc.child_process import OnReply
from gpud.server.state.arenas import Arenas
from gpud.server.state.modules import Module
from gpud.server.state.quota import ARRAY_BYTES
from gpud.server.state.session import Session
from gpud.wire import messages as wm

__all__ = ["REQUEST_BYTES", "VariableRequests"]

REQUEST_BYTES = 1024
"""Charged for a request that waits for its answer, beside its data."""

_NAMES_TOLD = 16  # in an error
_MESSAGE_BYTES = 4096  # of an answer's frame, beside the bytes of a variable

Placed = Callable[[GpudError | None], None]


class VariableRequests:
    """Handles requests about module variables.

    Args:
        devices: by index.
        arenas: the memory of sessions' arrays, and of blocks.
        max_message_bytes: the largest message.
    """

    def __init__(self, devices: Devices, arenas: Arenas, max_message_bytes: int) -> None:
        self._devices = devices
        self._arenas = arenas
        self._most_bytes = max_message_bytes - _MESSAGE_BYTES

    # -- the block of a module

    def place(self, session: Session, module: Module, then: Placed) -> None:
        """Allocate a module's block, if it has one, with its initial values.

        Args:
            session: whose module it is.
            module: a new one.
            then: gets why that cannot be; nothing is allocated then. Not called if the session ends
                before.
        """
        if not module.program.block.size:
            then(None)
            return

        def now() -> None:
            if session.gone:
                return
            try:
                self._place(session, module, then)
            except GpudError as error:
                then(error)

        self._arenas.when_zeroed(session.number, now)

    def _place(self, session: Session, module: Module, then: Placed) -> None:
        arenas, number, index = self._arenas, session.number, module.device
        size = module.program.block.size
        session.host_memory.charge(ARRAY_BYTES, "this program's variables")
        try:
            address, arena = arenas.allocate(number, session.account, index, size)
        except GpudError:
            session.host_memory.uncharge(ARRAY_BYTES)
            raise
        device = self._devices[index]
        if arena is not None:
            session.send_with(wm.Arena(index, arena.base, arena.size), arenas.file(arena))
            device.open_arena(number)
        module.variables_at = address
        session.blocks[index, address] = None
        written = list(module.program.block.written(address))
        for at, data in written:
            self._write(session, module, at, data)
        memory = device.memory
        if memory is None:
            then(None)
            return
        if written:
            first = min(at for at, _ in written)
            last = max(at + len(data) for at, data in written)
            memory.write(number, address, first, last - first, session.last_number)

        def committed(_: Any, error: GpudError | None) -> None:
            if error is not None:
                session.blocks.pop((index, address), None)
                if arenas.undo(number, index, address):
                    session.host_memory.uncharge(ARRAY_BYTES)
            if not session.gone:
                then(error)

        memory.commit(number, address, committed)

    def free(self, session: Session, module: Module) -> None:
        """Free a module's block, if it has one, once the jobs submitted so far have ended."""
        if module.variables_at is not None:
            del session.blocks[module.device, module.variables_at]
            session.free(module.device, module.variables_at)

    # -- requests

    def read(self, session: Session, message: wm.ReadSymbol) -> None:
        """Handle `ReadSymbol`: answer the bytes."""
        module = self._with_symbol(session, message, message.size)
        answer = _answer(session, message.request, message.size)
        at = module.offset_of(message.name)
        device = self._devices[module.device]
        if at is None:
            device.requests.read_symbol(module, message.name, message.offset, message.size, answer)
            return
        at += message.offset

        def copied(_: Any, error: GpudError | None) -> None:
            if session.gone or error is not None:
                answer(None, error)
            else:
                descriptor, place = self._file(session, module, at)
                answer(os.pread(descriptor, message.size, place), None)

        if device.memory is None or not message.size:
            copied(None, None)
        else:
            assert module.variables_at is not None
            _guarded(
                answer,
                partial(
                    device.memory.read, session.number, module.variables_at, at, message.size,
                    copied,
                ),
            )  # fmt: skip

    def write(self, session: Session, message: wm.WriteSymbol) -> None:
        """Handle `WriteSymbol`: answer when they are written."""
        size = len(message.data)
        module = self._with_symbol(session, message, size)
        answer = _answer(session, message.request, size)
        at = module.offset_of(message.name)
        device = self._devices[module.device]
        if at is None:
            device.requests.write_symbol(module, message.name, message.offset, message.data, answer)
            return
        at += message.offset
        self._write(session, module, at, message.data)
        if device.memory is not None and size:
            self._upload(session, module, device.memory, (at, size))
        answer(None, None)

    def _upload(
        self, session: Session, module: Module, memory: DeviceArrays, part: tuple[int, int]
    ) -> None:
        """Copy a part of a block to the device; who writes faster waits, as with arrays."""

        def go_on() -> None:
            if not session.gone:
                session.stream.resume()

        assert module.variables_at is not None
        last = session.last_number
        if not memory.write(session.number, module.variables_at, *part, last, MOST_PARTS, go_on):
            session.stream.pause()

    # -- helpers

    def _write(self, session: Session, module: Module, at: int, data: bytes) -> None:
        descriptor, place = self._file(session, module, at)
        os.pwrite(descriptor, data, place)

    def _file(self, session: Session, module: Module, at: int) -> tuple[int, int]:
        """Return the session's file, and where in it byte ``at`` of a module's block lies."""
        found = self._arenas.arena_of(session.number, module.device)
        assert found is not None
        assert module.variables_at is not None
        base, _, descriptor = found
        return descriptor, module.variables_at - base + at

    def _with_symbol(
        self, session: Session, message: wm.ReadSymbol | wm.WriteSymbol, size: int
    ) -> Module:
        """Return the module, after checking that it has the variable, and the range in it."""
        module = session.module(message.module)
        known = module.program.symbols.get(message.name)
        if known is None:
            names = ", ".join(map(shorten, islice(module.program.symbols, _NAMES_TOLD))) or "none"
            names += ", ..." if len(module.program.symbols) > _NAMES_TOLD else ""
            raise UnknownName(f"the module has no variable {message.name!r}; it has {names}")
        if message.offset + size > known:
            raise InvalidArgument(
                f"bytes {message.offset} to {message.offset + size} are outside of {message.name}, "
                f"which has {known}"
            )
        if size > self._most_bytes:
            raise InvalidArgument(
                f"{size} bytes do not fit into a message; read {self._most_bytes} at most"
            )
        return module


def _guarded(answer: OnReply, ask: Callable[[], None]) -> None:
    """Call ``ask``; if that raises, it is the answer."""
    try:
        ask()
    except GpudError as error:
        answer(None, error)


def _answer(session: Session, request: int, size: int) -> OnReply:
    """Charge for a request that carries, or reads, ``size`` bytes; return its reply callback.

    Raises:
        LimitExceeded: the session's pending requests and other memory exceed its quota.
    """
    session.host_memory.charge(REQUEST_BYTES + size, "this request")

    def on_reply(value: Any, error: GpudError | None) -> None:
        session.host_memory.uncharge(REQUEST_BYTES + size)
        if not session.gone:
            session.reply(request, value, error)

    return on_reply
