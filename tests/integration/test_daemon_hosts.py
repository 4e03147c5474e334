"""Device hosts that crash, hang, or never start; and what the others notice of it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from gpud.errors import DeviceLost, InvalidArgument
from gpud.server.hosts import device, loader
from gpud.server.hosts.variable_writes import VariableWrites
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import PTX, World, launch, until


async def test_running_jobs_are_lost_and_waiting_ones_run_on_the_next_host(world: World) -> None:
    await world.start(FakeHost(sms=2))
    client = await world.client()
    module = await client.kernel("k")
    array = await client.allocate(4096)
    client.submit(1, module, 100)
    client.submit(2, module, 4)
    client.submit(3, module, launches=[launch(module), launch(module, 3)])
    await until(lambda: world.host.jobs)
    first = world.host.arenas[client.session]
    world.host.die()
    lost = await client.finished(1)
    assert lost.state == "failed"
    assert lost.error["code"] == "device-lost"
    for number in (2, 3):
        await until(lambda: world.host.jobs)
        world.host.run()
        assert (await client.finished(number)).state == "done"
    # The same addresses, the same memory: arrays outlive the host.
    assert world.host.arenas[client.session][:2] == first[:2]
    assert await client.allocate(1) > array
    events = [event["event"] for event in (await client.query("events"))["events"]]
    assert events.count("device-failed") == 1
    assert events.count("device-ready") == 2


async def test_a_module_that_does_not_load_in_the_next_host_fails_its_job(world: World) -> None:
    await world.start(FakeHost(sms=2))
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 100)
    client.submit(2, module)
    await until(lambda: world.host.jobs)
    world.host.behaviour = Behaviour(refusal=InvalidArgument("it fits no more"))
    world.host.die()
    await client.finished(1)
    finished = await client.finished(2)
    assert finished.state == "failed"
    assert "fits no more" in finished.error["message"]


async def test_what_is_too_much_to_be_written_again_is_known_to_be_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "VariableWrites", lambda: VariableWrites(limit_bytes=4096))
    await world.start(FakeHost(sms=2))
    client = await world.client()
    variables = ".visible .global .b8 large[8000];\n.visible .const .b8 table[8];\n.visible"
    text = PTX.format(name="k").replace(".visible", variables, 1)
    module = (await client.compile(text)).module
    for name, data in ("large", bytes(8000)), ("table", b"constant"):
        await client.ask(lambda r: wm.WriteSymbol(r, module, name, 0, data), wm.Answer)  # noqa: B023
    world.host.die()
    error = await client.refused(lambda r: wm.ReadSymbol(r, module, "large", 0, 1))
    assert error["code"] == "device-lost"
    answer = await client.ask(lambda r: wm.ReadSymbol(r, module, "table", 0, 8), wm.Answer)
    assert answer.value == b"constant"
    events = (await client.query("events"))["events"]
    assert [event["module"] for event in events if event["event"] == "variables-lost"] == [module]


async def test_ending_and_resizing_a_job_whose_modules_are_being_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = FakeHost(sms=2, behaviour=Behaviour(occupancy=2))
    await world.start(host)
    client = await world.client()
    module = await client.kernel("k")
    for number in (1, 2, 3):
        client.submit(number, module, 100, quota=(2, 1) if number == 1 else (1, 1), stream=number)
    await until(lambda: host.jobs)
    held: list[Any] = []
    monkeypatch.setattr(host, "handle", held.append)
    host.die()
    await client.finished(1)
    await until(lambda: held)
    await client.ask(lambda r: wm.Resize(r, (client.session, 2), None, (1, 2)), wm.Answer)
    await client.ask(lambda r: wm.Cancel(r, (client.session, 3)), wm.Answer)
    assert (await client.finished(3)).state == "cancelled"
    monkeypatch.undo()
    for message in held:
        host.handle(message)
    await until(lambda: host.jobs)
    assert [job.number & 0xFFFFFFFF for job in host.jobs.values()] == [2]
    host.run()


async def test_the_other_device_goes_on(world: World) -> None:
    await world.start(FakeHost(sms=2), FakeHost(sms=3))
    client = await world.client()
    modules = [await client.kernel("k", device=device) for device in (0, 1)]
    client.submit(1, modules[0], 100)
    client.submit(2, modules[1], 100, device=1, stream=1)
    await until(lambda: all(host.jobs for host in world.hosts))
    world.hosts[0].die()
    assert (await client.finished(1)).error["code"] == "device-lost"
    world.hosts[1].run()
    assert (await client.finished(2)).state == "done"


@pytest.mark.parametrize("command", range(1, 8))
async def test_a_host_that_dies_at_its_nth_command(world: World, command: int) -> None:
    host = FakeHost(sms=2, auto=True, dies_at=command)
    await world.start(host)
    client = await world.client()
    module = (
        await client.compile(
            ".version 8.0\n.target sm_75\n.address_size 64\n"
            ".visible .entry k(.param .u64 p)\n{\n ret;\n}\n"
        )
    ).module
    await client.allocate(4096)

    def measured() -> bool:
        return any(type(message) in (wm.Measured, wm.Failed) for message in client.received)

    number, finished = 0, None
    for _ in range(20):
        client.send(wm.Measure(client.next_request(), module, 0, (32, 1, 1), 0))
        await until(measured)
        was = [m for m in client.received if type(m) is wm.Measured]
        client.received.clear()
        if not was:
            continue  # the host died on it; the client hears so, and asks again
        number += 1
        client.submit(number, module)
        finished = await client.finished(number)
        if finished.state == "done" and number > command:
            break
    assert len(host.commands) > command
    assert finished is not None
    assert finished.state == "done"


async def test_a_host_that_ends_while_it_starts_is_tried_again_and_then_given_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_BACKOFF_S", (0.0,))
    host = FakeHost(sms=2)
    dead = 0

    def connect() -> socket.socket:
        nonlocal dead
        if not host.commands:
            return host.connect()
        dead += 1
        ours, theirs = socket.socketpair()
        theirs.close()
        return ours

    host_connect = [connect]
    world.hosts = [host]
    from gpud.server.daemon import Daemon

    world.daemon = Daemon(world.config(devices=["cpu:2"]), connect=host_connect, validate=True)
    await world.daemon.start()
    client = await world.client()
    module = await client.kernel("k")
    client.submit(1, module, 100)
    client.submit(2, module)
    await until(lambda: host.jobs)
    host.die()
    assert (await client.finished(1)).error["code"] == "device-lost"
    assert (await client.finished(2)).error["code"] == "device-lost"
    assert dead == 5
    client.submit(3, module)
    finished = await client.finished(3)
    assert finished.error["code"] == "device-lost"
    assert "does not start" in finished.error["message"]
    assert (await client.refused(lambda r: wm.Allocate(r, 0, 1)))["code"] == "device-lost"
    status = await client.query("status")
    assert status["devices"][0]["state"] == "failed"
    assert status["devices"][0]["error"]
    checks = (await client.query("doctor"))["checks"]
    assert [check["name"] for check in checks if check["state"] == "problem"] == ["device 0"]


async def test_a_daemon_whose_device_never_starts_says_so_and_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_BACKOFF_S", (0.0,))

    def connect() -> socket.socket:
        raise OSError("no more processes")

    from gpud.server.daemon import Daemon

    daemon = Daemon(world.config(devices=["cpu:2"]), connect=[connect])
    with pytest.raises(DeviceLost, match="no more processes"):
        await daemon.start()
    assert not (world.folder / "s").exists()


async def test_a_host_that_speaks_nonsense_is_replaced(world: World) -> None:
    await world.start(FakeHost(sms=2, auto=True))
    client = await world.client()
    module = await client.kernel("k")
    assert world.host._socket is not None
    world.host._socket.send(b"\x05\x00\x00\x00nonse")
    await until(lambda: world.daemon.devices[0].restarts)
    client.submit(1, module)
    assert (await client.finished(1)).state == "done"


@pytest.mark.parametrize(
    ("device", "error"),
    [("cuda:99", InvalidArgument), ("gpu", InvalidArgument), ("cpu:0", InvalidArgument)],
)
async def test_devices_that_there_are_not(
    world: World, device: str, error: type[Exception]
) -> None:
    from gpud.server.daemon import Daemon

    daemon = Daemon(world.config(devices=[device]))
    with pytest.raises(error):
        await daemon.start()
    assert not (world.folder / "s").exists()
    assert asyncio.all_tasks() == {asyncio.current_task()}
