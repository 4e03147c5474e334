"""Requests about programs: compile, measure, read and write variables, unload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpud.errors import GpudError, InvalidArgument, LimitExceeded, UnknownName
from gpud.server.compiling import Source
from gpud.server.modules import CompiledProgram, Module
from gpud.wire import messages as wm

if TYPE_CHECKING:
    from gpud.server.session import Session

__all__ = ["compile_program", "measure", "read_symbol", "unload", "write_symbol"]

# What one session can make the front and the hosts keep.
_MOST_MODULES = 4096
_MOST_SHAPES = 1024
_MOST_COMPILING_BYTES = 64 << 20


def compile_program(session: Session, message: wm.Compile) -> None:
    """`Compiled` follows, or `Failed`."""
    front = session.front
    device = front.usable_device(message.device)
    assert device.info is not None
    size = len(message.source)
    if len(session.modules) >= _MOST_MODULES:
        raise LimitExceeded(
            f"the session has {_MOST_MODULES} modules; unload some",
            limit="modules",
            value=_MOST_MODULES,
        )
    if session.compiling_bytes and session.compiling_bytes + size > _MOST_COMPILING_BYTES:
        raise LimitExceeded(
            f"the session has programs of over {_MOST_COMPILING_BYTES >> 20} MiB waiting to be "
            "compiled; wait for some of them",
            limit="programs",
            value=_MOST_COMPILING_BYTES,
        )
    session.compiling_bytes += size

    def on_compiled(program: CompiledProgram | None, error: GpudError | None) -> None:
        session.compiling_bytes -= size
        if session.gone:
            return
        if program is None:
            assert error is not None
            session.send(wm.Failed(message.request, error.to_wire()))
            return
        number = front.next_module()
        session.modules[number] = Module(number, session.number, device.index, program)
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
    front.compiler.compile(source, on_compiled)


def unload(session: Session, message: wm.Unload) -> None:
    """The module is unknown from now on."""
    session.forget_module(session.module(message.module))


def measure(session: Session, message: wm.Measure) -> None:
    """`Measured` follows, or `Failed`."""
    module = session.module(message.module)
    kernel = session.kernel(module, message.kernel)
    shape = (message.kernel, message.block, message.shared)

    def on_reply(value: Any, error: GpudError | None) -> None:
        if session.gone:
            return
        if error is not None:
            session.send(wm.Failed(message.request, error.to_wire()))
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
    else:
        session.front.devices[module.device].measure(module, shape, on_reply)


def read_symbol(session: Session, message: wm.ReadSymbol) -> None:
    """`Answer` with the bytes follows, or `Failed`."""
    module = _with_symbol(session, message, message.size)
    device = session.front.devices[module.device]
    answer = _answer(session, message.request)
    device.read_symbol(module, message.name, message.offset, message.size, answer)


def write_symbol(session: Session, message: wm.WriteSymbol) -> None:
    """`Answer` follows, or `Failed`."""
    module = _with_symbol(session, message, len(message.data))
    device = session.front.devices[module.device]
    answer = _answer(session, message.request)
    device.write_symbol(module, message.name, message.offset, message.data, answer)


def _with_symbol(session: Session, message: wm.ReadSymbol | wm.WriteSymbol, size: int) -> Module:
    """The module, if it has the variable and the range lies in it."""
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


def _answer(session: Session, request: int) -> Any:
    def on_reply(value: Any, error: GpudError | None) -> None:
        if session.gone:
            return
        if error is None:
            session.send(wm.Answer(request, value))
        else:
            session.send(wm.Failed(request, error.to_wire()))

    return on_reply
