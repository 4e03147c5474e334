"""What administrators do to a running daemon: pause, resume, drain."""

from __future__ import annotations

import pytest

from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import World, until

ALICE = 70001


@pytest.mark.asyncio
async def test_a_device_is_paused_for_everybody_and_goes_on() -> None:
    async with World() as world:
        kernels = {"forever": Behaviour(block_ns=None)}
        hosts = FakeHost(sms=4, kernels=kernels, auto=True), FakeHost(sms=2, auto=True)
        await world.start(*hosts)
        alice, root = await world.client(ALICE), await world.client()
        module = await alice.kernel("forever")
        alice.submit(1, module, 1000, quota=(2, 1), stream=1)
        await until(lambda: world.host.jobs)
        answer = await root.ask(lambda r: wm.Pause(r, [0], True), wm.Answer)
        (row,) = answer.value["devices"]
        assert (row["index"], row["running"], row["waiting"]) == (0, 1, 0)
        by, since = row["paused"]["by"], row["paused"]["since"]
        alice.submit(2, module, 1000, stream=2)
        status = await alice.query("status")
        assert [device["paused"] is None for device in status["devices"]] == [False, True]
        rows = {one["id"].partition(".")[2]: one for one in (await alice.query("jobs"))["jobs"]}
        assert rows["1"]["allocation"] == "2"
        assert rows["2"]["waits_for"] == f"device 0 is paused by {by} since {since}"
        lines = (await alice.ask(lambda r: wm.Why(r, (alice.session, 2)), wm.Answer)).value["lines"]
        assert "gpuctl resume" in lines[1]
        await root.ask(lambda r: wm.Pause(r, [], True, True), wm.Answer)
        rows = {one["id"].partition(".")[2]: one for one in (await alice.query("jobs"))["jobs"]}
        assert (rows["1"]["state"], rows["1"]["allocation"]) == ("paused", "0")
        await root.ask(lambda r: wm.Pause(r, [], False), wm.Answer)
        status = await alice.query("status")
        assert [device["paused"] for device in status["devices"]] == [None, None]
        await until(lambda: len(world.host.jobs) == 2)
        events = [one["event"] for one in (await root.query("events"))["events"]]
        assert events.count("device-paused") == 3
        assert events.count("device-resumed") == 2


@pytest.mark.asyncio
async def test_only_administrators_pause_and_drain_and_devices_must_be_there() -> None:
    async with World() as world:
        await world.start(FakeHost(sms=4))
        alice, root = await world.client(ALICE), await world.client()
        for make in (lambda r: wm.Pause(r, [0], True), wm.Drain):
            error = await alice.refused(make)
            assert "only root and the daemon's own user" in error["message"]
        error = await root.refused(lambda r: wm.Pause(r, [0, 7], True))
        assert error["code"] == "unknown-name"
        assert "there is no device 7; there are 0" in error["message"]
        assert not world.daemon.ending


@pytest.mark.asyncio
async def test_a_drain_ends_the_daemon_after_its_jobs() -> None:
    async with World() as world:
        kernels = {"forever": Behaviour(block_ns=None)}
        await world.start(FakeHost(sms=4, kernels=kernels, auto=True), drain_timeout="0.2 s")
        alice, root = await world.client(ALICE), await world.client()
        module = await alice.kernel("forever")
        alice.submit(1, module, 1000)
        await until(lambda: world.host.jobs)
        answer = await root.ask(wm.Drain, wm.Answer)
        assert answer.value == {"jobs": 1, "timeout_s": 0.2}
        error = await root.refused(lambda r: wm.Pause(r, [], True))
        assert error["code"] == "draining"
        assert (await alice.finished(1)).state == "cancelled"
        await world.daemon.wait()
        assert not world.daemon.forced
