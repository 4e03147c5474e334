"""A daemon whose device copies arrays: what its host is asked for, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from gpud.device.host import messages as m
from gpud.errors import InternalError, OutOfMemory
from gpud.server.hosts.device_memory import MOST_PARTS
from gpud.wire import messages as wm
from tests.fake_host.host import FakeHost
from tests.integration.daemon_world import Client, World, until

SIZE = 10_000
PAGES = 12_288


@pytest.fixture
async def world(world: World) -> World:
    return await world.start(FakeHost(sms=4, auto=True, arrays="copied"))


def sent(world: World, *kinds: type) -> list[Any]:
    """What the host was told of these kinds."""
    return [one for one in world.host.commands if type(one) in kinds]


def used(world: World) -> int:
    """Bytes that the ledger has in arrays."""
    return world.daemon.state.arenas.used_bytes(0)


async def heard(client: Client) -> None:
    """Wait until the daemon has handled what the client has sent."""
    await client.query("status")


async def lose(world: World) -> None:
    """End the host, and wait for the next one."""
    device = world.daemon.devices[0]
    before = device.restarts
    world.host.die()
    await until(lambda: device.restarts > before and device.state == "ready")


async def test_an_array_is_told_when_it_has_memory(world: World) -> None:
    client = await world.client()
    assert client.welcome.devices[0]["arrays"] == "copied"
    world.host.holds = {m.Commit}
    request = client.next_request()
    client.send(wm.Allocate(request, 0, SIZE))
    await until(lambda: sent(world, m.Commit))
    await heard(client)
    assert not [one for one in client.received if type(one) is wm.Allocated]
    (commit,) = sent(world, m.Commit)
    assert (commit.offset, commit.size, commit.from_file) == (0, PAGES, False)
    world.host.answer()
    await client.expect(wm.Allocated)


async def test_an_array_that_gets_no_memory_has_never_been_there(world: World) -> None:
    client = await world.client()
    kept = await client.allocate(SIZE)
    (session,) = world.daemon.state.sessions.values()
    counted = session.host_memory.used_bytes
    world.host.holds = {m.Commit}
    client.send(wm.Allocate(client.next_request(), 0, SIZE))
    await until(lambda: len(sent(world, m.Commit)) == 2)
    world.host.answer(OutOfMemory(SIZE, 5, limit="device"))
    failed = await client.expect(wm.Failed)
    assert failed.error["code"] == "out-of-memory"
    assert used(world) == PAGES
    assert session.host_memory.used_bytes == counted
    world.host.holds = set()
    assert await client.allocate(SIZE) == kept + PAGES


async def test_an_array_that_is_freed_before_it_gets_no_memory(world: World) -> None:
    client = await world.client()
    kept = await client.allocate(SIZE)
    world.host.holds = {m.Commit, m.Release}
    request = client.next_request()
    client.send(wm.Allocate(request, 0, SIZE))
    await until(lambda: len(sent(world, m.Commit)) == 2)
    client.send(wm.Free(0, kept + PAGES))
    await until(lambda: sent(world, m.Release))
    world.host.answer(InternalError("no", stage="device"))
    assert (await client.expect(wm.Failed)).request == request
    assert used(world) == PAGES


async def test_a_new_array_costs_the_same_however_many_there_are(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)  # opens the arena, with all that is there
    memory = world.daemon.devices[0].memory
    monkeypatch.delattr(type(memory), "arrays_of")
    assert await client.allocate(SIZE) == array + PAGES


async def test_what_lacks_memory_waits_for_what_is_on_its_way_back(world: World) -> None:
    client, other = await world.client(), await world.client()
    array = await other.allocate(SIZE)
    world.host.holds = {m.Release, m.Commit}
    other.send(wm.Free(0, array))
    await until(lambda: sent(world, m.Release))
    (release,) = world.host._held
    world.host._held.clear()
    client.send(wm.Allocate(client.next_request(), 0, SIZE))
    await until(lambda: len(sent(world, m.Commit)) == 2)
    world.host.answer(OutOfMemory(SIZE, 5, limit="device"))
    await heard(client)
    world.host.holds = set()
    world.host._copy(release)
    await client.expect(wm.Allocated)
    assert len(sent(world, m.Commit)) == 3


async def test_a_job_starts_when_what_was_written_has_arrived(world: World) -> None:
    client, other = await world.client(), await world.client()
    module, others = await client.kernel(), await other.kernel()
    array = await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    client.send(wm.Upload(0, array, 0, SIZE))
    client.submit(1, module, reservation=(4, 1))
    client.send(wm.Upload(0, array, 4, 8))
    client.submit(2, module, quota=(1, 1))
    await heard(client)
    other.submit(1, others, quota=(4, 1))
    assert (await other.finished(1)).state == "done"
    assert [one.session for one in sent(world, m.StartRun)] == [other.session]
    assert not sent(world, m.ResizeJob), "it takes nothing from anybody before it can run"
    rows = (await client.query("jobs"))["jobs"]
    assert [(one["state"], one["allocation"]) for one in rows] == [
        ("preparing", "0"),
        ("blocked", "0"),
    ]
    world.host.answer()
    assert (await client.finished(1)).state == "done"
    await until(lambda: len(sent(world, m.UploadRange)) == 2)
    await heard(client)
    assert len(sent(world, m.StartRun)) == 2, "what comes later is for later jobs"
    world.host.answer()
    assert (await client.finished(2)).state == "done"
    assert [(one.offset, one.size) for one in sent(world, m.UploadRange)] == [(0, SIZE), (4, 8)]


async def test_however_often_an_array_is_written_few_copies_wait(world: World) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    for _ in range(100):
        client.send(wm.Upload(0, array, 0, SIZE))
    await heard(client)
    assert len(sent(world, m.UploadRange)) == 1
    world.host.answer()
    await until(lambda: len(sent(world, m.UploadRange)) == 2)
    world.host.answer()
    await heard(client)
    assert len(sent(world, m.UploadRange)) == 2
    client.send(wm.Upload(0, array, 0, SIZE))


async def test_who_writes_more_parts_than_may_wait_waits_and_loses_none(world: World) -> None:
    client = await world.client()
    array, after = await client.allocate(SIZE), await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    for at in range(MOST_PARTS + 10):
        client.send(wm.Upload(0, array, at, 1))
    client.send(wm.Upload(0, after, 0, SIZE))
    for count in range(1, 10):
        await until(lambda count=count: len(sent(world, m.UploadRange)) == count)
        assert len(sent(world, m.UploadRange)) == count  # the other array's comes last
        world.host.answer()
    world.host.holds = set()
    world.host.answer()
    await until(lambda: len(sent(world, m.UploadRange)) == MOST_PARTS + 11)
    places = {one.offset for one in sent(world, m.UploadRange)}
    assert places == {*range(MOST_PARTS + 10), PAGES}


async def test_who_waits_for_room_goes_on_with_the_next_host(world: World) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    for at in range(MOST_PARTS + 3):
        client.send(wm.Upload(0, array, at, 1))
    await until(lambda: sent(world, m.UploadRange))
    await lose(world)
    await heard(client)


async def test_who_waits_for_room_may_be_gone(world: World) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    for at in range(MOST_PARTS + 3):
        client.send(wm.Upload(0, array, at, 1))
    await until(lambda: sent(world, m.UploadRange))
    client.close()
    world.host.holds = set()
    world.host.answer()
    await until(lambda: not world.daemon.state.sessions)
    other = await world.client()
    await heard(other)


async def test_what_is_freed_is_released_before_it_is_given_out_again(world: World) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)
    world.host.holds = {m.Release}
    client.send(wm.Free(0, array))
    client.send(wm.Allocate(client.next_request(), 0, 100))
    await until(lambda: sent(world, m.Release))
    await heard(client)
    assert len(sent(world, m.Commit)) == 1
    world.host.answer()
    allocated = await client.expect(wm.Allocated)
    assert allocated.address == array
    order = [type(one) for one in sent(world, m.Commit, m.Release)]
    assert order == [m.Commit, m.Release, m.Commit]


async def test_what_could_not_be_copied_is_not_computed_on(world: World) -> None:
    client = await world.client()
    module, array = await client.kernel(), await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    client.send(wm.Upload(0, array, 0, SIZE))
    client.submit(1, module)
    await until(lambda: sent(world, m.UploadRange))
    world.host.answer(InternalError("the file is gone", stage="device host"))
    error = (await client.finished(1)).error
    assert error["code"] == "device-lost"
    assert "could not be copied to the device (" in error["message"]
    world.host.holds = set()
    client.send(wm.Upload(0, array, 0, SIZE))
    client.submit(2, module)
    assert (await client.finished(2)).state == "done"


async def test_what_a_lost_host_had_not_copied_yet_the_next_one_gets(world: World) -> None:
    client = await world.client()
    module, array = await client.kernel(), await client.allocate(SIZE)
    untouched = await client.allocate(SIZE)
    world.host.holds = {m.UploadRange}
    client.send(wm.Upload(0, array, 0, SIZE))
    client.submit(1, module)
    await until(lambda: sent(world, m.UploadRange))
    world.host.holds = set()
    world.host.commands.clear()
    await lose(world)
    finished = await client.finished(1)
    assert finished.error is None
    commits = sent(world, m.Commit)
    assert [(one.offset, one.from_file) for one in commits] == [(0, True), (PAGES, False)]
    assert untouched == array + PAGES
    assert not sent(world, m.UploadRange)


async def test_an_allocation_and_a_read_that_are_lost_are_asked_for_again(world: World) -> None:
    client = await world.client()
    module, array = await client.kernel(), await client.allocate(SIZE)
    client.submit(1, module)
    await client.finished(1)
    await client.ask(lambda r: wm.Download(r, 0, array, 0, SIZE), wm.Answer)
    assert len(sent(world, m.DownloadRange)) == 1
    await client.ask(lambda r: wm.Download(r, 0, array, 0, SIZE), wm.Answer)
    assert len(sent(world, m.DownloadRange)) == 1  # the file has it, and no job has run since
    client.submit(2, module)
    await client.finished(2)
    world.host.holds = {m.DownloadRange, m.Commit}
    reading = client.next_request()
    client.send(wm.Download(reading, 0, array, 0, SIZE))
    client.send(wm.Allocate(client.next_request(), 0, SIZE))
    await until(lambda: len(sent(world, m.DownloadRange, m.Commit)) == 4)
    world.host.holds = set()
    await lose(world)
    failed = await client.expect(wm.Failed)
    assert (failed.request, failed.error["code"]) == (reading, "device-lost")
    assert (await client.expect(wm.Allocated)).address == array + PAGES


async def test_a_session_that_goes_leaves_nothing_that_waits(world: World) -> None:
    client = await world.client()
    array = await client.allocate(SIZE)
    client.submit(1, await client.kernel())
    await client.finished(1)
    world.host.holds = {m.UploadRange, m.DownloadRange}
    client.send(wm.Download(client.next_request(), 0, array, 0, SIZE))
    client.send(wm.Upload(0, array, 0, SIZE))
    client.send(wm.Upload(0, array, 4, SIZE - 4))
    await until(lambda: sent(world, m.UploadRange) and sent(world, m.DownloadRange))
    client.close()
    await until(lambda: used(world) == 0)
    world.host.answer()
    memory = world.daemon.devices[0].memory
    assert memory is not None
    await until(lambda: not memory._writes._last_jobs)
    assert not memory._parts
    assert not memory.copies._sessions
    other = await world.client()
    assert await other.allocate(SIZE) == array
    assert not memory._reads


async def test_a_device_that_shares_arrays_copies_none() -> None:
    async with World() as world:
        await world.start(FakeHost(sms=4, auto=True))
        client = await world.client()
        array = await client.allocate(SIZE)
        error = await client.refused(lambda r: wm.Download(r, 0, array, 0, 1))
        assert error["code"] == "invalid-argument"
        client.send(wm.Upload(0, array, 0, 1))
        assert (await client.expect(wm.Failed)).error["code"] == "invalid-argument"
        assert not sent(world, m.Commit, m.UploadRange, m.DownloadRange)
