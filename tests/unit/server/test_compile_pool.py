from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpud.errors import CompileError, GpudError, KernelNotFound
from gpud.server.hosts import compile_pool
from gpud.server.hosts.compile_pool import CompilePool, CompileWaiter
from gpud.server.hosts.compile_process import CompileProcess, Source
from gpud.server.ipc.child_process import ChildProcess
from gpud.server.ipc.stream import Outbox
from tests.integration.daemon_world import until

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


def source(name: str, *names: str) -> Source:
    return Source(PTX.format(name), names, (), None, 90)


@pytest.fixture
async def compiler() -> AsyncIterator[CompilePool]:
    one = CompilePool(Outbox(asyncio.get_running_loop()), timeout_s=30, cache_dir="")
    yield one
    await one.close()


async def test_compiled_once_for_all_that_ask_at_the_same_time(compiler: CompilePool) -> None:
    answers = Answers()
    for _ in range(3):
        compiler.compile(source("k"), CompileWaiter(7, answers))
    await until(lambda: len(answers) == 3)
    assert compiler.compiled == 1
    assert len({id(program) for program, _ in answers}) == 1
    compiler.compile(source("k"), CompileWaiter(7, answers))
    assert len(answers) == 4  # it was kept


async def test_the_last_programs_are_kept_up_to_a_limit(
    compiler: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    for number in range(5):
        compiler.compile(source(f"k{number}"), CompileWaiter(7, answers))
        await until(lambda count=number: len(answers) > count)
        if number == 0:  # room for two like this one
            monkeypatch.setattr(compile_pool, "_CACHE_BYTES", 5 * compiler._cached_bytes // 2)
    for name, made in (("k4", 5), ("k3", 5), ("k2", 6)):
        before = len(answers)
        compiler.compile(source(name), CompileWaiter(7, answers))
        await until(lambda count=before: len(answers) > count)
        assert compiler.compiled == made, name


async def test_a_name_that_is_no_kernel(compiler: CompilePool) -> None:
    answers = Answers()
    compiler.compile(source("k", "other"), CompileWaiter(7, answers))
    await until(lambda: answers)
    error = answers[0][1]
    assert isinstance(error, KernelNotFound)
    assert error.available == ("k",)


async def test_a_process_that_somebody_kills_costs_nobody_a_program(compiler: CompilePool) -> None:
    first, second = Answers(), Answers()
    compiler.compile(source("first"), CompileWaiter(7, first))
    await until(lambda: first)
    (pid,) = compiler.pids
    os.kill(pid, signal.SIGSTOP)  # it is busy with the program, as it seems
    compiler.compile(source("unlucky"), CompileWaiter(7, first))
    compiler.compile(source("second"), CompileWaiter(7, second))
    os.kill(pid, signal.SIGKILL)
    await until(lambda: second)
    assert first[1][0].kernel(0).name == "unlucky"
    assert second[0][0].kernel(0).name == "second"


async def test_a_program_that_kills_its_process_costs_the_others_nothing(
    compiler: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly, killed, compile_ = source("deadly"), [], CompileProcess.compile

    def compiling(self: CompileProcess, wanted: Source, *rest: Any, **more: Any) -> None:
        compile_(self, wanted, *rest, **more)
        if wanted == deadly:
            assert self.pid is not None
            killed.append(self.pid)
            os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(CompileProcess, "compile", compiling)
    first, second = Answers(), Answers()
    compiler.compile(deadly, CompileWaiter(7, first))
    compiler.compile(source("second"), CompileWaiter(7, second))
    await until(lambda: second)
    assert isinstance(first[0][1], CompileError)
    assert "SIGKILL" in str(first[0][1])
    assert len(set(killed)) == 2  # it was given to a second process before it was blamed
    assert second[0][0].kernel(0).name == "second"


async def test_a_program_that_takes_too_long(
    compiler: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers()
    compiler.compile(source("first"), CompileWaiter(7, answers))
    await until(lambda: answers)
    compiler._timeout_s = 0.01
    (pid,) = compiler.pids
    os.kill(pid, signal.SIGSTOP)
    compiler.compile(source("endless"), CompileWaiter(7, answers))
    compiler._timeout_s = 60
    compiler.compile(source("waits"), CompileWaiter(7, answers))
    await until(lambda: len(answers) == 3)
    assert isinstance(answers[1][1], CompileError)
    assert "was ended" in str(answers[1][1])
    assert answers[2][0].kernel(0).name == "waits"


async def test_a_process_that_cannot_run_here_is_not_started_without_end(
    compiler: CompilePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    started = []
    start = ChildProcess.start

    async def counted(self: Any, arguments: Any) -> None:
        started.append(arguments)
        await start(self, arguments)

    monkeypatch.setattr(ChildProcess, "start", counted)
    answers = Answers()
    compiler.compile(source("k"), CompileWaiter(7, answers))
    await until(lambda: answers)
    assert isinstance(answers[0][1], CompileError)
    assert len(started) <= 3


async def test_the_end_of_the_daemon_answers_what_waits(compiler: CompilePool) -> None:
    answers = Answers()
    compiler.compile(source("k"), CompileWaiter(7, answers))
    await compiler.close()
    assert "ending" in str(answers[0][1])
    compiler.compile(source("k"), CompileWaiter(7, answers))
    assert "ending" in str(answers[1][1])


# -- several users --------------------------------------------------------------------------------


@pytest.fixture
async def pool() -> AsyncIterator[CompilePool]:
    one = CompilePool(Outbox(asyncio.get_running_loop()), timeout_s=60, cache_dir="", processes=2)
    yield one
    await one.close()


async def test_one_users_slow_programs_do_not_hold_up_another(pool: CompilePool) -> None:
    warm, slow, quick = Answers(), Answers(), Answers()
    pool.compile(source("warm"), CompileWaiter(1, warm))
    await until(lambda: warm)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)  # its program takes very long
    for number in range(20):
        pool.compile(source(f"slow{number}"), CompileWaiter(1, slow))
    pool.compile(source("quick"), CompileWaiter(2, quick))
    await until(lambda: quick)
    assert quick[0][0].kernel(0).name == "quick"
    assert not slow
    os.kill(pid, signal.SIGKILL)
    await until(lambda: len(slow) == 20)
    assert [program.kernel(0).name for program, _ in slow[1:]] == [
        f"slow{number}" for number in range(1, 20)
    ]


async def test_users_take_turns() -> None:
    one = CompilePool(Outbox(asyncio.get_running_loop()), timeout_s=60, cache_dir="", processes=1)
    order: list[str] = []

    def waiter(user: int) -> CompileWaiter:
        return CompileWaiter(user, lambda program, error: order.append(program.kernel(0).name))  # type: ignore[union-attr]

    try:
        for number in range(5):
            one.compile(source(f"many{number}"), waiter(1))
        one.compile(source("single"), waiter(2))
        await until(lambda: len(order) == 6)
    finally:
        await one.close()
    assert order.index("single") <= 1
    assert [name for name in order if name != "single"] == [f"many{at}" for at in range(5)]


async def test_the_same_program_does_not_wait_for_anothers_queue(pool: CompilePool) -> None:
    """Who asks for what somebody else has far behind in the queue gets it at its own turn."""
    warm, slow, quick = Answers(), Answers(), Answers()
    pool.compile(source("warm"), CompileWaiter(1, warm))
    await until(lambda: warm)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    pool.compile(source("endless"), CompileWaiter(1, slow))
    pool.compile(source("common"), CompileWaiter(1, slow))
    pool.compile(source("common"), CompileWaiter(2, quick))
    await until(lambda: quick)
    assert len(slow) == 1  # its waiter for the same program is answered with it
    assert slow[0][0].kernel(0).name == "common"
    os.kill(pid, signal.SIGCONT)
    await until(lambda: len(slow) == 2)


async def test_what_nobody_waits_for_is_not_compiled(pool: CompilePool) -> None:
    answers = Answers()
    pool.compile(source("warm"), CompileWaiter(1, answers))
    await until(lambda: answers)
    (pid,) = pool.pids
    os.kill(pid, signal.SIGSTOP)
    begun = CompileWaiter(1, answers), CompileWaiter(2, answers)
    queued = CompileWaiter(1, answers)
    pool.compile(source("begun"), begun[0])
    pool.compile(source("begun"), begun[1])
    pool.compile(source("queued"), queued)
    for waiter in (queued, *begun):
        waiter.cancel()  # the process is ended after a while
    pool.compile(source("last"), CompileWaiter(1, answers))
    await until(lambda: len(answers) == 2)
    assert answers[1][0].kernel(0).name == "last"
    assert pid not in pool.pids
    assert pool.compiled == 2


async def test_nothing_is_kept_of_those_who_have_gone(compiler: CompilePool) -> None:
    """Their sources are let go before a process has looked at them."""
    answers = Answers()
    for user in range(3):
        for name in ("a", "b", "common", "common"):
            waiter = CompileWaiter(user, answers)
            compiler.compile(source(name if name == "common" else f"{name}{user}"), waiter)
            waiter.cancel()
    assert not compiler._order
    assert ", 0 waiting" in compiler.describe()
    last = CompileWaiter(1, answers)
    compiler.compile(source("last"), last)
    await until(lambda: answers)
    assert answers[0][0].kernel(0).name == "last"
    assert compiler.compiled == 1


async def test_the_names_and_options_of_a_program_count_too() -> None:
    many = Source("x" * 100, ("n" * 1000,) * 10, ("o" * 1000,) * 20, None, 90)
    assert many.size_bytes >= 100 + 10_000 + 20_000
