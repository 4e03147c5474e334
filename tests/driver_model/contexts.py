"""The device of the model, its contexts, and which context is current in a thread."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from cuda.bindings import driver as real

from tests.driver_model.handles import Misuse

if TYPE_CHECKING:
    from tests.driver_model.model_driver import ModelDriver

ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 4,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "COOPERATIVE_LAUNCH": 1,
    "VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED": 1,  # the older name of the same
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED": 1,
}
MOST_STACK_BYTES = 1 << 19
PRIORITIES = 0, -5


class Contexts:
    """One device with a primary context.

    Attributes:
        attributes: of the device, by name.
        version: of CUDA, as the driver reports it.
        flags: of the primary context.
        stack_bytes: as last set.
    """

    def __init__(
        self, driver: ModelDriver, device: Mapping[str, int], name: bytes, memory_bytes: int
    ) -> None:
        self._driver = driver
        self.attributes = {key: device.get(key, value) for key, value in ATTRIBUTES.items()}
        self.version = device.get("VERSION", 13000)
        self.flags = 0
        self.stack_bytes = 0
        self._name = name
        self._memory_bytes = memory_bytes
        self._primary: Any = None
        self._retained = 0
        self._thread = threading.local()

    @property
    def is_current(self) -> bool:
        """Whether this thread has a current context that was not released."""
        return self._retained > 0 and bool(getattr(self._thread, "stack", None))

    def _device(self, device: Any) -> None:
        if int(device) != 0:
            raise Misuse(f"there is no device {device!r}")

    # -- the device

    def cuInit(self, flags: int) -> None:
        pass

    def cuDriverGetVersion(self) -> int:
        return self.version

    def cuDeviceGetCount(self) -> int:
        return 1

    def cuDeviceGet(self, index: int) -> Any:
        if index != 0:
            return real.CUresult.CUDA_ERROR_INVALID_DEVICE
        return real.CUdevice(index)

    def cuDeviceGetName(self, length: int, device: Any) -> bytes:
        self._device(device)
        return self._name.ljust(length, b"\0")

    def cuDeviceGetUuid(self, device: Any) -> Any:
        self._device(device)
        return SimpleNamespace(bytes=bytes(range(16)))

    def cuDeviceTotalMem(self, device: Any) -> int:
        self._device(device)
        return self._memory_bytes

    def cuDeviceGetAttribute(self, which: Any, device: Any) -> int:
        self._device(device)
        return self.attributes[which.name.removeprefix("CU_DEVICE_ATTRIBUTE_")]

    # -- contexts

    def cuDevicePrimaryCtxSetFlags(self, device: Any, flags: int) -> None:
        self._device(device)
        self.flags = flags

    def cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        self._device(device)
        if not self._retained:
            self._primary = self._driver.handles.new("context", "primary", counts=False)
        self._retained += 1
        self._driver.alive["context"] += 1
        return self._primary

    def cuDevicePrimaryCtxRelease(self, device: Any) -> Any:
        self._device(device)
        if not self._retained:
            return real.CUresult.CUDA_ERROR_INVALID_CONTEXT
        self._retained -= 1
        self._driver.alive["context"] -= 1
        if not self._retained:
            self._driver.handles.drop("context", self._primary, counts=False)
        return None

    def cuCtxSetCurrent(self, context: Any) -> None:
        self._driver.handles.of("context", context)
        self._thread.stack = [*getattr(self._thread, "stack", [])[:-1], context]

    def cuCtxPushCurrent(self, context: Any) -> None:
        self._driver.handles.of("context", context)
        self._thread.stack = [*getattr(self._thread, "stack", []), context]

    def cuCtxPopCurrent(self) -> Any:
        return self._thread.stack.pop()

    def cuCtxSetLimit(self, which: Any, value: int) -> Any:
        if which != real.CUlimit.CU_LIMIT_STACK_SIZE:
            raise Misuse(f"the model has no limit {which!r}")
        if value > MOST_STACK_BYTES:
            return real.CUresult.CUDA_ERROR_INVALID_VALUE
        self.stack_bytes = value
        return None

    def cuCtxGetStreamPriorityRange(self) -> tuple[int, int]:
        return PRIORITIES

    def cuCtxSynchronize(self) -> None:
        self._driver.wait(self._driver.streams.are_idle)
