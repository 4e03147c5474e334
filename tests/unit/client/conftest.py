"""A scripted daemon, and a session with it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gpud_client as gc
from tests.support.fake_daemon import FakeDaemon


@pytest.fixture
def daemon() -> Iterator[FakeDaemon]:
    found = FakeDaemon()
    yield found
    found.close()


@pytest.fixture
def gpu(daemon: FakeDaemon) -> Iterator[gc.Session]:
    with gc.connect(daemon.path) as session:
        yield session


@pytest.fixture
def saxpy(gpu: gc.Session) -> gc.Kernel:
    return gpu.kernel("a source", "saxpy")
