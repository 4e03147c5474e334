"""What the front does about faults and endless kernels, on hosts that do what the test says."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.device.host import messages as hm
from gpud.errors import IllegalAddress, JobTimeout, from_wire
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import LOOP, PTX, Client, World, until

MS = 1_000_000


async def compiled(client: Client, text: str, *, killable: bool = False) -> int:
    """A module whose first kernel is measured, with kill polls as well if ``killable``."""
    module: int = (await client.compile(text)).module
    await client.measure(module)
    if killable:
        await client.ask(
            lambda r: wm.Measure(r, module, 0, (32, 1, 1), 0, killable=True), wm.Measured
        )
    return module


def of(host: FakeHost, kind: type) -> list[Any]:
    return [command for command in host.commands if type(command) is kind]


def entries(host: FakeHost) -> list[str]:
    """The entries of the jobs that were started."""
    rows = [hm.HOST_PROTOCOL.decode_records(hm.HostLaunch, one.launches, least=1)
            for one in of(host, hm.StartRun)]  # fmt: skip
    return [row.entry for found in rows for row in found]


async def test_a_sessions_memory_is_mapped_before_its_first_module_is_loaded(world: World) -> None:
    await world.start(FakeHost(auto=True))
    client = await world.client()
    module = await compiled(client, PTX.format(name="k"))
    kinds = [
        type(one) for one in world.host.commands if isinstance(one, hm.OpenArena | hm.LoadModule)
    ]
    assert kinds == [hm.OpenArena, hm.LoadModule]
    (opened,) = of(world.host, hm.OpenArena)
    assert (opened.session, opened.base > 0) == (client.session, True)
    assert opened.size >= 1 << 20
    # The first array is in the same arena, and the client is told of it then.
    address = await client.allocate(100)
    arena = await client.expect(wm.Arena)
    assert (arena.base, arena.size) == (opened.base, opened.size)
    assert opened.base <= address < opened.base + opened.size
    client.submit(1, module)
    assert (await client.finished(1)).state == "done"
    assert len(of(world.host, hm.OpenArena)) == 1


async def test_on_a_gpu_only_offline_jobs_with_a_timeout_run_what_can_be_killed(
    world: World,
) -> None:
    await world.start(FakeHost(auto=True, kind="cuda"))
    client = await world.client()
    module = await compiled(client, LOOP.format(name="loops"), killable=True)
    straight = await compiled(client, PTX.format(name="straight"), killable=True)
    second = 10**9
    client.submit(1, module)
    client.submit(2, module, timeout_ns=second)
    client.submit(3, module, timeout_ns=second, reservation=(1, 1))
    client.submit(4, straight, timeout_ns=second)
    client.submit(5, module, timeout_ns=second, quota=(1, 1))
    for number in range(1, 6):
        assert (await client.finished(number)).state == "done"
    killable = "loops__gpud_killable"
    assert entries(world.host) == ["loops", killable, "loops", "straight", killable]
    measured = [one.entry for one in of(world.host, hm.MeasureKernel)]
    assert measured == ["loops", killable, "straight"]


async def test_what_can_be_killed_is_made_ready_by_its_first_job_at_the_latest(
    world: World,
) -> None:
    await world.start(FakeHost(auto=True, kind="cuda"))
    client = await world.client()
    module = await compiled(client, LOOP.format(name="loops"))
    for number in (1, 2):
        client.submit(number, module, timeout_ns=10**9)
        assert (await client.finished(number)).state == "done"
    assert [one.entry for one in of(world.host, hm.MeasureKernel)] == [
        "loops",
        "loops__gpud_killable",
    ]


async def test_on_the_cpu_a_dead_clients_endless_kernel_costs_nobody_the_host(
    world: World,
) -> None:
    behaviours = {"loops": Behaviour(block_ns=None), "k": Behaviour(block_ns=MS)}
    await world.start(FakeHost(kernels=behaviours), grace="0.5")
    client, neighbour = await world.client(), await world.client()
    client.submit(1, await compiled(client, LOOP.format(name="loops")), reservation=(1, 1))
    await until(lambda: bool(of(world.host, hm.StartRun)))
    client.close()
    await until(lambda: bool(of(world.host, hm.KillJob)))
    neighbour.submit(1, await compiled(neighbour, PTX.format(name="k")))
    await until(lambda: len(of(world.host, hm.StartRun)) == 2)
    world.host.advance(10 * MS)
    assert (await neighbour.finished(1)).state == "done"
    assert entries(world.host)[0] == "loops__gpud_killable"
    assert world.daemon.devices[0].restarts == 0


async def test_an_endless_job_that_polls_is_killed_and_the_host_stays(world: World) -> None:
    behaviours = {"loops": Behaviour(block_ns=None), "k": Behaviour(block_ns=MS)}
    await world.start(FakeHost(kernels=behaviours), grace="0.5")
    client = await world.client()
    loops = await compiled(client, LOOP.format(name="loops"), killable=True)
    client.submit(1, loops, quota=(1, 1), timeout_ns=20 * MS)
    finished = await client.finished(1)
    error = from_wire(finished.error)
    assert isinstance(error, JobTimeout)
    assert [type(one) for one in world.host.commands if hasattr(one, "job")] == [
        hm.StartRun, hm.EndJob, hm.KillJob,
    ]  # fmt: skip
    assert world.daemon.devices[0].restarts == 0


async def test_an_endless_job_whose_polls_do_nothing_costs_the_host(world: World) -> None:
    behaviours = {"loops": Behaviour(block_ns=None, poll_ns=None)}
    await world.start(FakeHost(kernels=behaviours), grace="0.5")
    client = await world.client()
    loops = await compiled(client, LOOP.format(name="loops"), killable=True)
    client.submit(1, loops, timeout_ns=20 * MS)
    assert isinstance(from_wire((await client.finished(1)).error), JobTimeout)
    await until(lambda: world.daemon.devices[0].restarts == 1)
    assert len(of(world.host, hm.KillJob)) == 1


async def test_a_fault_is_told_with_what_the_front_knows(world: World) -> None:
    await world.start(FakeHost())
    client = await world.client()
    module = await compiled(client, PTX.format(name="k"))
    address = await client.allocate(100)
    client.submit(1, module)
    await until(lambda: world.host.jobs)
    (job,) = world.host.jobs.values()
    job.error = IllegalAddress(address + 5000, kernel="k", site=0, task_block=(2, 0, 0))
    world.host.end(job)
    world.host.run()
    error = from_wire((await client.finished(1)).error)
    assert isinstance(error, IllegalAddress)
    assert error.instruction is not None
    assert error.instruction.startswith("st.global.u32")
    assert error.line == 1 + PTX.splitlines().index("  st.global.u32 [%rd2], %r1;")
    assert (error.array, error.distance) == ((address, 100), 5000 - 99)
    assert list(error.array or ()) == [address, 100]


@pytest.mark.parametrize("on", [True, False])
async def test_whether_accesses_are_checked_is_seen(world: World, on: bool) -> None:
    await world.start(FakeHost(auto=True), **{} if on else {"bounds_checks": "off"})
    client = await world.client()
    await compiled(client, PTX.format(name="k"))
    (ptx,) = world.host.modules.values()
    assert ("gpud_arena" in ptx) is on
    assert (await client.query("status"))["bounds_checks"] is on
    checks = {one["name"]: one for one in (await client.query("doctor"))["checks"]}
    check = checks["bounds checks"]
    assert check["state"] == ("ok" if on else "warning")
    assert check["detail"] == "on" if on else "--bounds-checks" in check["detail"]


async def test_a_module_that_is_unloaded_before_it_was_loaded_is_not_loaded(world: World) -> None:
    await world.start(FakeHost(auto=True))
    client = await world.client()
    module = (await client.compile(PTX.format(name="k"))).module
    request = client.next_request()
    measure = wm.Measure(request, module, 0, (32, 1, 1), 0)
    # In one piece: the module is unloaded while its session's memory is being mapped.
    encode = wm.CLIENT_PROTOCOL.encode
    client.raw(encode(measure) + encode(wm.Unload(module)))
    refused = await client.expect(wm.Failed, lambda message: message.request == request)
    assert refused.error["code"] == "unknown-name"
    await client.query("status")
    assert of(world.host, hm.LoadModule) == []
    assert world.host.modules == {}
