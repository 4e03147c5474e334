"""Compiles PTX to machine code before it is loaded, and caches the result.

Problem: the driver compiles PTX when it loads it, which takes a tenth of a second or more, and
loading blocks the context (`gpud.device.cuda.driver.watchdog`). Nothing could be launched
meanwhile, and a load's duration would not show whether it waits.

Approach: the driver's linker makes machine code first, which needs no work on the device. The code
is cached for programs that are loaded again, for another session for instance. A program that the
linker rejects is left to the load, which reports what is wrong with it.

Linked code is compiled as *relocatable*, which may cost a kernel some registers, or save them.

Source: CUDA Driver API 13.0, ``cuLinkCreate``.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from contextlib import suppress
from typing import Final

from gpud.device.cuda.driver.calls import Driver, DriverError

__all__ = ["MachineCode"]

_MOST_BYTES: Final = 64 << 20


class MachineCode:
    """Cache of machine code by program text; the oldest entries are evicted first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[bytes, bytes] = {}
        self._bytes = 0

    def of(self, driver: Driver, text: str) -> bytes | None:
        """Return the machine code of a program in PTX; None if the linker rejects it.

        Args:
            driver: entered.
            text: the program.
        """
        key = hashlib.sha256(text.encode()).digest()
        with self._lock:
            code = self._kept.get(key)
        if code is None:
            code = _linked(driver, text)
            if code is not None:
                self._keep(key, code)
        return code

    def _keep(self, key: bytes, code: bytes) -> None:
        with self._lock:
            if key not in self._kept:
                self._kept[key] = code
                self._bytes += len(code)
            while self._bytes > _MOST_BYTES:
                self._bytes -= len(self._kept.pop(next(iter(self._kept))))


def _linked(driver: Driver, text: str) -> bytes | None:
    image = text.encode() + b"\0"
    kind = driver.api.CUjitInputType.CU_JIT_INPUT_PTX
    try:
        state = driver.call("cuLinkCreate", 0, [], [])
    except DriverError:
        return None
    try:
        driver.call("cuLinkAddData", state, kind, image, len(image), b"program", 0, [], [])
        address, size = driver.call("cuLinkComplete", state)
        return ctypes.string_at(int(address), int(size))
    except DriverError:
        return None
    finally:
        with suppress(DriverError):  # leaks its memory, and nothing else
            driver.call("cuLinkDestroy", state)
