"""Who may see and touch what: the kernel says who a client is."""

from __future__ import annotations

import os

import pytest

from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import Client, World, until

ALICE, BOB = 70001, 70002


@pytest.fixture
async def world(world: World) -> World:
    return await world.start(FakeHost(sms=4, behaviour=Behaviour(block_ns=None)))


async def busy(world: World, uid: int) -> Client:
    """A client of that user with an array and a job that runs."""
    client = await world.client(uid)
    await client.allocate(100)
    before = len(world.host.jobs)
    client.submit(1, await client.kernel("k"), quota=(1, 1))
    await until(lambda: len(world.host.jobs) > before)
    return client


async def test_others_are_as_if_unknown(world: World) -> None:
    alice, bob = await busy(world, ALICE), await busy(world, BOB)
    theirs = (alice.session, 1)
    for topic in ("jobs", "kernels", "memory", "trace"):
        answer = await bob.query(topic)
        # What is shown of others: sums by user, and without names by the setting ``others``.
        for row in answer.pop("others", []):
            assert set(row) == {"device", "user", "allocated", "online", "memory_bytes"}
        assert f"{alice.session}.1" not in str(answer), topic
        assert str(ALICE) not in str(answer), topic
    seen = [event for event in (await bob.query("events"))["events"] if "user" in event]
    assert {event["user"] for event in seen} == {str(BOB)}
    described = await bob.ask(lambda r: wm.Describe(r, (theirs,)), wm.Answer)
    assert described.value == [None]
    unknown = await bob.refused(lambda r: wm.Cancel(r, (99, 1)))
    for make in (
        lambda r: wm.Cancel(r, theirs),
        lambda r: wm.Resize(r, theirs, None, (1, 1)),
    ):
        error = await bob.refused(make)
        assert error["code"] == "unknown-name"
        assert error["message"].replace(f"{alice.session}.1", "99.1") == unknown["message"]
    assert len(world.host.jobs) == 2


async def test_after_a_job_of_another_user_is_after_one_that_has_ended(world: World) -> None:
    alice = await busy(world, ALICE)
    bob = await world.client(BOB)
    bob.submit(1, await bob.kernel("k"), quota=(1, 1), after=((alice.session, 1),))
    await until(lambda: len(world.host.jobs) == 2)


async def test_nobody_hears_of_the_events_of_others(world: World) -> None:
    alice, bob = await world.client(ALICE), await world.client(BOB)
    await bob.ask(wm.Follow, wm.Answer)
    await busy(world, ALICE)
    alice.close()
    await until(lambda: len(world.daemon.connections) == 2)
    await bob.query("status")
    assert not any(type(message) is wm.Happened for message in bob.received)


async def test_another_connection_of_the_same_user_manages_all(world: World) -> None:
    alice = await busy(world, ALICE)
    gpuctl = await world.client(ALICE)
    assert len((await gpuctl.query("jobs"))["jobs"]) == 1
    ref = (alice.session, 1)
    await gpuctl.ask(lambda r: wm.Resize(r, ref, None, (2, 1)), wm.Answer)
    await gpuctl.ask(lambda r: wm.Cancel(r, ref), wm.Answer)
    assert next(iter(world.host.jobs.values())).ending


@pytest.mark.parametrize("uid", [0, os.geteuid()])
async def test_root_and_the_daemons_user_manage_all(world: World, uid: int) -> None:
    alice, bob = await busy(world, ALICE), await busy(world, BOB)
    admin = await world.client(uid)
    rows = (await admin.query("jobs"))["jobs"]
    assert {row["user"] for row in rows} == {str(ALICE), str(BOB)}
    await admin.ask(lambda r: wm.Resize(r, (alice.session, 1), None, (2, 1)), wm.Answer)
    await admin.ask(lambda r: wm.Cancel(r, (bob.session, 1)), wm.Answer)


async def test_the_kernel_says_who_a_client_is(world: World) -> None:
    client = await world.client()
    assert world.daemon.state.sessions[client.session].peer == (
        os.getpid(),
        os.geteuid(),
        os.getegid(),
    )
