from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from gpud.errors import CompileError, GpudError, KernelNotFound
from gpud.server.child import Child
from gpud.server.compiling import Compiler, Source
from gpud.server.stream import Outbox

pytestmark = pytest.mark.asyncio

PTX = """
.version 8.0
.target sm_75
.address_size 64
.visible .entry {}()
{{
  ret;
}}
"""


class Answers(list[tuple[Any, GpudError | None]]):
    def __call__(self, program: Any, error: GpudError | None) -> None:
        self.append((program, error))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0)


def source(name: str, *names: str) -> Source:
    return Source(PTX.format(name), names, (), None, 90)


@pytest_asyncio.fixture
async def compiler() -> AsyncIterator[Compiler]:
    one = Compiler(Outbox(asyncio.get_running_loop()), timeout_s=30, cache_dir="")
    yield one
    await one.close()


async def test_compiled_once_for_all_that_ask_at_the_same_time(compiler: Compiler) -> None:
    answers = Answers()
    for _ in range(3):
        compiler.compile(source("k"), answers)
    await until(lambda: len(answers) == 3)
    assert compiler.compiled == 1
    assert len({id(program) for program, _ in answers}) == 1
    compiler.compile(source("k"), answers)
    assert len(answers) == 4  # it was kept


async def test_a_name_that_is_no_kernel(compiler: Compiler) -> None:
    answers = Answers()
    compiler.compile(source("k", "other"), answers)
    await until(lambda: answers)
    error = answers[0][1]
    assert isinstance(error, KernelNotFound)
    assert error.available == ("k",)


async def test_a_program_that_kills_the_worker_costs_the_others_nothing(
    compiler: Compiler,
) -> None:
    first, second = Answers(), Answers()
    compiler.compile(source("first"), first)
    await until(lambda: first)
    assert compiler._worker is not None
    assert compiler._worker.pid is not None
    os.kill(compiler._worker.pid, signal.SIGSTOP)  # it is busy with the program, as it seems
    compiler.compile(source("deadly"), first)
    compiler.compile(source("second"), second)
    os.kill(compiler._worker.pid, signal.SIGKILL)
    await until(lambda: second)
    assert isinstance(first[1][1], CompileError)
    assert "SIGKILL" in str(first[1][1])
    assert second[0][0].kernels[0].name == "second"


async def test_a_program_that_takes_too_long(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    compiler.compile(source("first"), answers)
    await until(lambda: answers)
    compiler._timeout_s = 0.01
    assert compiler._worker is not None
    assert compiler._worker.pid is not None
    os.kill(compiler._worker.pid, signal.SIGSTOP)
    compiler.compile(source("endless"), answers)
    compiler.compile(source("waits"), answers)
    await until(lambda: len(answers) >= 2)
    assert "longer than 0.01 s" in str(answers[1][1])
    compiler._timeout_s = 60
    if compiler._timer is not None:
        compiler._timer.cancel()
    await until(lambda: len(answers) == 3)


async def test_a_worker_that_cannot_run_here_is_not_started_without_end(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    started = []
    start = Child.start

    async def counted(self: Any, arguments: Any) -> None:
        started.append(arguments)
        await start(self, arguments)

    monkeypatch.setattr(Child, "start", counted)
    answers = Answers()
    compiler.compile(source("k"), answers)
    await until(lambda: answers)
    assert isinstance(answers[0][1], CompileError)
    assert len(started) <= 3


async def test_the_end_of_the_daemon_answers_what_waits(compiler: Compiler) -> None:
    answers = Answers()
    compiler.compile(source("k"), answers)
    await compiler.close()
    assert "ending" in str(answers[0][1])
    compiler.compile(source("k"), answers)
    assert "ending" in str(answers[1][1])
