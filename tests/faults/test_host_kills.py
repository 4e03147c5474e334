"""A few killed hosts; campaigns/host_failures/run.py kills 200."""

from __future__ import annotations

from contextlib import closing

import pytest

from campaigns.host_failures.kills import Kills
from tests.integration.daemon_world import World

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]
SEED, KILLS = 20260, 6


async def test_a_host_that_is_killed_at_random_moments_under_load() -> None:
    async with World() as world:
        await world.start(devices=["cpu:2"], grace="10 s")
        with closing(Kills(world.daemon.address, SEED, clients=2)) as kills:
            found = await kills.run(KILLS)
        print(f"seed {SEED}: {found}")
        assert found.wrong == []
        assert set(found.outcomes) <= {"done", "job-cancelled", "device-lost"}
        assert found.outcomes["done"] > KILLS
        assert len(found.service_s) == KILLS
        assert found.after.descriptors <= found.before.descriptors
        assert found.after.children <= found.before.children
        world.daemon.runner.scheduler.validate()
        device = world.daemon.devices[0]
        assert device.restarts > KILLS
        assert not device._quarantine._culprits
