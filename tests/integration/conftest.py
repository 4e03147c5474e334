"""A world of a daemon, fake hosts and raw clients, not started: for these tests and the faults'."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.daemon_world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as one:
        yield one
