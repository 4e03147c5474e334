"""A device host process with the CUDA device, over the model of the driver.

python -m tests.gpu.host_process --device cuda:0 --fd N
"""

from __future__ import annotations

import sys
from typing import Any

from gpud.device.cpu.device import CPUDevice
from gpud.device.cuda.device import CUDADevice
from gpud.device.cuda.driver.calls import Driver
from gpud.device.host import __main__ as host
from gpud.device.spec import DeviceSpec
from tests.driver_model import CPUDriver

COMMAND = ("-m", "tests.gpu.host_process")
MEMORY_BYTES = 64 << 20
SMS = 2


def opened(spec: DeviceSpec, settings: host.DeviceSettings) -> Any:
    """Open the device that ``spec`` names: the model has one."""
    driver = Driver(CPUDriver(CPUDevice(SMS), MEMORY_BYTES))
    return CUDADevice(spec.number, driver=driver)


if __name__ == "__main__":
    host.open_device = opened
    sys.exit(host.main())
