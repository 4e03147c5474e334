"""What the front does with the largest and worst programs fits into its time for one callback.

Measured in processor time of this thread, so that a busy machine does not matter; the least of
three, so that a cold cache does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from gpud.compiler.abi.fault_sites import Site
from gpud.compiler.analysis.block_shape import ShapeRule
from gpud.compiler.forms.form import Form, Reason
from gpud.compiler.process.answer import answer
from gpud.compiler.process.messages import COMPILE_PROTOCOL, CompileFailed
from gpud.compiler.program import KernelInfo, ParameterInfo, Program, SymbolInfo
from gpud.config import load
from gpud.device.host import messages as hm
from gpud.errors import IllegalAddress, KernelNotFound, from_wire
from gpud.server.hosts.quarantine import QuarantineCase
from gpud.server.ipc.event_loop import LIMIT_S
from gpud.server.state.modules import CompiledProgram, Module
from gpud.server.state.symbolizer import symbolized
from gpud.units import SessionId
from gpud.wire import messages as wm
from gpud.wire.framing import HEADER_BYTES
from gpud.wire.message_table import Sender

MOST_KERNELS = 4096
MOST_BYTES = load({}, environ={"HOME": "/nowhere"}).max_program_bytes


def spent_s(work: Callable[[], Any]) -> float:
    def once() -> float:
        began = time.thread_time()
        work()
        return time.thread_time() - began

    return min(once() for _ in range(3))


def kernel(number: int) -> KernelInfo:
    parameters = tuple(
        ParameterInfo(f"k{number}_param_{at}", "uint", 4, 4, 4 * at, "f4") for at in range(16)
    )
    return KernelInfo(
        f"kernel<{number}>", f"_Z6kernelILi{number}EEvv", None, True, Form.PERSISTENT, False,
        tuple(Reason(f"reason{at}", "is like this", "ret;", 7) for at in range(8)), (), False,
        ShapeRule.ANY, (Form.PERSISTENT,), parameters, None, None, 0, True, number,
    )  # fmt: skip


@cache
def largest() -> Program:
    """As many kernels, variables, sites and letters as a program may have."""
    kernels = [kernel(number) for number in range(MOST_KERNELS)]
    sites = tuple(
        Site("k", "st.global.v4.f32 [%rd123456+1024], {%f1, %f2, %f3, %f4};", at, "a.cu", at)
        for at in range(MOST_BYTES // 40)
    )
    variable = (SymbolInfo(f"variable_{at}", "global", 4, 4) for at in range(16384))
    return Program(
        # What the front once searched for the names of shared memory, again and again.
        ".extern .shared .align 4 .b8 a[];\n" * (MOST_BYTES // 34),
        "",
        {one.entry: one for one in kernels},
        {one.name: one.entry for one in kernels},
        {one.name: one for one in variable},
        "",
        sites,
    )


@cache
def received() -> CompiledProgram:
    return CompiledProgram(answer(1, largest(), ("kernel<7>",)))


def test_a_program_is_received_and_answered() -> None:
    body = COMPILE_PROTOCOL.encode(answer(1, largest(), ("kernel<7>",)))[HEADER_BYTES:]

    def receive() -> None:
        program = CompiledProgram(COMPILE_PROTOCOL.decode(body, Sender.DAEMON))
        answer: Any = wm.Compiled(1, 1, None, program.names, program.symbols, program.log)  # type: ignore[arg-type]
        kernels = program.descriptions.array()
        assert wm.CLIENT_PROTOCOL.encode_with(answer, "kernels", kernels)
        assert program.kernel(program.names["kernel<7>"]).entry == "_Z6kernelILi7EEvv"

    assert spent_s(receive) < LIMIT_S


def test_a_program_is_loaded_and_suspected() -> None:
    program = received()
    assert spent_s(lambda: hm.HOST_PROTOCOL.encode(hm.LoadModule(1, 1, 1, program.ptx))) < LIMIT_S
    assert spent_s(lambda: QuarantineCase(program.ptx + " ").digest) < LIMIT_S


def test_a_fault_is_symbolized() -> None:
    module = Module(1, SessionId(1), 0, received())
    sequence = SimpleNamespace(modules=(module,), needs=[(module, (7, (32, 1, 1), 0, False))])
    job: Any = SimpleNamespace(session=1, device=0, sequence=sequence)
    last = len(largest().sites) - 1
    found: list[Any] = []

    def fail() -> None:
        raw = IllegalAddress(4, space="shared", kernel="_Z6kernelILi7EEvv", site=last)
        found.append(symbolized(raw, job, lambda *_: None))

    assert spent_s(fail) < LIMIT_S
    assert found[0].line == last
    assert "pass shared=" in str(found[0])


def test_an_unknown_kernel_among_very_many_with_long_names() -> None:
    names = tuple(f"{number:04}{'x' * (MOST_BYTES // MOST_KERNELS)}" for number in range(4096))
    made = KernelNotFound("y" * 4096, names, log="")
    told = COMPILE_PROTOCOL.encode(CompileFailed(1, made.to_wire()))[HEADER_BYTES:]
    assert spent_s(lambda: KernelNotFound("x" * 4096, names)) < LIMIT_S
    assert spent_s(lambda: from_wire(COMPILE_PROTOCOL.decode(told, Sender.DAEMON).error)) < LIMIT_S
