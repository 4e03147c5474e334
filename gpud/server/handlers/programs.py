"""Handles requests about programs: compile, measure, read and write variables, unload."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpud.errors import GpudError, InvalidArgument, LimitExceeded, UnknownName
from gpud.server.hosts.compile_pool import CompilePool, CompileWaiter
from gpud.server.hosts.compile_process import Source
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.task_turns import TaskTurns
from gpud.server.state.arenas import Arenas
from gpud.server.state.modules import CompiledProgram, Module, Modules
from gpud.server.state.session import Session
from gpud.server.state.symbolizer import symbolized_rejection
from gpud.wire import messages as wm

__all__ = ["ProgramRequests"]

# Limits of one session, on what the front and the hosts keep.
_MOST_MODULES = 4096
_MOST_SHAPES = 1024
_REQUEST_BYTES = 1024  # charged for a request that waits for its answer, beside its data
_MESSAGE_BYTES = 4096  # of an answer's frame, beside the bytes of a variable


class ProgramRequests:
    """Handles requests about programs.

    Args:
        devices: by index.
        compiler: compiles programs.
        modules: of all sessions, by number.
        arenas: counts the variables' memory.
        max_message_bytes: the largest message.

    Attributes:
        measuring: the turns of devices' users at having kernels compiled there.
    """

    def __init__(
        self,
        devices: Devices,
        compiler: CompilePool,
        modules: Modules,
        arenas: Arenas,
        max_message_bytes: int,
    ) -> None:
        self.measuring = TaskTurns()
        self._devices = devices
        self._compiler = compiler
        self._modules = modules
        self._arenas = arenas
        self._most_bytes = max_message_bytes - _MESSAGE_BYTES

    def compile_program(self, session: Session, message: wm.Compile) -> None:
        """Handle `Compile`: answer `Compiled`."""
        device = self._devices.usable(message.device)
        assert device.info is not None
        if message.check and device.info.kind != "cpu":
            raise InvalidArgument(
                f"device {message.device} is a GPU, and kernels are checked on the CPU device: "
                'use gc.local("cpu", check=True), or NVIDIA\'s compute-sanitizer with a program '
                "of your own that launches the kernel"
            )
        if message.images and message.source:
            raise InvalidArgument(
                "the program has a source and images; send CUDA C++ or PTX as the source, or images"
            )
        parts = (message.source, *message.names, *message.options, *message.images)
        size = _REQUEST_BYTES + sum(map(len, parts))
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
                    number = self._new_module(session, device.index, program)
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
            message.source,
            message.names,
            message.options,
            message.form,
            device.info.capability,
            message.progress,
            message.check,
            message.images,
        )
        waiter = CompileWaiter(session.uid, on_compiled)
        session.waiters[waiter] = None
        self._compiler.compile(source, waiter)

    def _new_module(self, session: Session, device: int, program: CompiledProgram) -> int:
        """Make a module, counted against the session's limits; return its number.

        Raises:
            LimitExceeded, OutOfMemory: it exceeds one; nothing is counted then.
        """
        module = self._modules.make(session.number, device, program)
        session.host_memory.charge(program.size_bytes, "this program")
        try:
            self._arenas.reserve(session.number, session.uid, device, module.variable_bytes)
        except GpudError:
            session.host_memory.uncharge(program.size_bytes)
            raise
        self._modules[module.number] = session.modules[module.number] = module
        return module.number

    def unload(self, session: Session, message: wm.Unload) -> None:
        """Handle `Unload`: it happens once all jobs submitted so far have ended."""
        module = session.module(message.module)
        session.forget_module(module)

        def now() -> None:
            self._devices[module.device].unload(module)
            self._modules.pop(module.number, None)
            self._arenas.release(session.number, module.device, module.variable_bytes)
            session.host_memory.uncharge(module.program.size_bytes)

        session.when_idle(now)

    def measure(self, session: Session, message: wm.Measure) -> None:
        """Handle `Measure`: answer `Measured`."""
        module = session.module(message.module)
        kernel = session.kernel(module, message.kernel)
        kernel.info.check_block(message.block)
        killable = message.killable or self._devices[module.device].always_polls
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
                f"{_MOST_SHAPES} block shapes of this module were measured; unload it and compile "
                "it again, or use fewer",
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
                self._devices[module.device].requests.measure(module, shape, on_measured)

        # Users take turns, so that one user's large kernels do not delay another's.
        self.measuring.submit((module.device, session.uid), on_turn)

    def read_symbol(self, session: Session, message: wm.ReadSymbol) -> None:
        """Handle `ReadSymbol`: answer the bytes."""
        module = self._with_symbol(session, message, message.size)
        device = self._devices[module.device]
        answer = _answer(session, message.request, message.size)
        device.requests.read_symbol(module, message.name, message.offset, message.size, answer)

    def write_symbol(self, session: Session, message: wm.WriteSymbol) -> None:
        """Handle `WriteSymbol`: answer when they are written."""
        module = self._with_symbol(session, message, len(message.data))
        device = self._devices[module.device]
        answer = _answer(session, message.request, len(message.data))
        device.requests.write_symbol(module, message.name, message.offset, message.data, answer)

    def _with_symbol(
        self, session: Session, message: wm.ReadSymbol | wm.WriteSymbol, size: int
    ) -> Module:
        """Return the module, after checking that it has the variable, and the range in it."""
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
        if size > self._most_bytes:
            raise InvalidArgument(
                f"{size} bytes do not fit into a message; read {self._most_bytes} at most"
            )
        return module


def _answer(session: Session, request: int, size: int) -> Any:
    """Charge for a request that carries, or reads, ``size`` bytes; return its reply callback.

    Raises:
        LimitExceeded: the session's pending requests and other memory exceed its quota.
    """
    session.host_memory.charge(_REQUEST_BYTES + size, "this request")

    def on_reply(value: Any, error: GpudError | None) -> None:
        session.host_memory.uncharge(_REQUEST_BYTES + size)
        if not session.gone:
            session.reply(request, value, error)

    return on_reply
