"""`Why` and what others hold, from a daemon, as two users see them."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.server.handlers import job_rows
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import Client, World

ALICE, BOB = 70001, 70002


async def full(world: World, **settings: Any) -> tuple[Client, Client]:
    """A device full of Alice's online job, on which Bob's waits."""
    kernels = {"forever": Behaviour(block_ns=None)}
    await world.start(FakeHost(sms=4, kernels=kernels, auto=True), **settings)
    alice, bob = await world.client(ALICE), await world.client(BOB)
    alice.submit(1, await alice.kernel("forever"), 1000, reservation=(4, 1))
    await alice.query("status")
    bob.submit(1, await bob.kernel("forever"), 1000)
    await bob.query("status")
    await bob.ask(lambda r: wm.Allocate(r, 0, 1 << 16), wm.Allocated)
    return alice, bob


async def why(client: Client, session: int, job: int) -> Any:
    return (await client.ask(lambda r: wm.Why(r, (session, job)), wm.Answer)).value


async def test_what_a_user_sees_of_others() -> None:
    async with World() as world:
        alice, bob = await full(world)
        for topic in ("status", "jobs", "memory"):
            [row] = (await bob.query(topic))["others"]
            assert row["user"] == "70001"
            assert (row["device"], row["allocated"], row["online"]) == (0, "4", "4")
        [row] = (await alice.query("status"))["others"]
        assert (row["user"], row["allocated"]) == ("70002", "0")
        assert row["memory_bytes"] >= 1 << 16
        assert (await (await world.client()).query("status"))["others"] == [], "who sees all"


async def test_sums_are_without_names() -> None:
    async with World() as world:
        _, bob = await full(world, others="sums")
        [row] = (await bob.query("jobs"))["others"]
        assert (row["user"], row["allocated"]) == (None, "4")
        text = str((await why(bob, bob.session, 1))["lines"])
        assert "another user's job (online) has 4 SMs" in text
        assert "70001" not in text


async def test_why_names_what_may_be_named() -> None:
    async with World() as world:
        alice, bob = await full(world)
        answer = await why(bob, bob.session, 1)
        assert answer["state"] == "waiting"
        assert answer["job"]["id"] == answer["id"] == f"{bob.session}.1"
        text = "\n".join(answer["lines"])
        assert "needs 1 SM, which is not free" in text
        assert "a job of 70001's (online) has 4 SMs" in text
        root = await world.client()
        text = "\n".join((await why(root, bob.session, 1))["lines"])
        assert f"job {alice.session}.1 (70001, forever) (online) has 4 SMs" in text
        refused = await bob.refused(lambda r: wm.Why(r, (alice.session, 1)))
        assert refused["code"] == "unknown-name"


@pytest.mark.ci
async def test_why_of_a_job_that_has_ended() -> None:
    async with World() as world:
        alice, bob = await full(world)
        await alice.ask(lambda r: wm.Cancel(r, (alice.session, 1)), wm.Answer)
        await alice.finished(1)
        lines = (await why(alice, alice.session, 1))["lines"]
        assert lines[0].startswith("it was cancelled ")
        assert "was cancelled" in lines[0]
        assert lines[1].endswith("ago: it started with 4 SMs")
        assert (await why(bob, bob.session, 1))["state"] == "running"


async def test_a_job_without_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said of one that has task blocks which are not resident, and of no other."""
    monkeypatch.setattr(job_rows, "_SILENT_S", 0.0)
    async with World() as world:
        kernels = {"forever": Behaviour(block_ns=None)}
        await world.start(FakeHost(sms=4, kernels=kernels, auto=True))
        client = await world.client()
        kernel = await client.kernel("forever")
        client.submit(1, kernel, 1000, reservation=(2, 1))
        client.submit(2, kernel, 1, reservation=(1, 1))
        await client.query("status")
        some, one = [await why(client, client.session, job) for job in (1, 2)]
        assert "no progress: none of its task blocks has ended for" in some["lines"][1]
        assert "0 of 1000 are done, and it has room for 2 at once" in some["lines"][1]
        assert "progress='blocks'" in some["lines"][1]
        assert "no progress" not in str(one["lines"])
        monkeypatch.setattr(job_rows, "_SILENT_S", 1000.0)
        assert "no progress" not in str((await why(client, client.session, 1))["lines"])
