"""Device hosts that die, hang, crash and run out of things, at any moment, in real processes."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from campaigns.host_failures.host_process import COMMAND, FOLDER
from campaigns.host_failures.load import Load
from gpud.server.daemon import Daemon
from gpud.server.hosts.device import Device
from gpud.wire import messages as wm
from tests.integration import daemon_world
from tests.integration.daemon_world import PTX, Client, World, launch

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]
until = partial(daemon_world.until, pause_s=0.002)

GATE = r"""
extern "C" __global__ void gate(unsigned* words) {
    while (*(volatile unsigned*)words == 0) {}
}
"""


def device_of(world: World) -> Device:
    return world.daemon.devices[0]


def kill(device: Device, number: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to the current host; its process."""
    assert device.pid is not None
    os.kill(device.pid, number)
    return device.pid


async def next_host(device: Device, pid: int) -> None:
    await until(lambda: device.state == "ready" and device.pid not in (None, pid))


async def hold(client: Client, *numbers: int, sms: int = 1) -> None:
    """Jobs that run until the host ends, with so many SMs each."""
    module: int = (await client.compile(GATE)).module
    await client.measure(module)
    address = await client.allocate(4096)
    for number in numbers:
        one = launch(module, 1000, parameters=address.to_bytes(8, "little"))
        client.submit(number, module, launches=[one], stream=number, quota=(sms, 1))


async def running(device: Device, count: int) -> None:
    await until(lambda: len(device.jobs._sent) == count)


def preparing(world: World) -> bool:
    """Whether the host is being given what a job needs."""
    jobs = world.daemon.runner.scheduler.jobs.values()
    return device_of(world).state == "ready" and any(str(job.state) == "preparing" for job in jobs)


# -- at any moment ---------------------------------------------------------------------------------


async def test_a_host_that_is_killed_at_any_moment(world: World) -> None:
    await world.start(devices=["cpu:2"], grace="10 s")
    device = device_of(world)
    load = Load(world.daemon.address, 1)
    try:
        await load.open()
        moments = {
            "starting": lambda: device.state == "starting" and device.pid is not None,
            "loading": lambda: bool(device._loader.compiling),
            "preparing": lambda: preparing(world),
            "running": lambda: bool(device.jobs._sent),
        }
        for moment, condition in moments.items():
            jobs = asyncio.ensure_future(load.round())
            if moment != "running":
                pid = kill(device)  # so that the next one starts, maps, loads
                await until(lambda pid=pid: device.pid != pid)
            await until(lambda condition=condition, jobs=jobs: condition() or jobs.done())
            pid = device.pid or 0
            if device.pid is not None:
                kill(device)
            await jobs
            await next_host(device, pid)
        before = load.outcomes.copy()
        await load.round()
        good = load.outcomes - before
        assert set(good) <= {"done", "job-cancelled"}, "whatever it was, it is over"
        assert set(load.outcomes) <= {"done", "job-cancelled", "device-lost"}
        assert not device._quarantine._culprits, "nobody is to blame for signals from outside"
    finally:
        load.close()


@pytest.mark.parametrize(("number", "reason"), [("SIGSEGV", "SIGSEGV"), ("SIGSTOP", "hung")])
async def test_what_became_of_it_is_said_and_everything_goes_on(
    world: World, number: str, reason: str
) -> None:
    await world.start(devices=["cpu:2"], host_timeout="5 s" if number == "SIGSTOP" else "30 s")
    device = device_of(world)
    client, load = await world.client(), Load(world.daemon.address, 1)
    try:
        await load.open()
        await hold(client, 1)
        await running(device, 1)
        pid = kill(device, signal.Signals[number])
        await until(lambda: any(type(m) is wm.Finished for m in client.received))
        lost = await client.finished(1)
        assert lost.error["code"] == "device-lost"
        assert reason in lost.error["message"]
        assert lost.error["fields"]["culprit"] == f"{client.session}.1"
        await next_host(device, pid)
        await load.round()
        assert set(load.outcomes) <= {"done", "job-cancelled"}
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    finally:
        load.close()


async def test_of_several_jobs_none_is_blamed(world: World) -> None:
    await world.start(devices=["cpu:2"], grace="10 s")
    client = await world.client()
    await hold(client, 1, 2)
    await running(device_of(world), 2)
    kill(device_of(world))
    for number in (1, 2):
        assert (await client.finished(number)).error["fields"]["culprit"] is None


async def test_jobs_that_the_host_was_not_told_of_survive_it_twice(world: World) -> None:
    await world.start(devices=["cpu:2"], grace="10 s")
    device, client, load = device_of(world), await world.client(), Load(world.daemon.address, 1)
    try:
        await load.open()
        await hold(client, 1, sms=2)
        await running(device, 1)
        waits = load.submit(0, launches=2)
        kill(device)
        for _ in range(2):
            await until(lambda: preparing(world))
            assert device.pid is not None
            pid = kill(device)
            await until(lambda pid=pid: device.pid != pid)
        assert (await load.check(waits, 0, 2)).state == "done"
    finally:
        load.close()


