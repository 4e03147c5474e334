"""Failures to connect, and their error messages."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

import gpud_client as gc
from gpud.wire import messages as wm
from gpud.wire.framing import frame
from gpud_client.connection import daemon_socket
from tests.support.fake_daemon import TIMEOUT_S, FakeDaemon


def test_what_a_session_is(gpu: gc.Session, daemon: FakeDaemon) -> None:
    assert gpu.path == daemon.path
    assert gpu.number == 1
    assert gpu.device == gpu.devices[0]
    assert (gpu.device.name, gpu.device.kind, gpu.device.sms) == ("device 0", "cpu", 4)
    assert gpu.device.memory == 1 << 24
    assert gpu.daemon["policy"] == "reservations"
    assert gpu.query("jobs", 5) == {"topic": "jobs", "limit": 5}
    assert "session 1" in repr(gpu)
    states = [gpu.closed]
    gpu.close()
    states.append(gpu.closed)
    assert states == [False, True]
    assert "closed" in repr(gpu)


def test_the_path_and_the_name(daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUD_SOCKET", daemon.path)
    with gc.connect(name="a service") as gpu:
        assert gpu.path == daemon.path
    with gc.connect(Path(daemon.path)) as gpu:
        assert gpu.number == 2
    programs = [message.program for message in daemon.of(wm.Hello)]
    assert programs[0] == "a service"
    assert programs[1]


def test_no_daemon(daemon: FakeDaemon, tmp_path: Path) -> None:
    for path in (daemon.path + "x", "/dev/null", "/"):
        with pytest.raises(gc.ConnectionLost, match=path) as caught:
            gc.connect(path)
        assert isinstance(caught.value, ConnectionError)
    with pytest.raises(gc.ConnectionLost, match=r"gpud serve.*local\(\)"):
        gc.connect(daemon.path + "x")


def test_a_path_that_is_too_long() -> None:
    with pytest.raises(gc.InvalidArgument, match="107"):
        gc.connect("/tmp/" + "x" * 200)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may connect to everything")
def test_a_socket_that_may_not_be_used(daemon: FakeDaemon) -> None:
    Path(daemon.path).chmod(0)
    with pytest.raises(gc.ConnectionLost, match="another user"):
        gc.connect(daemon.path)


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n" * 100,
        frame(b"\xc1"),
        frame(b"\x01"),
        wm.CLIENT_PROTOCOL.encode(wm.Answer(1, 5)),
        b"",
    ],
)
def test_somebody_else_listens_there(daemon: FakeDaemon, said: bytes) -> None:
    def answer(message: wm.Hello) -> None:
        daemon.send_raw(said)
        daemon.drop()

    daemon.answer[wm.Hello] = answer
    with pytest.raises(gc.ConnectionLost):
        gc.connect(daemon.path)
    daemon.wait_for(type(None))


def test_a_daemon_that_is_full(daemon: FakeDaemon) -> None:
    error = gc.LimitExceeded("the daemon serves 1 connections and has no room for another")

    def refuse(message: wm.Hello) -> None:
        daemon.send(wm.Goodbye(error.to_wire()))
        daemon.drop()

    daemon.answer[wm.Hello] = refuse
    with pytest.raises(gc.ConnectionLost, match="no room"):
        gc.connect(daemon.path)


def test_a_daemon_of_protocol_version_1(daemon: FakeDaemon) -> None:
    """All works but what such a daemon cannot do; there the error says what to upgrade."""
    daemon.version = 1
    daemon.finish_at_once = True
    with gc.connect(daemon.path) as gpu:
        gpu.array([1.0]).get()
        gpu.kernel("", "saxpy").submit(1, 32, (2.0, None, None, 7)).result(TIMEOUT_S)
        gpu.query("status")
    assert not daemon.of(wm.Resume)
    assert {message.at for message in daemon.of(wm.Allocate)} == {None}
    with pytest.raises(
        gc.ConnectionLost, match=r"version 1 .* need 2: upgrade gpud where the daem"
    ):
        gc.connect(daemon.path, reconnect=True)


def test_what_the_daemon_said_before_it_closed_is_heard_when_sending_fails(
    daemon: FakeDaemon, gpu: gc.Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    handling, go_on = threading.Event(), threading.Event()
    settle = gpu._core.settle

    def slow() -> None:
        handling.set()
        assert go_on.wait(TIMEOUT_S)
        settle()

    monkeypatch.setattr(gpu._core, "settle", slow)
    daemon.send(wm.Happened({}))
    assert handling.wait(TIMEOUT_S)
    daemon.send(wm.Goodbye(gc.Draining("it is late").to_wire()))
    daemon.drop()
    daemon.wait_for(type(None))
    timer = threading.Timer(0.1, go_on.set)  # when sending has failed
    timer.start()
    with pytest.raises(gc.ConnectionLost, match="it is late"):
        gpu.query("status")
    timer.join()


def test_a_refusal_without_a_request_is_logged(
    daemon: FakeDaemon, gpu: gc.Session, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.send(wm.Failed(0, gc.UnknownName("no such array").to_wire()))
    gpu.query("status")
    assert "no such array" in caplog.text


def test_answers_in_small_pieces(daemon: FakeDaemon, gpu: gc.Session) -> None:
    def answer(message: wm.Query) -> None:
        for byte in wm.CLIENT_PROTOCOL.encode(wm.Answer(message.request, {"a": 1})):
            daemon.send_raw(bytes([byte]))

    daemon.answer[wm.Query] = answer
    assert gpu.query("status") == {"a": 1}


def test_a_daemon_that_does_not_accept(monkeypatch: pytest.MonkeyPatch, daemon: FakeDaemon) -> None:
    monkeypatch.setattr(daemon_socket, "_CONNECT_S", 0.05)
    path = daemon.path + "2"
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen(0)
        while True:
            try:
                stack.enter_context(daemon_socket.connect_socket(path))
            except gc.ConnectionLost as error:
                assert "does not accept" in str(error)  # noqa: PT017  (after some that it took)
                break
        # One that accepts late is waited for.
        monkeypatch.setattr(daemon_socket, "_CONNECT_S", 10.0)
        thread = threading.Thread(target=lambda: stack.enter_context(listener.accept()[0]))
        thread.start()
        stack.enter_context(daemon_socket.connect_socket(path))
        thread.join()
