"""A real daemon that serves the CUDA device over the model of the driver, for real clients.

The front runs on a thread of this process, its device host is a process of its own
(`tests.gpu.host_process`).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gpud_client as gc
from gpud.config import load
from gpud.server.daemon import Daemon
from tests.gpu import host_process
from tests.support.waiting import until

TIMEOUT_S = 60.0
_T = TypeVar("_T")


class Served:
    """A daemon on a thread.

    Attributes:
        daemon: on its own event loop: use `call`.
        path: of its socket.
    """

    def __init__(self, **settings: Any) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpud-"))
        self.path = str(self.folder / "s")
        flags = {"socket": self.path, "cache_dir": str(self.folder / "cache"), "devices": ["cuda"]}
        config = load({**flags, **settings}, environ={"HOME": str(self.folder)})
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.daemon = Daemon(config, host_command=host_process.COMMAND, validate=True)
        try:
            self.wait(self.daemon.start())
        except BaseException:
            self.close()
            raise

    def wait(self, coroutine: Any) -> Any:
        """Run a coroutine on the daemon's loop; its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(TIMEOUT_S)

    def call(self, function: Callable[[], _T]) -> _T:
        """Call a function on the daemon's loop; its result."""

        async def called() -> _T:
            return function()

        found: _T = self.wait(called())
        return found

    def connect(self) -> gc.Session:
        """A new client."""
        return gc.connect(self.path)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of clients that shall find it."""
        return {**os.environ, "GPUD_SOCKET": self.path}

    @property
    def device(self) -> Any:
        """The front's record of the device."""
        return self.daemon.devices[0]

    def kill_host(self) -> None:
        """Kill the device host, and wait for its replacement."""
        before = self.call(lambda: self.device.restarts)
        pid = self.call(lambda: self.device.pid)
        os.kill(pid, signal.SIGKILL)
        self.host_replaced(before)

    def host_replaced(self, before: int) -> None:
        """Wait until a host is ready after more than ``before`` were lost."""
        until(
            lambda: self.call(
                lambda: self.device.restarts > before and self.device.state == "ready"
            )
        )

    def close(self) -> None:
        """Stop the daemon."""
        if hasattr(self.daemon, "connections"):
            self.wait(self.daemon.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(TIMEOUT_S)
        self._loop.close()
        shutil.rmtree(self.folder)
