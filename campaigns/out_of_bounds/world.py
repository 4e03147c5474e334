"""A daemon with an attacker between two neighbours, and the memory files of all of them.

Everything goes through the real daemon, its device host and the client library; only the memory
files are looked at from outside, through the daemon's descriptors, so that bytes which no array
covers are compared too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

import gpud_client as gc
from campaigns.out_of_bounds.cases import Layout
from campaigns.out_of_bounds.kernels import SLOT_BYTES

PAGE = 4096
THREADS, BLOCKS = 128, 4
"""At most, of a block and of a grid."""
ARENA_BYTES = 1 << 26
SECRET_BYTES = 256 * 1024
TIMEOUT_S = 60.0


class File:
    """A session's memory file."""

    def __init__(self, front: int, session: int) -> None:
        self._path = _memory_file(front, session)
        self._descriptor = os.open(self._path, os.O_RDWR)
        self.size = os.fstat(self._descriptor).st_size

    def read(self, offset: int = 0, size: int | None = None) -> bytearray:
        wanted = self.size - offset if size is None else size
        data = bytearray(os.pread(self._descriptor, wanted, offset))
        while len(data) < wanted:
            data += os.pread(self._descriptor, wanted - len(data), offset + len(data))
        return data

    def write(self, offset: int, data: bytes) -> None:
        assert os.pwrite(self._descriptor, data, offset) == len(data)

    @property
    def used_bytes(self) -> int:
        """Of pages that were touched."""
        return os.fstat(self._descriptor).st_blocks * 512

    def close(self) -> None:
        os.close(self._descriptor)


def _memory_file(front: int, session: int) -> str:
    folder = Path(f"/proc/{front}/fd")
    for entry in folder.iterdir():
        try:
            name = str(entry.readlink())
        except OSError:
            continue
        if name.startswith(f"/memfd:gpud-{session}-0"):
            return str(entry)
    raise AssertionError(f"session {session} has no memory file")


class World:
    """See the module. Use it in a ``with`` block.

    Attributes:
        gpu: the attacker's session.
        layout: where everything is.
        file: the attacker's memory.
    """

    def __init__(self, device: str = "cpu:1", **options: Any) -> None:
        self._stack = ExitStack()
        try:
            self._start(device, options)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, device: str, options: dict[str, Any]) -> None:
        enter = self._stack.enter_context
        self.root = enter(gc.local(device, memory=f"{ARENA_BYTES}B", **options))
        front = self.front = int(self.root.daemon["pid"])
        # Arenas have consecutive slots in the order of their first arrays.
        sessions = [enter(gc.connect(self.root.path)) for _ in range(3)]
        self._arrays = [session.zeros(1, np.uint8) for session in sessions]
        order = sorted(range(3), key=lambda number: self._arrays[number].ptr)
        sessions = [sessions[number] for number in order]
        below, self.gpu, above = sessions
        self.files = [File(front, session.number) for session in sessions]
        for file in self.files:
            self._stack.callback(file.close)
        self.file = self.files[1]
        rng = np.random.default_rng(1)
        secrets = []
        for session in (below, above):
            values = rng.integers(1, 256, SECRET_BYTES, np.uint8)
            secrets.append(session.array(values))
        self._secrets = secrets
        gpu = self.gpu
        sizes = {"edge": 2 * PAGE, "good": BLOCKS * THREADS * SLOT_BYTES}
        sizes |= {"out": BLOCKS * THREADS * 8, "table": PAGE}
        self.arrays = {name: gpu.zeros(size, np.uint8) for name, size in sizes.items()}
        first = next(a for a in self._arrays if a._session is gpu)
        base = first.ptr
        self._arrays.remove(first)
        self.arrays["first"] = first
        self.layout = Layout(
            base,
            self.file.size,
            self.arrays["good"].ptr,
            self.arrays["out"].ptr,
            self.arrays["table"].ptr,
            tuple((secret.ptr, SECRET_BYTES) for secret in secrets),
            dict(_host_addresses(self.host_pid)),
        )
        self.below_base = self._arrays[0].ptr // ARENA_BYTES * ARENA_BYTES
        self.write(self.layout.table, (self.layout.table + 8).to_bytes(8, "little"))
        assert secrets[0].ptr < base < secrets[1].ptr
        self._before = [bytes(self.files[i].read()) for i in (0, 2)]
        self._used = [self.files[i].used_bytes for i in (0, 2)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- what must hold after every case

    @property
    def host_pid(self) -> int:
        """The device host's."""
        found: int = self.root.query("status")["devices"][0]["pid"]
        return found

    def neighbour_faults(self) -> list[str]:
        """What of the neighbours' memory has changed: every byte, and the pages used."""
        found = []
        for name, file, before, used in zip(
            ("below", "above"), (self.files[0], self.files[2]), self._before, self._used,
            strict=True,
        ):  # fmt: skip
            now = file.read()
            if now != before:
                at = next(i for i, (a, b) in enumerate(zip(now, before, strict=True)) if a != b)
                found.append(f"byte {at:#x} of the neighbour {name} has changed")
            if file.used_bytes != used:
                found.append(f"the neighbour {name} uses {file.used_bytes} bytes, not {used}")
        return found

    # -- the attacker's memory, by address

    def read(self, address: int, size: int) -> bytearray:
        return self.file.read(address - self.layout.base, size)

    def write(self, address: int, data: bytes) -> None:
        self.file.write(address - self.layout.base, data)

    def array_sizes(self) -> list[tuple[int, int]]:
        """(address, size) of the attacker's arrays."""
        return sorted((array.ptr, array.nbytes) for array in self.arrays.values())


def _host_addresses(pid: int) -> Iterator[tuple[str, int]]:
    """Addresses of the device host's own memory, by what is there."""
    wanted = {
        "stack": r"rw.p .*\[stack\]$",
        "heap": r"rw.p .*\[heap\]$",
        "code": r"r.xp ",
        "library data": r"rw.p .*\.so[^/]*$",
        "library": r"r.xp .*\.so[^/]*$",
        "anonymous": r"rw.p 00000000 00:00 0 *$",
    }
    text = Path(f"/proc/{pid}/maps").read_text()
    for name, pattern in wanted.items():
        for line in text.splitlines():
            span, _, rest = line.partition(" ")
            if re.match(pattern, rest):
                low, high = (int(part, 16) for part in span.split("-"))
                yield name, (high - 2 * PAGE if name == "stack" else low)
                break
