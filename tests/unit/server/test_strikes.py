"""Users whose jobs cost devices' processes are stopped for a time."""

from __future__ import annotations

import pytest

from gpud.errors import LimitExceeded
from gpud.server.state.strikes import MOST, STOPPED_S, WINDOW_S, Strikes
from gpud.units import JobId, job_id
from tests.fake_host.host import FakeHost
from tests.integration.daemon_world import World, until

ALICE, BOB = 1001, 1002


def test_the_last_strike_stops_for_a_time() -> None:
    strikes = Strikes()
    for number in range(1, MOST):
        assert not strikes.add(ALICE, JobId(number), float(number))
        assert not strikes.add(ALICE, JobId(number), number + 0.5), "a job counts once"
        strikes.check(ALICE, 10.0)
    assert strikes.add(ALICE, JobId(MOST), 20.0)
    strikes.check(BOB, 20.0)
    with pytest.raises(LimitExceeded, match="for 200 s no job"):
        strikes.check(ALICE, 20.0 + STOPPED_S - 200)
    strikes.check(ALICE, 20.0 + STOPPED_S)


def test_strikes_are_forgotten() -> None:
    strikes = Strikes()
    for number in range(MOST):
        strikes.add(ALICE, JobId(number), number * WINDOW_S)
        strikes.check(ALICE, number * WINDOW_S)
    strikes.check(ALICE, MOST * WINDOW_S)
    assert not strikes


async def test_a_user_who_costs_hosts_is_stopped_while_others_are_there() -> None:
    async with World() as world:
        await world.start(FakeHost(sms=2))
        alice = await world.client(ALICE)
        module = await alice.kernel("k")
        bob = await world.client(BOB)
        for number in range(1, MOST + 1):
            alice.submit(number, module, 100)
            await until(lambda: world.host.jobs)
            world.host.die()
            assert (await alice.finished(number)).error["code"] == "device-lost"
            await until(lambda: world.daemon.devices[0].state == "ready")
        alice.submit(MOST + 1, module, 100)
        refused = (await alice.finished(MOST + 1)).error
        assert refused["code"] == "limit"
        assert f"{alice.session}.1" in refused["message"]
        of_bob = await bob.kernel("k")
        bob.submit(1, of_bob, 1)
        await until(lambda: world.host.jobs)
        bob.close()
        await until(lambda: len(world.daemon.state.sessions) == 1)
        alice.submit(MOST + 2, module, 100)
        await until(lambda: job_id(alice.session, MOST + 2) in world.host.jobs)
