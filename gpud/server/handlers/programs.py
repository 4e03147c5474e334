"""Handles requests about programs: compile, measure, read and write variables, unload."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError, InvalidArgument, LimitExceeded, UnknownName
from gpud.server.hosts.compile_pool import CompileWaiter, Source
from gpud.server.state.modules import CompiledProgram, Module, always_polls
from gpud.server.state.symbolizer import symbolized_rejection
from gpud.units import SessionId
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.state.session import Session

__all__ = ["compile_program", "measure", "read_symbol", "unload", "write_symbol"]

# Limits of one session, on what the front and the hosts keep.
_MOST_MODULES = 4096
_MOST_SHAPES = 1024
_REQUEST_BYTES = 1024  # charged for a request that waits for its answer, beside its data


def compile_program(session: Session, message: wm.Compile) -> None:
    """Handle `Compile`: answers `Compiled`."""
    front = session.front
    device = front.usable_device(message.device)
    assert device.info is not None
    size = _REQUEST_BYTES + len(message.source) + sum(map(len, message.names + message.options))
    if len(session.modules) >= _MOST_MODULES:
        raise LimitExceeded(
            f"the session has {_MOST_MODULES} modules; unload some",
            limit="modules",
            value=_MOST_MODULES,
        )
    session.host_memory.charge(size, "this program")

    def on_compiled(program: CompiledProgram | None, error: GpudError | None) -> None:
        session.host_memory.uncharge(size)
        session.waiters.pop(waiter, None)
        if session.gone:
            return
        number = 0
        if program is not None:
            try:
                number = _new_module(session, device.index, program)
            except GpudError as refusal:
                error = refusal
        if program is None or error is not None:
            assert error is not None
            session.fail(message.request, error)
            return
        session.send(
            wm.Compiled(
                message.request,
                number,
                program.descriptions,
                program.names,
                program.symbols,
                program.log,
            )
        )

    source = Source(
        message.source, message.names, message.options, message.form, device.info.capability
    )
    waiter = CompileWaiter(session.user.uid, on_compiled)
    session.waiters[waiter] = None
    front.compiler.compile(source, waiter)


def _new_module(session: Session, device: int, program: CompiledProgram) -> int:
    """Make a module, counted against the session's limits; returns its number.

    Raises:
        LimitExceeded, OutOfMemory: it exceeds one; nothing is counted then.
    """
    front = session.front
    module = Module(front.next_module(), session.number, device, program)
    session.host_memory.charge(program.size_bytes, "this program")
    try:
        front.arenas.reserve(
            SessionId(session.number), session.peer.uid, device, module.variable_bytes
        )
    except GpudError:
        session.host_memory.uncharge(program.size_bytes)
        raise
    front.modules[module.number] = session.modules[module.number] = module
    return module.number


def unload(session: Session, message: wm.Unload) -> None:
    """Handle `Unload`: the module's number is unknown from now on."""
    session.forget_module(session.module(message.module))


def measure(session: Session, message: wm.Measure) -> None:
    """Handle `Measure`: answers `Measured`."""
    module = session.module(message.module)
    kernel = session.kernel(module, message.kernel)
    kernel.info.check_block(message.block)
    killable = message.killable or always_polls(session.front.devices[module.device].info)
    shape = (message.kernel, message.block, message.shared, killable and kernel.info.killable)

    def on_reply(value: Any, error: GpudError | None) -> None:
        session.host_memory.uncharge(_REQUEST_BYTES)
        if session.gone:
            return
        if error is not None:
            session.fail(message.request, symbolized_rejection(error, module.program))
            return
        form = str(kernel.info.form_for(message.block))
        module.measured[shape] = (value, form)
        session.send(wm.Measured(message.request, value, form))

    known = module.measured.get(shape)
    if known is None and len(module.measured) >= _MOST_SHAPES:
        raise LimitExceeded(
            f"{_MOST_SHAPES} block shapes of this module were measured; unload it and compile it "
            "again, or use fewer",
            limit="shapes",
            value=_MOST_SHAPES,
        )
    if known is not None:
        session.send(wm.Measured(message.request, *known))
        return
    session.host_memory.charge(_REQUEST_BYTES, "this request")

    def on_turn(done: Callable[[], None]) -> None:
        def on_measured(value: Any, error: GpudError | None) -> None:
            done()
            on_reply(value, error)

        if session.gone:  # disconnected while it waited for its turn
            done()
        else:
            session.front.devices[module.device].requests.measure(module, shape, on_measured)

    # Users take turns, so that one user's large kernels do not delay another's.
    session.front.measuring.submit((module.device, session.user.uid), on_turn)


def read_symbol(session: Session, message: wm.ReadSymbol) -> None:
    """Handle `ReadSymbol`: answers the bytes."""
    module = _with_symbol(session, message, message.size)
    device = session.front.devices[module.device]
    answer = _answer(session, message.request, message.size)
    device.requests.read_symbol(module, message.name, message.offset, message.size, answer)


def write_symbol(session: Session, message: wm.WriteSymbol) -> None:
    """Handle `WriteSymbol`: answers when they are written."""
    module = _with_symbol(session, message, len(message.data))
    device = session.front.devices[module.device]
    answer = _answer(session, message.request, len(message.data))
    device.requests.write_symbol(module, message.name, message.offset, message.data, answer)


def _with_symbol(session: Session, message: wm.ReadSymbol | wm.WriteSymbol, size: int) -> Module:
    """The module, after checking that it has the variable and that the range lies in it."""
    module = session.module(message.module)
    known = module.program.symbols.get(message.name)
    if known is None:
        names = ", ".join(module.program.symbols) or "none"
        raise UnknownName(f"the module has no variable {message.name!r}; it has {names}")
    if message.offset + size > known:
        raise InvalidArgument(
            f"bytes {message.offset} to {message.offset + size} are outside of {message.name}, "
            f"which has {known}"
        )
    most = session.front.config.max_message_bytes - 4096
    if size > most:
        raise InvalidArgument(f"{size} bytes do not fit into a message; read {most} at most")
    return module


def _answer(session: Session, request: int, size: int) -> Any:
    """Charge for a request that carries, or reads, ``size`` bytes; returns its reply callback.

    Raises:
        LimitExceeded: the session's pending requests and other memory exceed its quota.
    """
    session.host_memory.charge(_REQUEST_BYTES + size, "this request")

    def on_reply(value: Any, error: GpudError | None) -> None:
        session.host_memory.uncharge(_REQUEST_BYTES + size)
        if not session.gone:
            session.reply(request, value, error)

    return on_reply
