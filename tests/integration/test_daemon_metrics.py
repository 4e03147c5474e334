"""The metrics endpoint of a daemon: a port and a socket, bad requests, and silent clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from gpud.errors import InvalidArgument
from gpud.server.ipc import metrics_endpoint
from tests.fake_host.host import FakeHost
from tests.integration.daemon_world import World


async def asked(path: Path, request: bytes) -> tuple[str, str]:
    """The status line and the body of the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(request)
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.partition("\r\n")[0], body


async def test_jobs_that_ran_are_counted(world: World, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    client = await world.client()
    client.submit(1, await client.kernel("k"), reservation=(1, 1))
    await client.finished(1)
    status, body = await asked(path, b"GET /metrics HTTP/1.0\r\n\r\n")
    assert status == "HTTP/1.0 200 OK"
    lines = body.splitlines()
    assert lines[-1] == "# EOF"
    assert 'gpud_ended_jobs_total{state="done"} 1.0' in lines
    assert 'gpud_queued_seconds_count{kind="online"} 1.0' in lines
    assert 'gpud_device_sms{device="0"} 4.0' in lines
    assert path.stat().st_mode & 0o777 == 0o600


async def test_other_requests_are_refused(world: World, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    for request, code in (
        (b"GET /jobs HTTP/1.0\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 0\r\n\r\n", "405"),
        (b"nonsense of four words\r\n\r\n", "400"),
        (b"GET /" + b"x" * 65_532, "414"),
    ):
        assert code in (await asked(path, request))[0], request[:40]


async def test_who_says_nothing_is_disconnected_and_delays_nobody(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint._Handler, "timeout", 0.5)
    path = tmp_path / "m.sock"
    await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    silent = [await asyncio.open_unix_connection(path) for _ in range(10)]
    assert (await asked(path, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == "HTTP/1.0 200 OK"
    for reader, writer in silent:
        with suppress(OSError):  # how a kernel says that the other end is closed differs
            assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()


async def test_a_port_of_the_loopback_interface(world: World) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    await world.start(FakeHost(sms=4, auto=True), metrics_port=port)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert b"gpud_clients 0.0" in await reader.read()
    writer.close()


async def test_a_place_that_is_taken_is_named(world: World, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    path.write_text("mine")
    with pytest.raises(
        InvalidArgument, match=r"exists and is no socket; remove it, or .* --metrics-socket"
    ):
        await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    assert path.read_text() == "mine"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidArgument, match=f"served at port {port}: .*--metrics-port"):
            await world.start(FakeHost(sms=4, auto=True), metrics_port=port)


async def test_the_socket_of_a_killed_daemon_is_taken_over(world: World, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(path))
    await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    assert (await asked(path, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == "HTTP/1.0 200 OK"
    await world.daemon.stop()
    assert not path.exists()


async def test_a_folder_of_everybody_is_refused(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(InvalidArgument, match="everybody can write to the folder"):
        await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(folder / "m.sock"))


async def test_requests_that_never_end_take_few_threads_for_a_short_time(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_endpoint, "DEADLINE_S", 0.5)
    path = tmp_path / "m.sock"
    await world.start(FakeHost(sms=4, auto=True), metrics_socket=str(path))
    before = threading.active_count()
    slow = [await asyncio.open_unix_connection(path) for _ in range(40)]

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        with suppress(ConnectionError):
            while not reader.at_eof():  # never silent for as long as a read may take
                writer.write(b"G")
                await writer.drain()
                await asyncio.sleep(0.05)
                assert threading.active_count() <= before + metrics_endpoint.MOST_REQUESTS
        return b""

    async with asyncio.timeout(20):
        waiting = [asyncio.ensure_future(reader.read()) for reader, _ in slow]
        dripping = [asyncio.ensure_future(drip(*one)) for one in slow]
        await asyncio.gather(*waiting, return_exceptions=True)
        await asyncio.gather(*dripping)
    for _, writer in slow:
        writer.close()
    assert (await asked(path, b"GET /metrics HTTP/1.0\r\n\r\n"))[0] == "HTTP/1.0 200 OK"
