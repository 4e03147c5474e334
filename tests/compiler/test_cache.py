"""The disk cache: one test for each property it names."""

from __future__ import annotations

import logging
import multiprocessing
import os
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from gpud.compiler.cache import Cache, cache_key, default_folder

KEY, OTHER = cache_key(["a"]), cache_key(["b"])


def entries(cache: Cache) -> list[Path]:
    return sorted(cache.folder.glob("*.entry"))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "gpud")


def test_what_is_put_is_got(cache: Cache) -> None:
    assert cache.get(KEY) is None
    for payload in (b"", b"one", b"two" * 100_000):
        cache.put(KEY, payload)
        assert cache.get(KEY) == payload
        assert Cache(cache.folder).get(KEY) == payload
    assert cache.get(OTHER) is None
    cache.remove(KEY)
    cache.remove(KEY)
    assert cache.get(KEY) is None


def test_the_folder_is_private_and_made_on_first_use(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "deep" / "gpud")
    assert not cache.folder.exists()
    cache.put(KEY, b"x")
    assert cache.folder.stat().st_mode & 0o777 == 0o700
    (entry,) = entries(cache)
    assert entry.stat().st_mode & 0o077 == 0


def test_default_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "gpud"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for ignored in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == tmp_path / "home" / ".cache" / "gpud"


def test_keys_differ_where_parts_differ() -> None:
    sequences: list[list[str | bytes | int | None]] = [
        [], [""], ["", ""], ["a"], ["ab"], ["a", "b"], ["b", "a"], [b"a"], [1], ["1"], [None],
        ["None"], [b"ab", "c"], [b"a", "bc"], ["a\ud800"],
    ]  # fmt: skip
    assert len({cache_key(parts) for parts in sequences}) == len(sequences)


@pytest.mark.parametrize("at", [0, 7, 8, 39, 40, 71, 72, 500, -1])
def test_fails_closed_on_a_flipped_bit(cache: Cache, at: int) -> None:
    cache.put(KEY, bytes(1000))
    (entry,) = entries(cache)
    data = bytearray(entry.read_bytes())
    data[at] ^= 1
    entry.write_bytes(data)
    assert cache.get(KEY) is None
    assert entries(cache) == [], "a damaged entry is removed"
    cache.put(KEY, b"new")
    assert cache.get(KEY) == b"new"


@pytest.mark.parametrize("length", [0, 1, 40, 71, 72, 100, 1071])
def test_fails_closed_on_a_truncated_entry(cache: Cache, length: int) -> None:
    cache.put(KEY, bytes(1000))
    (entry,) = entries(cache)
    os.truncate(entry, length)
    assert cache.get(KEY) is None


def test_fails_closed_on_what_is_appended_or_foreign(cache: Cache) -> None:
    cache.put(KEY, b"payload")
    (entry,) = entries(cache)
    good = entry.read_bytes()
    for data in (good + b"x", b"", b"\0" * 100, b"gpudc01\n", os.urandom(300)):
        entry.write_bytes(data)
        assert cache.get(KEY) is None


def test_fails_closed_on_a_link_and_on_a_pipe(cache: Cache, tmp_path: Path) -> None:
    cache.put(KEY, b"payload")
    (entry,) = entries(cache)
    elsewhere = entry.rename(tmp_path / "elsewhere")
    entry.symlink_to(elsewhere)
    assert cache.get(KEY) is None
    assert elsewhere.exists()
    os.mkfifo(entry)
    assert cache.get(KEY) is None


def test_fails_closed_on_a_renamed_entry(cache: Cache) -> None:
    cache.put(OTHER, b"the other's")
    (entry,) = entries(cache)
    entry.rename(entry.with_name(f"{KEY.hex()}.entry"))
    assert cache.get(KEY) is None


def test_bounded_and_the_least_recently_used_go(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "gpud", limit_bytes=10_000)
    keys = [cache_key([i]) for i in range(8)]
    for age, key in enumerate(keys[:6]):
        cache.put(key, bytes(1500))
        os.utime(cache.folder / f"{key.hex()}.entry", (1000 + age, 1000 + age))
    assert cache.get(keys[0]) is not None  # used: the newest now
    cache.put(keys[6], bytes(1500))
    kept = [key for key in keys if cache.get(key) is not None]
    assert keys[0] in kept
    assert keys[6] in kept
    assert keys[1] not in kept
    assert sum(entry.stat().st_size for entry in entries(cache)) <= 10_000


def test_an_entry_above_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "gpud", limit_bytes=1000)
    cache.put(KEY, bytes(2000))
    assert cache.get(KEY) is None
    assert list(cache.folder.iterdir()) == []


def test_what_dead_writers_left_is_removed(cache: Cache) -> None:
    cache.put(KEY, b"x")
    os.utime(entries(cache)[0], (1, 1))
    old, new = cache.folder / "old.tmp", cache.folder / "new.tmp"
    old.write_bytes(b"half")
    new.write_bytes(b"half")
    os.utime(old, (1, 1))
    cache.put(OTHER, b"y")
    assert not old.exists()
    assert new.exists(), "its writer may be at work"


def test_clear(cache: Cache) -> None:
    cache.put(KEY, b"x")
    cache.put(OTHER, b"y")
    cache.clear()
    assert cache.get(KEY) is None
    assert entries(cache) == []


def unusable(tmp_path: Path) -> dict[str, Path]:
    """Folders that no cache can or should use, by kind."""
    file = tmp_path / "file"
    file.write_text("not a folder")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    return {"file": file, "below a file": file / "gpud", "others may write": shared}


@pytest.mark.parametrize("kind", ["file", "below a file", "others may write"])
def test_optional_and_says_so_once(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(unusable(tmp_path)[kind])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert cache.get(KEY) is None
            cache.put(KEY, b"x")
    (record,) = caplog.records
    assert "compiling without the cache" in record.getMessage()


def test_a_folder_that_vanishes_is_no_error(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, b"x")
    for path in cache.folder.iterdir():
        path.unlink()
    cache.folder.rmdir()
    with caplog.at_level(logging.WARNING):
        assert cache.get(KEY) is None
        cache.put(KEY, b"x")
        cache.put(KEY, b"x")
    assert len(caplog.records) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_still_serves(cache: Cache, caplog: pytest.LogCaptureFixture) -> None:
    cache.put(KEY, b"x")
    cache.folder.chmod(0o500)
    reader = Cache(cache.folder)
    assert reader.get(KEY) == b"x"
    reader.put(OTHER, b"y")
    assert len(caplog.records) == 1


def hammer(folder: Path, start: Barrier, number: int, rounds: int) -> None:
    """Writes and reads the same few keys as other processes; exits with 1 on a wrong payload."""
    cache = Cache(folder, limit_bytes=60_000)
    start.wait(timeout=60)
    for i in range(rounds):
        which = (i * 7 + number) % 5
        key = cache_key([which])
        payload = cache.get(key)
        if payload is not None and payload != bytes([which]) * 4000:
            raise SystemExit(1)
        cache.put(key, bytes([which]) * 4000)


def test_atomic_under_concurrent_writers(tmp_path: Path) -> None:
    folder = tmp_path / "gpud"
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(4)
    workers = [
        context.Process(target=hammer, args=(folder, start, number, 150)) for number in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=100)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    cache = Cache(folder)
    for which in range(5):
        assert cache.get(cache_key([which])) == bytes([which]) * 4000
    assert list(folder.glob("*.tmp")) == []
