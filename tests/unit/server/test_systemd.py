from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.server.ipc.systemd import activated, notify


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpud-") as name:
        yield Path(name)


@pytest.mark.parametrize("abstract", [False, True])
def test_notify(folder: Path, abstract: bool) -> None:
    name = f"@gpud-test-{os.getpid()}" if abstract else str(folder / "n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(10)
        assert notify("READY=1", {"NOTIFY_SOCKET": name})
        assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", [None, "", "relative", "/nobody/is/here"])
def test_nobody_to_notify(address: str | None) -> None:
    assert not notify("READY=1", {} if address is None else {"NOTIFY_SOCKET": address})


def test_descriptors_for_this_process_only() -> None:
    mine = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2", "LISTEN_FDNAMES": "a:b", "X": "1"}
    assert activated(mine) == [3, 4]
    assert mine == {"X": "1"}
    assert activated(mine) == []
    assert activated({"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "1"}) == []
    assert activated({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "-1"}) == []
