"""Clients that die at any moment, lie, or do not listen: the others notice nothing."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import resource
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

import gpud_client as gc
from campaigns.client_kills import run as client_kills
from campaigns.client_kills.clients import DEATHS, SOURCE
from gpud.server import daemon as daemon_module
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import Client, World, until
from tests.support.raw_client import Raw

pytestmark = pytest.mark.ci

# -- processes that are killed ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpu() -> Iterator[gc.Session]:
    with gc.local("cpu:2", log_level="warning", grace="30 s") as one:
        yield one


@pytest.fixture(scope="module")
def killer(gpu: gc.Session) -> Iterator[client_kills.Killer]:
    with client_kills.Killer(str(gpu.path)) as one:
        yield one


@pytest.mark.parametrize("death", DEATHS)
def test_what_a_killed_client_had_comes_back(
    gpu: gc.Session, killer: client_kills.Killer, death: str
) -> None:
    front = int(gpu.query("status")["pid"])
    before = client_kills.usage(front)
    for seed in range(2):
        found = killer.kill(seed, 3, death)
        assert not found["others"], "a client ended before it was killed"
        took_ms = client_kills.until_back(gpu, found["killed_ns"], 1)
        print(f"{death}: back after {took_ms:.1f} ms")
    status = gpu.query("status")
    assert status["jobs"] == {}
    assert status["devices"][0]["memory_used_bytes"] == 0
    assert status["devices"][0]["restarts"] == 0
    assert not gpu.query("memory")["sessions"]
    assert not gpu.query("kernels")["kernels"]
    assert not client_kills.leaks(before, client_kills.settled(front, before))


def test_a_long_chain_of_jobs_dies_with_its_client() -> None:
    """Each follows the one before, by `after`; none of them runs when the first one ends."""
    count = 10_000
    limits: dict[str, Any] = {"max_jobs_per_session": count, "session_host_memory": "1 GiB"}
    with gc.local("cpu:2", log_level="warning", grace="30 s", **limits) as gpu:
        client = Raw(str(gpu.path))
        client.hello()
        module, address = client.module(SOURCE), client.allocate(4096)
        client.submit(module, address, (1 << 31) - 1)
        for number in range(2, count + 1):
            client.submit(module, address, 1, stream=number, after=((client.session, number - 1),))
        client.ask(lambda r: wm.Query(r, "events", 1), wm.Answer)  # all is taken in
        assert sum(gpu.query("status")["jobs"].values()) == count
        began_ns = time.monotonic_ns()
        client.close()
        # Each look at so many jobs costs the daemon some milliseconds.
        took_ms = client_kills.until_back(gpu, began_ns, 1, pause_s=0.2)
        print(f"{count} jobs ended after {took_ms:.0f} ms")
        status = gpu.query("status")
    assert status["ended"] == {"done": 0, "failed": 0, "cancelled": count}
    assert status["devices"][0]["restarts"] == 0


def test_survivors_of_many_deaths_are_right() -> None:
    """A short version of client_kills."""
    found = client_kills.measure("cpu:2", 40, 17)
    print(found["back_ms"])
    assert not found["wrong"]
    assert not found["leaks"]
    assert not found["ended_before_they_were_killed"]
    assert all(found["survivors_jobs"])


def test_a_leak_is_seen() -> None:
    """The benchmark's own check bites."""
    usage = {
        "processes": 3,
        "descriptors": {"front": 20, "host": 7},
        "private_mib": {"front": 20.0, "host": 30.0},
        "mapped": 2,
    }
    assert not client_kills.leaks(usage, usage)
    for after in (
        {**usage, "processes": 5},
        {**usage, "descriptors": {"front": 26, "host": 7}},
        {**usage, "descriptors": {"front": 20, "host": 9}},
        {**usage, "private_mib": {"front": 20.0, "host": 300.0}},
        {**usage, "mapped": 3},
    ):
        assert client_kills.leaks(usage, after)


# -- many of them ----------------------------------------------------------------------------------


def test_many_connections_and_one_too_many() -> None:
    found = client_kills.connections("cpu:1", 600)
    assert found["connections"] == 600
    assert "600 connections" in found["one_more"]
    before, used, after = found["descriptors"]
    assert used >= before + 598
    assert after <= before + 4


def test_more_connections_than_descriptors() -> None:
    """The daemon keeps some for itself: it says what is wrong, and serves who is there."""
    clients: list[Raw] = []
    refusals = []
    with gc.local("cpu:1", log_level="error") as gpu:
        pid = int(gpu.query("status")["pid"])
        limit = len(os.listdir(f"/proc/{pid}/fd")) + 200  # noqa: PTH208
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))
        try:
            for _ in range(300):
                clients.append(Raw(str(gpu.path)))
                try:
                    clients[-1].hello()
                except (RuntimeError, OSError) as error:
                    refusals.append(str(error))
            assert any("LimitNOFILE" in text for text in refusals)
            assert len(refusals) < 290, "none was served"
            served = next(client for client in clients if client.session)
            with pytest.raises(RuntimeError, match="LimitNOFILE"):
                served.allocate(1)
        finally:
            for client in clients:
                client.close()
        client_kills.until_back(gpu, time.monotonic_ns(), 1)
        assert gpu.zeros(10, "int32").get().sum() == 0


