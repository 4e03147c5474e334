"""The daemon as a process of its own, with real device hosts: signals, systemd, the CPU device."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpud.cli.checks import _daemon
from gpud.errors import ConnectionLost
from gpud.wire import messages as wm
from gpud.wire.socket_path import draining_path
from gpud_client.cli.minimal_client import MinimalClient
from gpud_client.connection.daemon_socket import connect_socket
from tests.integration.daemon_world import LOOP
from tests.support.daemon_process import DaemonProcess
from tests.support.processes import children, gone
from tests.support.raw_client import Raw
from tests.support.waiting import until

pytestmark = pytest.mark.ci


def spinning(client: Raw) -> tuple[int, mmap.mmap]:
    """A module whose kernel ends when the first word is not 0, one job of it, and the memory."""
    module, address = client.module(LOOP.format(name="spin")), client.allocate(4096)
    client.submit(module, address, 4)
    client.ask(lambda r: wm.Query(r, "status"), wm.Answer)
    assert address == client.arena.base
    return module, client.map()


class Process(DaemonProcess):
    """A daemon with clients, which end before it."""

    def __init__(self) -> None:
        super().__init__()
        self.clients: list[Raw] = []

    def client(self) -> Raw:
        self.clients.append(Raw(str(self.path)))
        self.clients[-1].hello()
        return self.clients[-1]

    def __exit__(self, *error: object) -> None:
        for client in self.clients:
            client.close()
        super().__exit__(*error)


@pytest.fixture
def daemon() -> Iterator[Process]:
    with Process() as one:
        yield one


NOHUP = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


@pytest.mark.skipif(NOHUP, reason="run by nohup")
def test_a_hangup_reads_the_settings_again(daemon: Process) -> None:
    file = daemon.folder / "gpud.toml"
    file.write_text("log_level = 'info'\n")
    process = daemon.serve("--config", str(file))
    file.write_text("log_level = 'debug'\npolicy = 'equal'\n")
    process.send_signal(signal.SIGHUP)
    daemon.notified("RELOADING=1")
    daemon.notified("READY=1")
    file.write_text("log_level = 'loud'\n")
    process.send_signal(signal.SIGHUP)
    daemon.notified("READY=1")
    with MinimalClient(str(daemon.path)) as asks:
        rows = {row["key"]: row for row in asks.query("config")["settings"]}
    assert (rows["log_level"]["value"], rows["policy"]["next"]) == ("debug", "equal")
    process.terminate()
    status, log = daemon.ended(process)
    assert status == 0
    assert "log_level is debug now" in log
    assert "policy = equal needs a restart" in log
    assert "the settings stay as they are: log_level in" in log


@pytest.mark.skipif(NOHUP, reason="run by nohup")
def test_a_daemon_drains_when_its_terminal_is_closed(daemon: Process) -> None:
    ours, its = os.openpty()
    # As a shell in a terminal: the session's leader takes it as its own.
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    take += "os.execvp(sys.argv[1], sys.argv[1:])"
    process = daemon.serve(wrapper=[sys.executable, "-c", take], stdin=its)
    os.close(its)
    client = daemon.client()
    _, memory = spinning(client)
    with memory:
        os.close(ours)
        daemon.notified("STOPPING=1")
        memory[:4] = b"\1\0\0\0"
        assert client.expect(wm.Finished).state == "done"
    assert daemon.ended(process)[0] == 0


def test_a_signal_drains(daemon: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    process = daemon.serve()
    client = daemon.client()
    spin, memory = spinning(client)
    with memory:
        process.terminate()
        daemon.notified("STOPPING=1")
        client.submit(spin, client.arena.base, 1)
        assert client.expect(wm.Finished).error["code"] == "draining"
        with pytest.raises(
            ConnectionLost, match=rf"\(pid {process.pid}\) takes no connections: it is ending"
        ):
            connect_socket(daemon.path)
        with MinimalClient(str(daemon.path)) as asks:
            assert asks.query("status")["draining"]
            assert [row["state"] for row in asks.query("jobs")["jobs"]] == ["running"]
            checks = {check["name"]: check for check in asks.query("doctor")["checks"]}
            assert "it drains" in checks["daemon"]["hint"]
        monkeypatch.setenv("GPUD_SOCKET", str(daemon.path))
        assert f"pid {process.pid}, is draining" in _daemon().detail
        hosts = children(process.pid)
        assert hosts
        memory[:4] = b"\1\0\0\0"
        assert client.expect(wm.Finished).state == "done"
    client.expect(wm.Goodbye)
    status, log = daemon.ended(process)
    assert status == 0, log
    assert not daemon.path.exists()
    assert not draining_path(daemon.path).exists()
    assert all(gone(pid) for pid in hosts)


def test_a_second_signal_forces(daemon: Process) -> None:
    process = daemon.serve()
    client = daemon.client()
    _, memory = spinning(client)
    hosts = children(process.pid)
    process.send_signal(signal.SIGINT)
    daemon.notified("STOPPING=1")
    process.send_signal(signal.SIGINT)
    status, log = daemon.ended(process)
    memory.close()
    assert status == 1, log
    assert not daemon.path.exists()
    assert all(gone(pid) for pid in hosts)


def test_children_end_with_a_daemon_that_is_killed_and_the_next_takes_its_path(
    daemon: Process,
) -> None:
    process = daemon.serve()
    client = daemon.client()
    _, memory = spinning(client)
    hosts = children(process.pid)
    process.kill()
    assert all(gone(pid) for pid in hosts)
    memory.close()
    assert daemon.path.exists()
    daemon.ended(process)
    daemon.serve()
    daemon.client()


def test_a_second_daemon_is_refused(daemon: Process) -> None:
    first = daemon.serve()
    status, log = daemon.ended(daemon.serve(wait=False))
    assert status == 1
    assert f"pid {first.pid}" in log
    assert "--socket" in log
    assert "Traceback" not in log
    daemon.client()


def test_socket_activation(daemon: Process) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(daemon.path))
        made.listen()
        # As systemd does: descriptor 3, and the variables name the process itself.
        script = 'export LISTEN_PID=$$ LISTEN_FDS=1; exec "$@" 3<&0 </dev/null'
        process = daemon.serve(wrapper=["sh", "-c", script, "sh"], stdin=made.fileno())
        daemon.client()
        process.terminate()
        assert daemon.ended(process)[0] == 0
        assert daemon.path.exists()  # it is systemd's


def test_json_logs(daemon: Process) -> None:
    import json

    process = daemon.serve("--log-format", "json")
    process.terminate()
    status, log = daemon.ended(process)
    assert status == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert any("serving" in line["message"] for line in lines)
    assert {"at", "level", "logger", "message"} <= set(lines[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "cuda:99"), "nvidia-smi"),
        (("--policy", "nonsense"), "reservations"),
        (("--socket", "/" + "x" * 120), "107"),
        (("--offline-floor", "-1"), "offline"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    daemon: Process, arguments: tuple[str, ...], words: str
) -> None:
    status, log = daemon.ended(daemon.serve(*arguments, wait=False))
    assert status != 0
    assert words in log
    assert "Traceback" not in log


def test_what_the_front_does_not_load(daemon: Process) -> None:
    process = daemon.serve()
    daemon.client()
    mapped = Path(f"/proc/{process.pid}/maps").read_text()
    for library in ("numpy", "llvmlite", "libnvrtc", "libcuda", "cupy"):
        assert library not in mapped


def test_a_socket_that_was_removed_is_there_again(daemon: Process) -> None:
    daemon.serve(device="cpu:1")
    daemon.path.unlink()
    # The file is there a moment before somebody listens.
    until(lambda: daemon.path.exists() and "it is there again" in daemon.log.read_text())
    assert daemon.client().ask(lambda r: wm.Query(r, "status"), wm.Answer).value["devices"]
    assert "was removed; it is there again" in daemon.log.read_text()


@pytest.mark.parametrize("closed", ["0", "1", "2"])
def test_whatever_is_closed_or_signalled_it_serves(daemon: Process, closed: str) -> None:
    redirect = f"{closed}<&-" if closed == "0" else f"{closed}>&-"
    shell = ("sh", "-c", f'exec "$@" {redirect}', "sh")
    process = daemon.serve(device="cpu:1", wrapper=shell)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    assert daemon.client().allocate(4096)
    assert process.poll() is None


def test_gpuctl_says_that_its_output_is_closed(daemon: Process) -> None:
    daemon.serve(device="cpu:1")
    gpuctl = "import gpud_client.cli; raise SystemExit(gpud_client.cli.main(['status']))"
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", gpuctl]
    found = subprocess.run(
        command, env=daemon.environment, capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (1, "gpuctl: standard output: Bad file descriptor\n")
