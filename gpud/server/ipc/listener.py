"""The daemon's listening socket: created safely, or adopted from systemd.

Problem: a socket file outlives a daemon that was killed; two daemons could serve the same path
without noticing; and a file is visible before its mode can be changed.

Approach: a lock file beside the socket (``flock``, which the kernel drops with the process) decides
which daemon owns the path. The owner may replace a stale socket file. The socket is bound under a
umask that gives access to the user only, and gets its configured mode afterwards.

Properties:
    one_daemon: a second daemon on the same path is refused while the first lives; the error has its
        pid;
    stale_replaced: a socket file whose daemon has died is replaced;
    never_steals: a file at that path that is not a socket is left alone, with an error;
    traceless: a refusal leaves no file and no folder behind;
    own_folder: a folder that others could replace is not used, nor a link to one;
    private_from_the_start: at no time can other users connect to a socket of mode 0600.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gpud.errors import InvalidArgument
from gpud.wire.socket_path import check_fallback_folder, checked_socket_path

__all__ = ["Listener", "adopt", "listen"]

_BACKLOG = 1024


class Listener:
    """A listening socket, with the socket file and lock file that are removed when it is closed."""

    def __init__(
        self, sock: socket.socket, path: Path | None, lock: int | None, mode: int = 0o600
    ) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.path = path
        self._lock = lock
        self._mode = mode

    @property
    def address(self) -> str:
        """The socket's address, for messages."""
        name = self.socket.getsockname()
        return name if isinstance(name, str) else name.decode(errors="replace")

    @property
    def is_missing(self) -> bool:
        """Whether somebody has removed the socket's file, so that nobody can connect."""
        return (
            self.path is not None and self.socket.fileno() >= 0 and not os.path.lexists(self.path)
        )

    def restore(self) -> None:
        """Make the files again that somebody has removed; the socket is another one then.

        Raises:
            InvalidArgument: they cannot be made, or another daemon has taken the path.
        """
        assert self.path is not None
        assert self._lock is not None
        with _refusing(self.path, "--socket"):
            _make_folders(self.path.parent, self._mode)
            if not _lock_path(self.path).exists():
                lock = _take_lock(self.path, "--socket")
                os.close(self._lock)
                self._lock = lock
            sock = _bound(self.path, self._mode)
        self.socket.close()
        sock.setblocking(False)
        self.socket = sock

    def stop(self) -> None:
        """Accept no more connections. The path stays locked, so that no other daemon takes it."""
        if self.socket.fileno() < 0:
            return
        self.socket.close()
        if self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def close(self) -> None:
        """`stop`, and unlock the path for another daemon. May be called twice."""
        self.stop()
        if self._lock is None or self.path is None:
            return
        _unlock(self.path, self._lock)
        self._lock = None


def listen(path: Path, mode: int = 0o600, flag: str = "--socket") -> Listener:
    """Create a socket at ``path``. A missing folder is created, with access as for the socket.

    Args:
        path: where; it is locked for this process.
        mode: of the file.
        flag: with which another path can be chosen, for messages.

    Raises:
        InvalidArgument: another daemon serves this path, there is another file, or the folder
            cannot be used. Nothing was changed.
    """
    path = checked_socket_path(path)
    made: list[Path] = []
    try:
        with _refusing(path, flag):
            _check_file(path, flag)
            made = _make_folders(path.parent, mode)
            _check_folder(path.parent, flag)
            lock = _take_lock(path, flag)
            try:
                _clear(path, flag)
                sock = _bound(path, mode)
            except BaseException:
                _unlock(path, lock)
                raise
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise
    return Listener(sock, path, lock, mode)


def adopt(descriptor: int) -> Listener:
    """Adopt a listening socket that systemd created.

    Raises:
        InvalidArgument: it is not a listening Unix stream socket.
    """
    sock = socket.socket(fileno=descriptor)
    listening = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or sock.type != socket.SOCK_STREAM or not listening:
        sock.detach()
        raise InvalidArgument(
            f"descriptor {descriptor} of socket activation is no listening Unix stream socket; "
            "the unit needs ListenStream= with a path"
        )
    os.set_inheritable(descriptor, False)
    return Listener(sock, None, None)


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


@contextmanager
def _refusing(path: Path, flag: str) -> Iterator[None]:
    """Report what the operating system refuses."""
    try:
        yield
    except OSError as error:
        raise InvalidArgument(
            f"the socket {path} cannot be made: {error.strerror}; choose another with {flag}"
        ) from error


def _make_folders(folder: Path, mode: int) -> list[Path]:
    """Make the folders that are missing, with access as for a socket of ``mode``, innermost first.

    Returns those that were made.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    access = 0o700 | (0o050 if mode & 0o060 else 0) | (0o005 if mode & 0o006 else 0)
    for one in reversed(missing):
        one.mkdir(mode=0o700)
        one.chmod(access)
    return missing


def _bound(path: Path, mode: int) -> socket.socket:
    """Return a socket that listens at ``path``."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        before = os.umask(0o177)
        try:
            sock.bind(str(path))
        finally:
            os.umask(before)
        if mode != 0o600:
            path.chmod(mode)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _unlock(path: Path, lock: int) -> None:
    with suppress(OSError):
        _lock_path(path).unlink()
    os.close(lock)  # last: until now no other daemon could take the path


def _check_folder(folder: Path, flag: str) -> None:
    """Refuse a folder in which another user could replace the socket."""
    check_fallback_folder(folder / "socket")
    link = folder.lstat()
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise InvalidArgument(
            f"the folder {folder} is a link that another user can turn elsewhere; choose another "
            f"path with {flag}"
        )
    status = folder.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise InvalidArgument(
            f"the folder {folder} belongs to another user, who could take the socket's place; "
            f"choose another path with {flag}"
        )
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise InvalidArgument(
            f"everybody can write to the folder {folder}, and take the socket's place; choose "
            f"another path with {flag}, or take that right away"
        )


def _take_lock(path: Path, flag: str) -> int:
    """Lock the path and write our pid to the lock file; returns its descriptor."""
    while True:
        lock = os.open(
            _lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            pid = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise _taken(path, f" (pid {pid})" if pid else "", flag) from None
        with suppress(FileNotFoundError):
            # The file may be the one that an ending daemon has just removed: then lock the new one.
            if os.path.samestat(os.fstat(lock), _lock_path(path).stat()):
                os.truncate(lock, 0)
                os.write(lock, f"{os.getpid()}\n".encode())
                return lock
        os.close(lock)


def _check_file(path: Path, flag: str) -> bool:
    """Refuse to replace what is no socket; returns whether there is a file."""
    try:
        kind = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISSOCK(kind):
        raise InvalidArgument(
            f"{path} exists and is no socket; remove it, or choose another path with {flag}"
        )
    return True


def _clear(path: Path, flag: str) -> None:
    """Remove a stale socket file; the lock is ours, but the file may be another program's."""
    if not _check_file(path, flag):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise InvalidArgument(
                f"{path} exists and cannot be asked whether a daemon is there: {error.strerror}; "
                f"remove it, or choose another path with {flag}"
            ) from error
    raise _taken(path, "", flag)


def _taken(path: Path, who: str, flag: str) -> InvalidArgument:
    return InvalidArgument(
        f"another daemon{who} serves {path}; end it first, or choose another path with {flag}"
    )
