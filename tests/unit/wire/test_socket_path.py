"""The path of the daemon's socket."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.errors import InvalidArgument
from gpud.wire.socket_path import (
    MAX_PATH_BYTES,
    checked_socket_path,
    default_socket_path,
    socket_path,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpud-") as name:
        yield Path(name)


def test_the_path_that_is_named_goes_first_then_the_variable() -> None:
    environ = {"GPUD_SOCKET": "/a/b.sock", "XDG_RUNTIME_DIR": "/run/user/7"}
    assert socket_path("/c.sock", environ) == Path("/c.sock")
    assert socket_path(Path("c.sock"), environ) == Path("c.sock")
    assert socket_path(None, environ) == Path("/a/b.sock")
    assert socket_path(None, {**environ, "GPUD_SOCKET": ""}) == Path("/run/user/7/gpud/gpud.sock")


@pytest.mark.parametrize("runtime", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "here"}])
@pytest.mark.parametrize(
    ("user", "expected"), [(0, "/run/gpud/gpud.sock"), (1000, "/tmp/gpud-1000/gpud.sock")]
)
def test_without_a_runtime_folder(
    runtime: dict[str, str], user: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user)
    assert default_socket_path(runtime) == Path(expected)


def test_the_limit_is_the_kernels(folder: Path) -> None:
    name = "s" * (MAX_PATH_BYTES - len(str(folder)) - 1)
    longest, longer = folder / name, folder / f"{name}s"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(checked_socket_path(longest)))
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(OSError, match="too long"):
        sock.bind(str(longer))
    with pytest.raises(InvalidArgument, match=r"has 108 bytes, .* at most 107; choose a shorter"):
        checked_socket_path(longer)


def test_bytes_count_not_characters() -> None:
    assert checked_socket_path("/" + "s" * 106) == Path("/" + "s" * 106)
    with pytest.raises(InvalidArgument, match="has 109 bytes"):
        checked_socket_path("/" + "ä" * 54)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_what_is_no_path(path: str) -> None:
    with pytest.raises(InvalidArgument, match="no path of a socket"):
        checked_socket_path(path)


def test_the_variable_is_checked_too() -> None:
    with pytest.raises(InvalidArgument, match="200 bytes"):
        socket_path(None, {"GPUD_SOCKET": "/" * 200})
