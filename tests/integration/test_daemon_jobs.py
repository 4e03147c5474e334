"""Cancel, resize, client exit and drain, in every state that a job can be in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import TIMEOUT_S, Client, World, until

STATES = ("blocked", "waiting", "running", "paused", "ending")
MS = 1_000_000


@pytest.fixture
async def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("gpud.server.daemon._FETCH_S", 0.01)
    kernels = {
        "slow": Behaviour(block_ns=5 * MS),
        "stubborn": Behaviour(block_ns=None),
        "traps": Behaviour(trap_at=0),
    }
    return await world.start(FakeHost(sms=2, kernels=kernels), grace="50 ms", drain_timeout="60 s")


class Scene:
    """A client whose job 2 is in a given state; job 1 takes the device while that needs it."""

    def __init__(self, world: World, client: Client, module: int) -> None:
        self.world = world
        self.client = client
        self.module = module

    @property
    def ref(self) -> tuple[int, int]:
        return (self.client.session, 2)

    async def row(self) -> Any:
        request = await self.client.ask(lambda r: wm.Describe(r, (self.ref,)), wm.Answer)
        return request.value[0]

    async def set(self, state: str) -> Scene:
        client, module, host = self.client, self.module, self.world.host
        if state == "blocked":
            client.submit(1, module, 1000)
            client.submit(2, module, 1000)
        elif state == "waiting":
            client.submit(1, module, 1000, reservation=(2, 1))
            client.submit(2, module, 1000, stream=1)
        elif state in ("running", "ending"):
            client.submit(1, module, 1, quota=(1, 1))
            host_has = len(host.jobs)
            await until(lambda: len(host.jobs) > host_has)
            host.run()
            await client.finished(1)
            client.submit(2, module, 1000)
            if state == "ending":
                await self.is_in("running")
                request = client.next_request()
                client.send(wm.Cancel(request, self.ref))
        else:
            client.submit(1, module, 1, stream=1)
            await until(lambda: host.jobs)
            host.run()
            await client.finished(1)
            client.submit(2, module, 1000)
            await self.is_in("running")
            client.submit(3, module, 1000, reservation=(2, 1), stream=1)
        await self.is_in(state)
        return self

    async def is_in(self, state: str) -> None:
        while (await self.row() or {}).get("state") != state:
            self.world.host.advance(0)

    async def go_on(self, number: int = 2) -> Any:
        """Let time run until the job has ended."""
        host = self.world.host
        while True:
            for index, message in enumerate(self.client.received):
                if type(message) is wm.Finished and message.number == number:
                    del self.client.received[index]
                    return message
            host.advance(5 * MS)
            await self.client.query("status")


@pytest.fixture
async def scene(world: World) -> Scene:
    client = await world.client()
    return Scene(world, client, await client.kernel("slow"))


@pytest.mark.parametrize("state", STATES)
async def test_cancel(scene: Scene, state: str) -> None:
    await scene.set(state)
    answer = await scene.client.ask(lambda r: wm.Cancel(r, scene.ref), wm.Answer)
    assert answer.value is True
    finished = await scene.go_on()
    assert finished.state == "cancelled"
    assert finished.error["code"] == "job-cancelled"
    answer = await scene.client.ask(lambda r: wm.Cancel(r, scene.ref), wm.Answer)
    assert answer.value is False


@pytest.mark.parametrize("state", STATES)
async def test_a_job_that_was_let_run_is_done(scene: Scene, state: str) -> None:
    await scene.set(state)
    finished = await scene.go_on()
    if state == "ending":
        assert finished.state == "cancelled"
    else:
        assert finished.state == "done"
        assert finished.progress == (1000, 1000)


@pytest.mark.parametrize("state", STATES)
async def test_resize(scene: Scene, state: str) -> None:
    await scene.set(state)
    make = lambda r: wm.Resize(r, scene.ref, None, (1, 1))  # noqa: E731
    if state == "ending":
        assert (await scene.client.refused(make))["code"] == "invalid-argument"
        return
    await scene.client.ask(make, wm.Answer)
    row = await scene.row()
    assert row["quota"] == "1"
    assert row["allocation_sms"] <= 1
    error = await scene.client.refused(lambda r: wm.Resize(r, scene.ref, (1, 1)))
    assert "offline" in error["message"]
    assert (await scene.go_on()).state == "done"


@pytest.mark.parametrize("state", STATES)
async def test_client_exit(scene: Scene, state: str) -> None:
    await scene.set(state)
    other = await scene.world.client()
    other.submit(1, await other.kernel("slow"), 4)
    array = await scene.client.allocate(4096)
    assert array
    daemon = scene.world.daemon
    scene.client.close()
    await until(lambda: len(daemon.connections) == 1)
    # Its jobs end, its memory goes, and nobody else notices.
    while len(daemon.state.sessions) > 1:
        scene.world.host.advance(5 * MS)
        await other.query("status")
    assert (await other.query("memory"))["sessions"] == []
    await until(lambda: list(scene.world.host.arenas) == [other.session])
    assert set(scene.world.host.modules) == {2}
    scene.client = other
    assert (await scene.go_on(1)).state == "done"


@pytest.mark.parametrize("state", STATES)
async def test_drain_lets_jobs_end(scene: Scene, state: str) -> None:
    await scene.set(state)
    scene.world.daemon.drain()
    await until(lambda: scene.world.daemon.runner.draining)
    scene.client.submit(9, scene.module)  # the number is wrong as well: it is refused either way
    assert (await scene.client.finished(9)).state == "failed"
    finished = await scene.go_on()
    assert finished.state == ("cancelled" if state == "ending" else "done")
    while not scene.client.closed:
        scene.world.host.advance(5 * MS)
        try:
            await scene.client.query("status")
        except (AssertionError, OSError):
            break
    assert (await scene.client.expect(wm.Goodbye)).error["code"] == "draining"
    await scene.world.daemon.wait()
    assert not scene.world.daemon.forced


async def test_drain_refuses_new_jobs_and_connections(scene: Scene) -> None:
    await scene.set("running")
    address = scene.world.daemon.address
    scene.world.daemon.drain()
    await until(lambda: scene.world.daemon.runner.draining)
    scene.client.submit(3, scene.module)
    assert (await scene.client.finished(3)).error["code"] == "draining"
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        Client(address)
    assert (await scene.client.query("status"))["draining"] is True
    await scene.go_on()
    await scene.world.daemon.wait()


async def test_drain_lets_results_be_copied(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpud.server.daemon._FETCH_S", 10 * TIMEOUT_S)  # until nobody is there
    await scene.set("running")
    scene.world.daemon.drain()
    assert (await scene.go_on()).state == "done"
    assert (await scene.client.query("status"))["draining"] is True
    scene.client.close()
    await scene.world.daemon.wait()


@pytest.mark.parametrize("state", STATES)
async def test_drain_cancels_what_does_not_end(state: str) -> None:
    async with World() as world:
        kernels = {"slow": Behaviour(block_ns=5 * MS)}
        await world.start(FakeHost(sms=2, kernels=kernels), drain_timeout="0 s", grace="50 ms")
        client = await world.client()
        scene = await Scene(world, client, await client.kernel("slow")).set(state)
        world.daemon.drain()
        finished = await client.finished(2)
        begun = state not in ("blocked", "preparing", "waiting")
        assert finished.state == ("cancelled" if begun else "failed")
        assert begun or "submit it again" in finished.error["message"]
        await client.expect(wm.Goodbye)
        await world.daemon.wait()
        assert scene.world.daemon.state.jobs == {}


@pytest.mark.parametrize("state", STATES)
async def test_force(scene: Scene, state: str) -> None:
    await scene.set(state)
    scene.world.daemon.drain()
    scene.world.daemon.force()
    await scene.world.daemon.wait()
    assert scene.world.daemon.forced
    await scene.client.end()


async def test_a_job_that_does_not_leave_costs_its_device_host(world: World) -> None:
    client, other = await world.client(), await world.client()
    client.submit(1, await client.kernel("stubborn"), quota=(1, 1))
    module = await other.kernel("slow")
    other.submit(1, module, 1000, quota=(1, 1))
    other.submit(2, module, 4)
    await until(lambda: len(world.host.jobs) == 2)
    await client.ask(lambda r: wm.Cancel(r, (client.session, 1)), wm.Answer)
    assert (await client.finished(1)).state == "cancelled"
    lost = await other.finished(1)
    assert lost.error["code"] == "device-lost"
    assert f"{client.session}.1" in lost.error["message"]  # it says who it was
    # What had not started runs on the new host, which was told what it needs.
    await until(lambda: world.host.jobs)
    world.host.run()
    assert (await other.finished(2)).state == "done"
    assert (await other.query("status"))["devices"][0]["restarts"] == 1


async def test_the_log_has_the_first_failure_and_how_many(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    log = SimpleNamespace(info=lambda line, *values: lines.append(line % values))
    monkeypatch.setattr("gpud.server.state.session._LOG", log)
    monkeypatch.setattr("gpud.server.handlers.connections._LOG", log)
    client = await world.client()
    module = await client.kernel("traps")
    for number in range(1, 4):
        client.submit(number, module)
        await until(lambda: world.host.jobs)
        world.host.run()
        assert (await client.finished(number)).state == "failed"
    client.close()
    await until(lambda: any("3 jobs had failed, 0 had not ended" in line for line in lines))
    assert sum("failed: " in line for line in lines) == 1


async def test_after_a_job_of_another_session_of_the_same_user(world: World) -> None:
    client, other = await world.client(), await world.client()
    client.submit(1, await client.kernel("slow"), quota=(1, 1))
    await until(lambda: world.host.jobs)
    other.submit(1, await other.kernel("slow"), after=((client.session, 1),))
    assert (await other.query("jobs"))["jobs"][-1]["state"] == "blocked"
    await client.ask(lambda r: wm.Cancel(r, (client.session, 1)), wm.Answer)
    world.host.run()
    await client.finished(1)
    await until(lambda: world.host.jobs)
    world.host.run()
    assert (await other.finished(1)).state == "done"
