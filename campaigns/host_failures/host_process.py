"""A device host process whose device does terrible things with kernels of certain names.

    python -m campaigns.host_failures.host_process --device cpu:2 --fd N

The name of a kernel says what happens when it is compiled for a block shape: ``crashes`` ends the
process by SIGSEGV, ``exhausts`` raises MemoryError, ``hangs`` never returns, ``waits`` returns when
there is a file of that name in the folder that the environment gives, ``loses`` finds that the
context is gone. For what happens to machine code see `campaigns.host_failures.native_process`.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from gpud.device.host import __main__ as host
from gpud.device.host import native_compiler
from gpud.device.spec import DeviceSpec
from gpud.errors import DeviceLost

COMMAND = ("-m", "campaigns.host_failures.host_process")
FOLDER = "GPUD_TEST_FOLDER"


class Terrible:
    """A device as above."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def occupancy(self, kernel: Any, *arguments: Any) -> Any:
        name = kernel.name
        if "crashes" in name:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "exhausts" in name:
            raise MemoryError
        if "loses" in name:
            raise DeviceLost("the context is gone")
        if "hangs" in name:
            time.sleep(10**6)
        if "waits" in name:
            gate = Path(os.environ[FOLDER], "waits")
            while not gate.exists():
                time.sleep(0.01)
        return self._inner.occupancy(kernel, *arguments)


def opened(spec: DeviceSpec, settings: host.DeviceSettings) -> Any:
    """The device that ``spec`` names, with such a process for its machine code."""
    return Terrible(real(spec, settings))


if __name__ == "__main__":
    real = host.open_device
    host.open_device = opened
    native_compiler.COMMAND = ("-m", "campaigns.host_failures.native_process")
    sys.exit(host.main())
