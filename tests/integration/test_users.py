"""Caps and weights of users, from the configuration to what a client is told."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from gpud.config import Config, UserTerms, load
from gpud.config.user_terms import MOST_USER_WEIGHT
from gpud.core import events as ev
from gpud.core.users import MOST_WEIGHT
from gpud.errors import InvalidArgument
from gpud.server.settings import scheduler_settings
from gpud.server.state.user_terms import group_names, terms_of
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import World

ALICE, BOB = 70001, 70002
USERS = "'70001' = {reserve = 1, hold = '50%', queue = 2}, '*' = {weight = 2}"


async def test_what_a_capped_user_is_told() -> None:
    async with World() as world:
        kernels = {"forever": Behaviour(block_ns=None)}
        await world.start(FakeHost(sms=4, kernels=kernels, auto=True), users=USERS)
        alice, bob = await world.client(ALICE), await world.client(BOB)
        module, other = await alice.kernel("forever"), await bob.kernel("forever")
        alice.submit(1, module, reservation=(2, 1))
        refused = (await alice.finished(1)).error
        assert refused["code"] == "admission"
        assert "user 70001 may reserve 1 of the 4 SMs of device 0" in refused["message"]
        alice.submit(2, module, 1000)
        alice.submit(3, module, 1000)
        alice.submit(4, module, 1000)
        refused = (await alice.finished(4)).error
        assert refused["fields"] == {"limit": "queue", "value": 2}
        assert "user 70001 has 2 jobs that have not ended" in refused["message"]
        assert "(users, groups)" in refused["message"]
        bob.submit(1, other, 1000)
        await bob.query("status")
        jobs = world.daemon.state.jobs.values()
        assert [job.record.allocation for job in jobs if job.record is not None] == [2, 0, 2]
        record = world.daemon.runner.scheduler.job_table.users
        assert (record[ALICE].hold, record[BOB].weight, record[BOB].hold) == ("50%", 2, None)


async def test_what_is_said_of_users_is_shown_to_who_manages_them() -> None:
    async with World() as world:
        await world.start(FakeHost(sms=4), users=USERS, grace="3 s")
        for uid, shown in ((ALICE, False), (None, True)):
            client = await world.client(uid)
            rows = {row["key"]: row for row in (await client.query("config"))["settings"]}
            assert rows["grace"]["value"] == "3 s"
            assert rows["users"]["shown"] is shown
            assert ("50%" in str(rows["users"]["value"])) is shown


def test_own_terms_come_first_then_groups_in_order_then_everybody() -> None:
    uid = os.getuid()
    name = pwd.getpwuid(uid).pw_name
    group = grp.getgrgid(os.getgid()).gr_name
    users = {name: UserTerms(weight=3), "*": UserTerms(weight=9, hold="1", queue=5)}
    groups = {
        "no such group": UserTerms(reserve="7"),
        group: UserTerms(weight=4, reserve="2"),
        str(os.getgid()): UserTerms(reserve="6", queue=8),
    }
    assert terms_of(Config(users=users, groups=groups), uid) == UserTerms(3, "2", "1", 8)
    assert terms_of(Config(users=users), 70009) == users["*"]
    assert terms_of(Config(users={str(uid): UserTerms(queue=1)}), uid) == UserTerms(queue=1)
    assert terms_of(Config(), uid) == UserTerms()
    assert group_names(70009) == frozenset()


@pytest.mark.parametrize("policy", ["fifo", "equal"])
def test_a_policy_that_keeps_no_caps_is_refused_with_them(policy: str) -> None:
    config = load({"policy": policy, "users": "alice = {hold = 1}"}, {"HOME": "/"})
    with pytest.raises(InvalidArgument, match=f"{policy!r} does not keep .*--users.*use policy"):
        scheduler_settings(config)
    weights = load({"policy": policy, "users": "alice = {queue = 1}"}, {"HOME": "/"})
    assert scheduler_settings(weights).policy == policy


def test_the_configuration_and_the_scheduler_agree_on_weights() -> None:
    assert MOST_USER_WEIGHT == MOST_WEIGHT
    assert ev.UserChanged(0, 1).weight == 1
