"""A disk cache of what compilers made, by content hash, shared by several processes.

Problem: compiling takes 10 to 100 ms and gives the same result every time; daemons are restarted
often, and several may run at once. A wrong cache entry is worse than none.

Approach: one file per entry, named by its key, that holds the key, a checksum and the payload.
Writers write a temporary file in the same folder and rename it to the entry's name: readers see
the old entry, the new one or none. There are no locks.

Terms: *key*: 32 bytes, a hash of everything the result depends on (`cache_key`); *payload*: the
result as bytes.

Properties:
    atomic: a reader never sees half an entry, whatever is written at the same time;
    fails_closed: an entry that is truncated, damaged, renamed or written by another version is a
        miss, and is removed;
    bounded: after a write the entries take at most ``limit_bytes``; the least recently used are
        removed;
    own: an entry that is a link, belongs to another user or is writable by others is a miss, and is
        removed; the folder is opened once, so that it cannot be replaced by another;
    optional: if the folder cannot be used (read-only, another user's, writable by others, full),
        every look-up is a miss, and one line in the log says why.

The folder of programs is ``$XDG_CACHE_HOME/gpud``, mode 0700. The CPU device's machine code is kept
beside it (`machine_code_folder`): who may write there can run anything in a device host, and the
processes that compile users' sources may write to the folder of programs.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import logging
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["Cache", "cache_key", "default_folder", "machine_code_folder", "source_digest"]

_LOG = logging.getLogger(__name__)
_MAGIC = b"gpudc01\n"
_KEY_BYTES = 32
_DIGEST_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + _KEY_BYTES + _DIGEST_BYTES
_DEFAULT_LIMIT_BYTES = 256 << 20
_SUFFIX = ".entry"
_STALE_S = 3600  # the writer of a temporary file this much older than the newest entry is dead
_ROOM = 0.9  # an eviction goes down to this share of the limit, so that not every write evicts


def cache_key(parts: Iterable[str | bytes | int | None]) -> bytes:
    """Return the key for ``parts``; different sequences give different keys."""
    state = hashlib.blake2b(digest_size=_KEY_BYTES)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        state.update(f"{type(part).__name__} {len(data)}:".encode())
        state.update(data)
    return state.digest()


def default_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/gpud``, by default ``~/.cache/gpud``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "gpud"


def machine_code_folder(cache_dir: str | None) -> Path | None:
    """Return where machine code is kept, for the setting ``cache_dir``; None: nowhere."""
    if cache_dir == "":
        return None
    programs = default_folder() if cache_dir is None else Path(cache_dir)
    return programs.with_name(f"{programs.name}-machine-code")


@functools.cache
def source_digest(folder: Path) -> str:
    """Return a hash of all Python source in a folder, so that changed code uses no old results."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        state.update(str(path.relative_to(folder)).encode())
        state.update(path.read_bytes())
    return state.hexdigest()


