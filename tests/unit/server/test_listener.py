from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.errors import InvalidArgument
from gpud.server.ipc.listener import adopt, listen


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpud-") as name:
        yield Path(name)


def connect(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def test_private_from_the_start(folder: Path) -> None:
    before = os.umask(0)
    try:
        listener = listen(folder / "s")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600
    listener.close()


def test_the_configured_mode_and_a_missing_folder(folder: Path) -> None:
    path = folder / "made" / "here" / "s"
    listener = listen(path, 0o660)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    for made in (path.parent, path.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o750
    connect(path).close()
    listener.close()
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(("mode", "access"), [(0o600, 0o700), (0o666, 0o755), (0o660, 0o750)])
def test_a_folder_that_is_made_follows_the_sockets_mode(
    folder: Path, mode: int, access: int
) -> None:
    listener = listen(folder / "made" / "s", mode)
    assert stat.S_IMODE((folder / "made").stat().st_mode) == access
    listener.close()


def test_traceless(folder: Path) -> None:
    (folder / "file").write_text("somebody's")
    for path in (folder / "file", folder / "file" / "s"):
        with pytest.raises(InvalidArgument):
            listen(path)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(folder / "live"))
    sock.listen()
    with sock, pytest.raises(InvalidArgument, match="another daemon"):
        listen(folder / "live")
    assert sorted(one.name for one in folder.iterdir()) == ["file", "live"]


def test_what_was_removed_is_made_again(folder: Path) -> None:
    path = folder / "made" / "s"
    listener = listen(path, 0o660)
    missing = [listener.is_missing]
    for one in path.parent.iterdir():
        one.unlink()
    path.parent.rmdir()
    missing.append(listener.is_missing)
    listener.restore()
    missing.append(listener.is_missing)
    assert missing == [False, True, False]
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    connect(path).close()
    with pytest.raises(InvalidArgument, match=f"pid {os.getpid()}"):
        listen(path)
    listener.close()
    assert list(path.parent.iterdir()) == []


def test_one_daemon(folder: Path) -> None:
    first = listen(folder / "s")
    with pytest.raises(InvalidArgument, match=f"pid {os.getpid()}"):
        listen(folder / "s")
    connect(folder / "s").close()
    first.close()
    listen(folder / "s").close()


def test_the_path_stays_ours_while_we_drain(folder: Path) -> None:
    first = listen(folder / "s")
    first.stop()
    assert not (folder / "s").exists()
    with pytest.raises(InvalidArgument, match="another daemon"):
        listen(folder / "s")
    first.close()
    first.close()
    listen(folder / "s").close()


def test_stale_replaced(folder: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "s"))
    dead.close()
    listener = listen(folder / "s")
    connect(folder / "s").close()
    listener.close()


def test_a_live_socket_of_another_program_is_left_alone(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(folder / "s"))
        other.listen()
        with pytest.raises(InvalidArgument, match="another daemon"):
            listen(folder / "s")
        connect(folder / "s").close()


def test_never_steals(folder: Path) -> None:
    (folder / "s").write_text("mine")
    with pytest.raises(InvalidArgument, match="no socket"):
        listen(folder / "s")
    assert (folder / "s").read_text() == "mine"
    (folder / "s").unlink()
    listen(folder / "s").close()  # the refusal has left no lock


def test_a_folder_that_cannot_be_made(folder: Path) -> None:
    (folder / "file").write_text("")
    with pytest.raises(InvalidArgument, match="--socket"):
        listen(folder / "file" / "s")


def test_a_folder_that_anybody_can_write_to(folder: Path) -> None:
    (folder / "open").mkdir()
    (folder / "open").chmod(0o777)
    with pytest.raises(InvalidArgument, match="everybody"):
        listen(folder / "open" / "s")
    (folder / "open").chmod(0o1777)
    listen(folder / "open" / "s").close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user(folder: Path) -> None:
    (folder / "theirs").mkdir()
    os.chown(folder / "theirs", 12345, 12345)
    with pytest.raises(InvalidArgument, match="another user"):
        listen(folder / "theirs" / "s")


def test_a_path_that_is_too_long(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="107"):
        listen(folder / ("x" * 120))


def test_socket_activation(folder: Path) -> None:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(folder / "s"))
    made.listen()
    listener = adopt(made.detach())
    assert listener.address == str(folder / "s")
    connect(folder / "s").close()
    listener.close()
    assert (folder / "s").exists()  # it is systemd's


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
def test_socket_activation_with_a_wrong_socket(family: socket.AddressFamily) -> None:
    with socket.socket(family) as wrong, pytest.raises(InvalidArgument, match="ListenStream"):
        adopt(wrong.fileno())
