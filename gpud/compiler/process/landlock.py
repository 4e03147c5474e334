"""Restricts the file access of this process with Landlock.

Problem: the compile process runs libraries on sources of other users, with all the rights of the
daemon's user. Whatever a source makes the compiler open, it must not reach that user's files.

Approach: Linux's Landlock, by which a process gives up rights for itself and its children. From
then on it can read below some folders and write below others, and open nothing else: no ``/proc``,
no ``/dev``, no home. This is irrevocable and needs no privilege. Files and sockets that are already
open stay usable.

Properties:
    for_good: rights that were given up cannot be regained, not by children either;
    best_effort: if the Linux kernel has no Landlock (before 5.13, or disabled) nothing is changed,
        and the return value says so.

Source: the kernel's documentation, userspace-api/landlock; the numbers are those of its ABI.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

__all__ = ["confine"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, on every architecture
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_NO_NEW_PRIVS = 38  # PR_SET_NO_NEW_PRIVS

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FIRST_ABI = (1 << 13) - 1  # all rights on files of ABI 1
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # ABI 2 and 3
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE


def confine(read: Iterable[str], write: Iterable[str]) -> bool:
    """Restricts this process to reading below ``read``, and reading and writing below ``write``.

    Folders and files that do not exist are ignored.

    Returns:
        Whether the restrictions apply; False if the Linux kernel does not support them.
    """
    library = ctypes.CDLL(None, use_errno=True)
    syscall = library.syscall
    syscall.restype = ctypes.c_long
    abi = syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    if abi < 1:
        return False
    handled = _FIRST_ABI | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0)
    attributes = struct.pack("Q", handled)
    ruleset = syscall(
        _CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0)
    )
    if ruleset < 0:
        return False
    try:
        for path in read:
            _allow(syscall, ruleset, path, _READ & handled)
        for path in write:
            _allow(syscall, ruleset, path, handled & ~_EXECUTE)
        if library.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
            return False
        return bool(syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def _allow(syscall: ctypes._FuncPointer, ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):  # noqa: PTH112
            rights &= _FILE_RIGHTS
        rule = struct.pack("=Qi", rights, descriptor)
        syscall(_ADD_RULE, ruleset, ctypes.c_int(_PATH_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(descriptor)
