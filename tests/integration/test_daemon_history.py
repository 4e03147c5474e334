"""The history of jobs: across restarts, for its users alone, and with a disk that fails."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gpud.server.state import job_history
from gpud.telemetry.job_archive import JobArchive
from gpud.wire import messages as wm
from tests.fake_host.host import Behaviour, FakeHost
from tests.integration.daemon_world import Client, World, until

ALICE, BOB = 70001, 70002


async def one_job(client: Client) -> str:
    client.submit(1, await client.kernel("k"))
    assert (await client.finished(1)).state == "done"
    return f"{client.session}.1"


async def rows(client: Client, *asked: Any, **named: Any) -> list[dict[str, Any]]:
    answer = await client.ask(lambda r: wm.AskHistory(r, *asked, **named), wm.Answer)
    found: list[dict[str, Any]] = answer.value["rows"]
    return found


@pytest.mark.parametrize("kept", [True, False])
async def test_each_user_has_their_own(world: World, tmp_path: Path, kept: bool) -> None:
    file = {"history_file": str(tmp_path / "history.sqlite")} if kept else {}
    await world.start(FakeHost(sms=4, auto=True), **file)
    alice, bob = await world.client(ALICE), await world.client(BOB)
    first, second = await one_job(alice), await one_job(bob)
    assert [row["id"] for row in await rows(alice)] == [first]
    assert [row["id"] for row in await rows(bob)] == [second]
    root = await world.client(0)
    assert [row["uid"] for row in await rows(root)] == [ALICE, BOB]
    assert [row["id"] for row in await rows(root, str(BOB))] == [second]
    assert {row["user"] for row in await rows(root, by="user")} == {str(ALICE), str(BOB)}
    assert await rows(root, state="failed") == []
    error = await root.refused(lambda r: wm.AskHistory(r, "nobody-has-this-name"))
    assert error["code"] == "invalid-argument"


async def test_why_a_job_failed_is_kept(world: World, tmp_path: Path) -> None:
    kernels = {"traps": Behaviour(trap_at=0)}
    host = FakeHost(sms=4, auto=True, kernels=kernels)
    await world.start(host, history_file=str(tmp_path / "history.sqlite"))
    client = await world.client()
    for number, name in enumerate(("traps", "k"), 1):
        client.submit(number, await client.kernel(name))
        await client.finished(number)
    failed, done = await rows(client)
    assert (failed["state"], done["state"], done["error"]) == ("failed", "done", None)
    assert failed["error"]["code"] == "kernel-trap"
    assert failed["error"]["fields"]["kernel"] == "traps"


async def test_jobs_outlive_the_daemon(tmp_path: Path) -> None:
    file = {"history_file": str(tmp_path / "history.sqlite")}
    async with World() as before:
        await before.start(FakeHost(sms=4, auto=True), **file)
        client = await before.client()
        await client.allocate(10_000)
        job = await one_job(client)
    async with World() as after:
        await after.start(FakeHost(sms=4, auto=True), **file)
        (row,) = await rows(await after.client())
        assert (row["id"], row["state"], row["memory_bytes"]) == (job, "done", 12_288)
        assert row["ended_at_s"] >= row["submitted_at_s"] > 1.7e9


async def test_a_full_disk_ends_nothing(
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(job_history, "_BATCH_S", 0.0)
    await world.start(FakeHost(sms=4, auto=True), history_file=str(tmp_path / "history.sqlite"))
    client = await world.client()
    add = JobArchive.add

    def full(self: JobArchive, jobs: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(JobArchive, "add", full)
    await one_job(client)
    await until(lambda: "disk is full" in caplog.text)
    monkeypatch.setattr(JobArchive, "add", add)
    other = await world.client()
    job = await one_job(other)
    assert [row["id"] for row in await rows(other)] == [job]
    assert "the history is written again; it lacks 1 jobs" in caplog.text
