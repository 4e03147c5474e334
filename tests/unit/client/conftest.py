"""A scripted daemon, and a session with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpud_client as gc
from tests.unit.client.scripted import Daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    found = Daemon()
    yield found
    found.close()


@pytest.fixture
def gpu(daemon: Daemon) -> Iterator[gc.Session]:
    with gc.connect(daemon.path) as session:
        yield session


@pytest.fixture
def saxpy(gpu: gc.Session) -> gc.Kernel:
    return gpu.kernel("a source", "saxpy")
