"""The archive of jobs: selections, sums, its limit, and files that are something else."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from gpud.errors import InvalidArgument
from gpud.telemetry.job_archive import ArchivedJob, JobArchive, Selection


def job(number: int, **other: Any) -> ArchivedJob:
    fields: dict[str, Any] = {
        "ended_at_s": 1000.0 + number, "submitted_at_s": 990.0, "id": f"3.{number}", "uid": 7,
        "program": "train.py", "kernels": '["step"]', "launches": 1, "state": "done",
        "kind": "offline", "reservation": None, "quota": "1/2", "weight": 1, "device": 0,
        "queued_s": 2.0, "first_block_s": 0.1, "run_s": 4.0, "resizes": 0, "capsm_seconds": 8.0,
        "memory_bytes": 100, "error": None,
    }  # fmt: skip
    return ArchivedJob(**{**fields, **other})


def ids(archive: JobArchive, **selected: Any) -> list[str]:
    return [row["id"] for row in archive.select(Selection(**selected))]


def test_jobs_are_selected_by_user_time_and_state() -> None:
    archive = JobArchive()
    archive.add([job(1), job(2, uid=8), job(3, state="failed", error='{"code": "x"}'), job(4)])
    assert ids(archive) == ["3.1", "3.2", "3.3", "3.4"]
    assert ids(archive, limit=2) == ["3.3", "3.4"]
    assert ids(archive, uid=7, limit=2) == ["3.3", "3.4"]
    assert ids(archive, uid=8) == ["3.2"]
    assert ids(archive, since_s=1002, until_s=1004) == ["3.2", "3.3"]
    assert ids(archive, state="failed") == ["3.3"]
    (row,) = archive.select(Selection(state="failed"))
    assert (row["kernels"], row["error"], row["quota"]) == (["step"], {"code": "x"}, "1/2")


def test_sums_by_user_and_by_program() -> None:
    archive = JobArchive()
    archive.add(
        [
            job(1),
            job(2, state="failed", queued_s=6.0, memory_bytes=300),
            job(3, uid=8, state="cancelled", run_s=None, capsm_seconds=None),
            job(4, uid=8, program="serve.py", capsm_seconds=100.0),
        ]
    )
    assert archive.report(Selection(), "user") == [
        {"uid": 8, "jobs": 2, "failed": 0, "cancelled": 1, "capsm_seconds": 100.0, "run_s": 4.0,
         "queued_s": 2.0, "queued_most_s": 2.0, "memory_bytes": 100},
        {"uid": 7, "jobs": 2, "failed": 1, "cancelled": 0, "capsm_seconds": 16.0, "run_s": 8.0,
         "queued_s": 4.0, "queued_most_s": 6.0, "memory_bytes": 300},
    ]  # fmt: skip
    rows = archive.report(Selection(uid=8), "program")
    assert [(row["program"], row["jobs"]) for row in rows] == [("serve.py", 1), ("train.py", 1)]


def test_it_is_still_there_when_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "history.sqlite"
    first = JobArchive(path)
    first.add([job(1)])
    first.close()
    second = JobArchive(path)
    second.add([job(2)])
    assert ids(second) == ["3.1", "3.2"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_oldest_go_when_the_file_is_full(tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    archive = JobArchive(path, most_bytes=1 << 20)
    for batch in range(30):
        archive.add(job(500 * batch + at) for at in range(500))
        assert path.stat().st_size <= 1 << 20
    left = [int(name.partition(".")[2]) for name in ids(archive)]
    assert left == list(range(left[0], 15_000))
    assert 1000 < len(left) < 14_000


def test_a_batch_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    archive = JobArchive(tmp_path / "history.sqlite")
    with pytest.raises(sqlite3.Error):
        archive.add([job(1), job(2)._replace(program=object())])  # type: ignore[arg-type]
    archive.add([job(3)])
    assert ids(archive) == ["3.3"]


@pytest.mark.parametrize("content", [b"SQLite format 3\0" + b"x" * 500, b"my thesis" * 100, None])
def test_what_is_no_history_is_not_touched(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "history.sqlite"
    if content is None:  # another program's database
        with sqlite3.connect(path) as other:
            other.execute("CREATE TABLE songs (title)")
        content = path.read_bytes()
    else:
        path.write_bytes(content)
    with pytest.raises(InvalidArgument, match="move the file away, or name another"):
        JobArchive(path)
    assert path.read_bytes() == content