async def test_variables_of_a_lost_host(world: World) -> None:
    await world.start(devices=["cpu:2"], grace="10 s")
    device, load = device_of(world), Load(world.daemon.address, 1)
    client = world.connect()
    try:
        await client.hello()
        await load.open()
        number = load.submit(0)
        await load.check(number, 0)
        assert await load.read("served") > 0
        client.send(wm.Follow(client.next_request(), True))
        await next_host(device, kill(device))
        assert await load.read("step", 4) == 1, "constants are written again"
        lost = await load._try(lambda r: wm.ReadSymbol(r, load._module, "served", 0, 4))
        assert lost.error["code"] == "device-lost"
        assert "what kernels had written to 'served' was lost" in lost.error["message"]
        assert await load.read("served") == 0
        events = (await client.query("events"))["events"]
        assert [e["module"] for e in events if e["event"] == "variables-lost"] == [load._module]
        number = load.submit(0)
        await load.check(number, 0)
        assert load.outcomes["done"] == 2
    finally:
        load.close()


# -- kernels that end the host ---------------------------------------------------------------------


@pytest.fixture
async def terrible(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    root = Path(__file__).parents[2]
    monkeypatch.setenv(FOLDER, str(world.folder))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root), str(root / "client"))))
    config = world.config(devices=["cpu:2"], compile_timeout="8 s")
    world.daemon = Daemon(config, host_command=COMMAND, validate=True)
    await world.daemon.start()
    return world


async def measure(client: Client, module: int) -> Any:
    """`Measured`, or `Failed`."""
    request = client.next_request()
    client.send(wm.Measure(request, module, 0, (32, 1, 1), 0))

    def answer() -> list[Any]:
        return [m for m in client.received if getattr(m, "request", None) == request]

    await until(answer)
    return answer()[0]


async def test_a_kernel_whose_compilation_ends_the_host_does_so_once(terrible: World) -> None:
    device, client, other = device_of(terrible), await terrible.client(), await terrible.client()
    module = (await client.compile(PTX.format(name="crashes"))).module
    for again in (False, True):
        refused = await measure(client, module)
        assert refused.error["code"] == "compile"
        assert "tried 2 times in one of its own" in refused.error["message"]
        assert "was ended by SIGSEGV" in refused.error["message"]
        if not again:
            await until(lambda: device.state == "ready")
            await hold(other, 1)
            await running(device, 1)
    assert device.restarts == 1, "the trials cost nobody anything"
    assert not [m for m in other.received if type(m) is wm.Finished]
    again = (await other.compile(PTX.format(name="crashes"))).module
    assert (await measure(other, again)).error["code"] == "compile", "the same program is known"
    fine = (await client.compile(PTX.format(name="fine"))).module
    assert type(await measure(client, fine)) is wm.Measured


async def test_a_kernel_that_was_being_compiled_when_its_host_was_killed_is_cleared(
    terrible: World,
) -> None:
    device, client = device_of(terrible), await terrible.client()
    module = (await client.compile(PTX.format(name="waits"))).module
    asked = asyncio.ensure_future(measure(client, module))
    await until(lambda: [case for case in device._loader.compiling.values() if case.entry])
    kill(device)
    await until(lambda: device._quarantine._hosts)
    (terrible.folder / "waits").touch()
    assert type(await asked) is wm.Measured
    assert not device._quarantine._suspected
    assert device.restarts == 1


async def test_a_kernel_that_LLVM_cannot_take_costs_nobody_else_anything(
    terrible: World,
) -> None:
    device, client, other = device_of(terrible), await terrible.client(), await terrible.client()
    await hold(other, 1)
    await running(device, 1)
    for name, why in (
        ("llvm_segfaults", "ended the process that does it (SIGSEGV)"),
        ("llvm_eats_all", "ran out of memory"),
        ("llvm_never_ends", "took longer than 8 s and was ended"),
    ):
        module = (await client.compile(PTX.format(name=name))).module
        for _ in range(2):  # the second time it is known
            refused = await measure(client, module)
            assert refused.error["code"] == "compile"
            assert why in refused.error["message"]
    module = (await client.compile(PTX.format(name="llvm_dies_once"))).module
    assert type(await measure(client, module)) is wm.Measured, "somebody else may have ended it"
    assert device.restarts == 0
    assert not [m for m in other.received if type(m) is wm.Finished]


async def test_a_lost_context_ends_the_host_and_says_so(terrible: World) -> None:
    device, client = device_of(terrible), await terrible.client()
    module = (await client.compile(PTX.format(name="loses"))).module
    refused = await measure(client, module)
    assert refused.error["code"] == "compile", "it does so each time, alone as well"
    assert "ended with exit status 3: the context is gone" in refused.error["message"]
    assert device.failures == ["ended with exit status 3: the context is gone"]


async def test_a_host_without_memory_refuses_and_goes_on(terrible: World) -> None:
    device, client = device_of(terrible), await terrible.client()
    module = (await client.compile(PTX.format(name="exhausts"))).module
    refused = await measure(client, module)
    assert "MemoryError" in refused.error["message"]
    assert device.restarts == 0
    fine = (await client.compile(PTX.format(name="fine"))).module
    assert type(await measure(client, fine)) is wm.Measured
