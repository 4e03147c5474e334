"""A scripted daemon for tests of gpuctl."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.scripted_daemon import Peer, scripted


@pytest.fixture
def folder() -> Iterator[Path]:
    found = Path(tempfile.mkdtemp(prefix="gpud-"))
    yield found
    shutil.rmtree(found)


@pytest.fixture
def peer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with scripted(folder / "s") as found:
        monkeypatch.setenv("GPUD_SOCKET", str(found.path))
        yield found
