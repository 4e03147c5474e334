"""Handles requests about programs: compile, measure, unload."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from gpud.errors import GpudError, InvalidArgument, LimitExceeded
from gpud.server.handlers.residency import LoadedModules
from gpud.server.handlers.variables import REQUEST_BYTES, VariableRequests
from gpud.server.hosts.compile_pool import CompilePool, CompileWaiter
from gpud.server.hosts.compile_process import Source
from gpud.server.hosts.devices import Devices
from gpud.server.hosts.task_turns import TaskTurns
from gpud.server.state.arenas import Arenas
from gpud.server.state.modules import CompiledProgram, Modules
from gpud.server.state.session import Session
from gpud.wire import messages as wm

__all__ = ["ProgramRequests"]

# Limits of one session, on what the front and the hosts keep.
_MOST_MODULES = 1 << 16
_MOST_SHAPES = 1 << 14


class ProgramRequests:
    """Handles requests about programs.

    Args:
        devices: by index.
        compiler: compiles programs.
        modules: of all sessions, by number.
        arenas: counts the variables' memory.
        variables: gives the modules' variables their places.
        loaded: keeps the modules few that hosts have loaded.

    Attributes:
        measuring: the turns of devices' users at having kernels compiled there.
    """

    def __init__(
        self,
        devices: Devices,
        compiler: CompilePool,
        modules: Modules,
        arenas: Arenas,
        variables: VariableRequests,
        loaded: LoadedModules,
    ) -> None:
        self.measuring = TaskTurns()
        self._devices = devices
        self._compiler = compiler
        self._modules = modules
        self._arenas = arenas
        self._variables = variables
        self._loaded = loaded

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
        source = Source(
            message.source,
            message.names,
            message.options,
            message.form,
            device.info.capability,
            message.progress,
            message.check,
            message.images,
            session.uid in (0, os.geteuid()),
            message.only,
            message.headers,
        )
        size = REQUEST_BYTES + source.size_bytes
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
            if program is None:
                assert error is not None
                session.fail(message.request, error)
                return
            try:
                self._load(session, device.index, program, message.request)
            except GpudError as refusal:
                session.fail(message.request, refusal)

        waiter = CompileWaiter(session.account, on_compiled)
        session.waiters[waiter] = None
        self._compiler.compile(source, waiter)

    def _load(self, session: Session, device: int, program: CompiledProgram, request: int) -> None:
        """Make a module, counted against the session's limits, and answer `Compiled`.

        Raises:
            LimitExceeded, OutOfMemory: it exceeds one; nothing is counted then.
        """
        module = self._modules.make(session.number, device, program)
        session.host_memory.charge(program.size_bytes, "this program")
        try:
            self._arenas.reserve(session.number, session.account, device, module.variable_bytes)
        except GpudError:
            session.host_memory.uncharge(program.size_bytes)
            raise

        def placed(error: GpudError | None) -> None:
            if error is not None:
                self._arenas.release(session.number, device, module.variable_bytes)
                session.host_memory.uncharge(program.size_bytes)
                session.fail(request, error)
                return
            self._modules[module.number] = session.modules[module.number] = module
            none: Any = None
            answer = wm.Compiled(
                request,
                module.number,
                none,
                program.names,
                program.symbols,
                program.log,
                module.addresses,
            )
            kernels = program.descriptions.array()  # may be MiB, so the pieces are not joined
            for piece in wm.CLIENT_PROTOCOL.encode_with(answer, "kernels", kernels):
                session.stream.send_frame(piece)

        self._variables.place(session, module, placed)

    def unload(self, session: Session, message: wm.Unload) -> None:
        """Handle `Unload`: it happens once all jobs submitted so far have ended."""
        module = session.module(message.module)
        session.forget_module(module)

        def now() -> None:
            self._devices[module.device].unload(module)
            self._modules.pop(module.number, None)
            self._variables.free(session, module)
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
            module.pending -= 1
            session.host_memory.uncharge(REQUEST_BYTES)
            if session.gone:
                return
            if error is not None:
                session.fail(message.request, error)
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
        session.host_memory.charge(REQUEST_BYTES, "this request")
        module.pending += 1
        self._loaded.use(session, module)

        def on_turn(done: Callable[[], None]) -> None:
            def on_measured(value: Any, error: GpudError | None) -> None:
                done()
                on_reply(value, error)

            if session.gone:  # disconnected while it waited for its turn
                done()
            else:
                self._devices[module.device].requests.measure(module, shape, on_measured)

        # Users take turns, so that one user's large kernels do not delay another's.
        self.measuring.submit((module.device, session.account), on_turn)