class Cache:
    """A cache in ``folder``, created on first use. Threads and processes may share it.

    Args:
        folder: The folder of the entries; `default_folder` if None.
        limit_bytes: The most bytes that all entries together may take.
    """

    def __init__(self, folder: Path | None = None, *, limit_bytes: int = _DEFAULT_LIMIT_BYTES):
        self.folder = default_folder() if folder is None else folder
        self.limit_bytes = limit_bytes
        self._usable: bool | None = None
        self._at: int | None = None  # descriptor of the open folder

    def get(self, key: bytes) -> bytes | memoryview | None:
        """Return the payload stored under ``key``, None if there is no valid entry."""
        if not self._is_usable():
            return None
        name = _name(key)
        try:
            data = self._read(name)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._disable(f"cannot read {name}: {error}")
            return None
        payload = _checked(data, key)
        with suppress(OSError):  # another process may have removed it: no matter
            if payload is None:
                _LOG.warning("removed a damaged or foreign cache entry: %s", name)
                os.unlink(name, dir_fd=self._at)
            else:
                os.utime(name, dir_fd=self._at)
        return payload

    def _read(self, name: str) -> bytes:
        """Return the bytes of an entry; empty if the file is not our own."""
        try:
            descriptor = os.open(
                name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=self._at
            )
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, or a pipe
                return b""
            raise
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            return file.read() if _is_own_file(os.fstat(descriptor)) else b""

    def put(self, key: bytes, payload: bytes) -> None:
        """Store ``payload`` under ``key``. Raises nothing if the folder cannot be used."""
        if not self._is_usable():
            return
        entry = _MAGIC + key + _digest(key, payload) + payload
        if len(entry) > self.limit_bytes:
            return
        try:
            temporary = f"{os.urandom(8).hex()}.tmp"
            handle = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600,
                dir_fd=self._at,
            )  # fmt: skip
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(entry)
                os.replace(temporary, _name(key), src_dir_fd=self._at, dst_dir_fd=self._at)
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._at)
                raise
            self._evict()
        except OSError as error:
            self._disable(f"cannot write to {self.folder}: {error}")

    def remove(self, key: bytes) -> None:
        """Remove the entry of ``key``, if there is one."""
        if self._is_usable():
            with suppress(OSError):
                os.unlink(_name(key), dir_fd=self._at)

    def clear(self) -> None:
        """Remove all entries."""
        if self._is_usable():
            with suppress(OSError):
                for name in os.listdir(self._at):  # noqa: PTH208
                    if name.endswith(_SUFFIX):
                        os.unlink(name, dir_fd=self._at)

    def __del__(self) -> None:
        if self._at is not None:
            with suppress(OSError):
                os.close(self._at)

    def _is_usable(self) -> bool:
        """Create and check the folder, once."""
        if self._usable is None:
            self._usable = True
            try:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._at = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                about = os.fstat(self._at)
            except OSError as error:
                self._disable(f"cannot use {self.folder}: {error}")
            else:
                if about.st_uid != os.geteuid():
                    self._disable(f"{self.folder} belongs to another user")
                elif stat.S_IMODE(about.st_mode) & 0o022:
                    self._disable(f"others may write to {self.folder}; chmod it to 0700")
        return self._usable

    def _disable(self, why: str) -> None:
        if self._usable:
            _LOG.warning("compiling without the cache: %s", why)
        self._usable = False

    def _evict(self) -> None:
        """Remove the least recently used entries above the limit, and files of dead writers."""
        assert self._at is not None
        entries: list[tuple[int, int, str]] = []
        temporary: list[tuple[int, str]] = []
        with os.scandir(self._at) as listing:
            for item in listing:
                with suppress(OSError):  # it may be gone by now
                    if item.name.endswith(_SUFFIX):
                        about = item.stat(follow_symlinks=False)
                        entries.append((about.st_mtime_ns, about.st_size, item.name))
                    elif item.name.endswith(".tmp"):
                        about = item.stat(follow_symlinks=False)
                        temporary.append((about.st_mtime_ns, item.name))
        newest = max((when for when, _, _ in entries), default=0)
        dead = [name for when, name in temporary if newest - when > _STALE_S * 10**9]
        total = sum(size for _, size, _ in entries)
        if total > self.limit_bytes:
            for _, size, name in sorted(entries):
                if total <= self.limit_bytes * _ROOM:
                    break
                dead.append(name)
                total -= size
        for name in dead:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._at)


def _name(key: bytes) -> str:
    return f"{key.hex()}{_SUFFIX}"


def _is_own_file(about: os.stat_result) -> bool:
    """Return whether no other user can have written the file, or can write it."""
    return (
        stat.S_ISREG(about.st_mode)
        and about.st_uid == os.geteuid()
        and about.st_nlink <= 1  # 0: it was replaced just now
        and not about.st_mode & 0o022
    )


def _digest(key: bytes, payload: bytes | memoryview) -> bytes:
    state = hashlib.sha256(key)
    state.update(payload)
    return state.digest()


def _checked(data: bytes, key: bytes) -> memoryview | None:
    """Return the payload if ``data`` is a complete and undamaged entry of ``key``, else None."""
    head = data[:_HEAD_BYTES]
    payload = memoryview(data)[_HEAD_BYTES:]
    return payload if head == _MAGIC + key + _digest(key, payload) else None