# -- one client, looked at closely -----------------------------------------------------------------


@pytest.fixture
async def world(world: World) -> World:
    host = FakeHost(sms=4, kernels={"forever": Behaviour(block_ns=None)}, auto=True)
    return await world.start(host)


async def test_the_memory_file_cannot_be_cut_or_grown(world: World) -> None:
    client = await world.client()
    address = await client.allocate(1 << 16)
    arena = await client.expect(wm.Arena)
    (file,) = client.descriptors
    for size in (0, 4096, arena.size - 1, arena.size + 1, 1 << 50):
        with pytest.raises(OSError, match="not permitted") as caught:
            os.ftruncate(file, size)
        assert caught.value.errno == errno.EPERM
    with pytest.raises(OSError, match="not permitted"):
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(OSError, match=r"File too large|not permitted"):
        os.pwrite(file, b"x", arena.size)
    with mmap.mmap(file, arena.size) as memory:
        memory[address - arena.base] = 7
    assert os.fstat(file).st_size == arena.size


async def test_a_client_may_close_what_it_was_given(world: World) -> None:
    client = await world.client()
    await client.allocate(1 << 16)
    await client.expect(wm.Arena)
    os.close(client.descriptors.pop())
    module = await client.kernel("k")
    client.submit(1, module)
    assert (await client.finished(1)).state == "done"
    await client.allocate(1 << 16)


async def test_descriptors_from_a_client_are_not_taken(world: World) -> None:
    """They are closed by the kernel, for the daemon does not ask for them."""
    client = await world.client()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    pipe = os.pipe()
    data = wm.CLIENT_PROTOCOL.encode(wm.Query(77, "status"))
    for _ in range(20):
        client.sock.setblocking(True)
        socket.send_fds(client.sock, [data], list(pipe))
        client.sock.setblocking(False)
        await client.expect(wm.Answer)
    for end in pipe:
        os.close(end)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


async def test_a_client_that_only_stops_sending_is_gone(world: World) -> None:
    client = await world.client()
    client.submit(1, await client.kernel("forever"))
    await until(lambda: world.host.jobs)
    client.sock.shutdown(socket.SHUT_WR)
    await client.end()
    await until(lambda: not world.daemon.state.sessions)
    assert not len(world.daemon.state.users)


async def front_is_empty(world: World) -> None:
    daemon = world.daemon
    await until(lambda: not daemon.state.sessions and not daemon.connections)
    assert not daemon.state.jobs
    assert not daemon.state.modules
    assert not len(daemon.state.users)
    await until(lambda: not len(daemon.programs.measuring))  # the host answers when it answers
    assert not daemon.state.arenas.files
    assert not daemon.state.arenas.used_bytes(0)


async def test_a_client_in_debt_for_every_kind_of_answer(world: World) -> None:
    client = await world.client()
    module = await client.kernel("k")
    await client.allocate(1 << 20)
    client.send(wm.Compile(1, 0, "__global__ void k() {}", ("k",)))
    client.send(wm.Measure(2, module, 0, (64, 1, 1), 0))
    client.send(wm.Allocate(3, 0, 1 << 20))
    client.send(wm.Query(4, "jobs"))
    client.send(wm.Follow(5))
    client.submit(1, module)
    client.send(wm.Describe(6, ((client.session, 1),)))
    client.send(wm.Cancel(7, (client.session, 1)))
    client.close()
    await front_is_empty(world)
    assert not world.daemon.compiler._waiting


async def test_numbers_begin_again_and_skip_what_is_in_use(world: World) -> None:
    daemon = world.daemon
    first = await world.client()
    module = await first.kernel("k")
    daemon.state.sessions._next = daemon.state.modules._next = (1 << 32) - 1
    clients: list[Client] = [await world.client() for _ in range(3)]
    assert [client.session for client in clients] == [(1 << 32) - 1, first.session + 1, 3]
    modules = [await client.kernel("k") for client in clients]
    assert modules == [(1 << 32) - 1, module + 1, 3]
    for client, own in zip(clients, modules, strict=True):
        client.submit(1, own)
        assert (await client.finished(1)).state == "done"


async def test_polling_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []
    monkeypatch.setattr(daemon_module, "_POLL_S", 0.001)
    monkeypatch.setattr(world.daemon.connections, "end_excessive", looks.append)
    await until(lambda: len(looks) > 3)
