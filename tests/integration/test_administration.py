"""What administrators do to a running daemon: pause, resume, drain, settings."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.ci
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


@pytest.mark.asyncio
async def test_what_can_change_does_and_the_rest_is_named() -> None:
    async with World() as world:
        file = world.folder / "gpud.toml"
        file.write_text("# ours\nmax_user_connections = 5 # few\n")
        await world.start(FakeHost(sms=4), file=file, hold="1 s")
        alice, root = await world.client(ALICE), await world.client()
        file.write_text(
            "# ours\nmax_user_connections = 1 # few\npolicy = 'equal'\nhold = '2 s'\n"
            f"others = 'sums'\n[users.'{ALICE}']\nqueue = 1\nweight = 7\n"
        )
        answer = (await root.ask(wm.Reload, wm.Answer)).value
        assert answer["file"] == str(file)
        changed = {row["key"]: row["value"] for row in answer["changed"]}
        assert set(changed) == {"max_user_connections", "users", "others"}
        assert [(row["key"], row["next"]) for row in answer["restart"]] == [("policy", "equal")]
        rows = {row["key"]: row for row in (await root.query("config"))["settings"]}
        assert (rows["policy"]["value"], rows["policy"]["next"]) == ("reservations", "equal")
        assert rows["max_user_connections"]["origin"] == f"{file}:2"
        assert (rows["hold"]["value"], rows["hold"]["origin"]) == ("1 s", "--hold")
        # In force: for users who are there, in front and scheduler, and for new connections.
        assert world.daemon.runner.scheduler.job_table.users[ALICE].weight == 7
        module = await alice.kernel("k")
        await root.ask(lambda r: wm.Pause(r, [], True), wm.Answer)
        alice.submit(1, module)
        alice.submit(2, module)
        assert (await alice.finished(2)).error["fields"] == {"limit": "queue", "value": 1}
        world.peers[world.accepted] = world.peers[0]
        late = world.connect()
        assert (await late.expect(wm.Goodbye)).error["fields"]["limit"] == "max_user_connections"


@pytest.mark.asyncio
async def test_a_setting_is_kept_in_the_file_or_nothing_is_changed() -> None:
    async with World() as world:
        file = world.folder / "gpud.toml"
        file.write_text("# ours\ndrain_timeout = '5 s' # soon\n")
        await world.start(FakeHost(sms=4), file=file, hold="1 s")
        root = await world.client()

        async def set_(key: str, value: str) -> dict[str, Any]:
            answer = await root.ask(lambda r: wm.SetSetting(r, key, value), wm.Answer)
            found: dict[str, Any] = answer.value
            return found

        answer = await set_("drain_timeout", "7 s")
        assert file.read_text() == '# ours\ndrain_timeout = "7 s" # soon\n'
        assert answer["set"]["value"] == "7 s"
        assert world.daemon.state.config.drain_timeout_ns == 7 * 10**9
        for key, value in (("grace", "3 s"), ("rebalance_limit", "9"), ("turn_slice", "1 s")):
            answer = await set_(key, value)
            assert ([row["key"] for row in answer["changed"]], answer["restart"]) == ([key], [])
        rules = world.daemon.runner.scheduler.settings
        assert (rules.grace_ns, rules.rebalance_limit, rules.hold_ns) == (3 * 10**9, 9, 10**9)
        turns = world.daemon.state.workloads.manager.turns(0)
        assert turns.settings.slice_ns == 10**9
        answer = await set_("hold", "2 s")
        assert (answer["set"]["value"], answer["set"]["origin"]) == ("1 s", "--hold")
        assert not answer["restart"], "the flag counts before the file, at the next start as well"
        before = file.read_text()
        for key, value, words in (
            ("hold", "x", "hold must be"),
            ("nothing", "x", "there is no setting nothing"),
            ("policy", "best", "there is no policy 'best'"),
            ("users", "x = {}", "by hand"),
        ):
            error = await root.refused(lambda r: wm.SetSetting(r, key, value))  # noqa: B023
            assert words in error["message"]
        assert file.read_text() == before
        file.write_text("grace = [\n")
        error = await root.refused(lambda r: wm.SetSetting(r, "hold", "3 s"))
        assert "no valid TOML" in error["message"]
        error = await root.refused(wm.Reload)
        assert "no valid TOML" in error["message"]
        assert file.read_text() == "grace = [\n"
